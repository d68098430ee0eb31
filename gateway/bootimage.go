package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// bootMarker begins the place in a boot image that the gateway fills for each
// boot. It lies in the kernel's command line (section .cmdline of the unified
// kernel image) and is followed by bootPlace-len(bootMarker) bytes of padding
// that are overwritten with it. So no image is built per boot, every range of it
// can be served from the one file, and the length never changes.
const (
	bootMarker = "compute.boot=@BOOT-CONFIG-URL@"
	bootPlace  = 1024
)

// bootImage is a boot image on disk.
type bootImage struct {
	path        string
	size        int64
	contentType string
	// places are the offsets of the marked places.
	places []int64
}

// openBootImage finds the marked places; nil for no path.
func openBootImage(path string) (*bootImage, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the boot image: %w", err)
	}
	defer f.Close()
	b := &bootImage{path: path, contentType: "application/octet-stream"}
	if strings.HasSuffix(path, ".efi") {
		b.contentType = "application/efi"
	}
	if b.places, b.size, err = findMarkers(f); err != nil {
		return nil, fmt.Errorf("read the boot image %s: %w", path, err)
	}
	if len(b.places) == 0 {
		return nil, fmt.Errorf("the boot image %s has no place for the boot's command line (%s)", path, bootMarker)
	}
	for _, at := range b.places {
		if at+bootPlace > b.size {
			return nil, fmt.Errorf("the boot image %s ends inside the place for the boot's command line", path)
		}
	}
	return b, nil
}

// findMarkers reads a file once, in pieces that overlap by a marker's length.
func findMarkers(r io.Reader) (places []int64, size int64, err error) {
	const piece = 1 << 20
	keep := len(bootMarker) - 1
	buf := make([]byte, 0, piece+keep)
	for {
		have := len(buf)
		n, err := io.ReadFull(r, buf[have:have+piece])
		buf = buf[:have+n]
		begin := size - int64(have)
		for from := 0; ; {
			i := bytes.Index(buf[from:], []byte(bootMarker))
			if i < 0 {
				break
			}
			places = append(places, begin+int64(from+i))
			from += i + len(bootMarker)
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return places, size, nil
		}
		if err != nil {
			return nil, 0, err
		}
		buf = append(buf[:0], buf[max(0, len(buf)-keep):]...)
	}
}

// forBoot opens the image as it is for one boot.
func (b *bootImage) forBoot(configURL string) (*bootFile, error) {
	line := "compute.boot=" + configURL
	if len(line) > bootPlace {
		return nil, fmt.Errorf("the boot config's URL has %d characters; the boot image has room for %d", len(configURL), bootPlace-len("compute.boot="))
	}
	f, err := os.Open(b.path)
	if err != nil {
		return nil, fmt.Errorf("open the boot image: %w", err)
	}
	return &bootFile{f: f, size: b.size, places: b.places, line: line + strings.Repeat(" ", bootPlace-len(line))}, nil
}

// bootFile reads a boot image with its marked places filled.
type bootFile struct {
	f      *os.File
	size   int64
	places []int64
	line   string
	at     int64
}

// Read reads on from the present place.
func (b *bootFile) Read(p []byte) (int, error) {
	n, err := b.f.ReadAt(p, b.at)
	for _, place := range b.places {
		from, to := max(place, b.at), min(place+bootPlace, b.at+int64(n))
		if from < to {
			copy(p[from-b.at:to-b.at], b.line[from-place:to-place])
		}
	}
	b.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Seek moves the present place.
func (b *bootFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.at
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of the boot image")
	}
	b.at = offset
	return offset, nil
}

// Close closes the file.
func (b *bootFile) Close() error { return b.f.Close() }
