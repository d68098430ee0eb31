package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// qcow2Magic begins every qcow2 file; its virtual size lies 24 bytes in.
const (
	qcow2Magic    = "QFI\xfb"
	qcow2SizeAt   = 24
	qcow2HeadSize = 32
)

// imageSize asks the image's server how much room the image needs on a disk: a
// raw one its length, a qcow2 its virtual size. 0 is not told.
func imageSize(ctx context.Context, c *http.Client, image WriteImage) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, image.URL, nil)
	if err != nil {
		return 0, errors.New("the image's URL is none")
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=0-%d", qcow2HeadSize-1))
	resp, err := c.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask for the image's size: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	size := resp.ContentLength
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		_, total, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		if size, err = strconv.ParseInt(total, 10, 64); err != nil {
			size = 0
		}
	default:
		return 0, fmt.Errorf("ask for the image's size: the server answered %s", resp.Status)
	}
	if image.Format != "qcow2" {
		return max(size, 0), nil
	}
	head := make([]byte, qcow2HeadSize)
	if _, err := io.ReadFull(resp.Body, head); err != nil {
		return 0, fmt.Errorf("read the image's header: %w", err)
	}
	if string(head[:4]) != qcow2Magic {
		return 0, errors.New("the image is no qcow2 file")
	}
	virtual := binary.BigEndian.Uint64(head[qcow2SizeAt:])
	if virtual > 1<<62 {
		return 0, errors.New("the image's header names an impossible size")
	}
	return int64(virtual), nil
}
