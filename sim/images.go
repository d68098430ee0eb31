package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// demoImages are the images that the control listener serves, with their sizes
// in bytes. Their bytes are made from their names: the same everywhere.
var demoImages = map[string]int64{
	"demo.raw":  16 << 20,
	"small.raw": 1 << 20,
	"demo.iso":  4 << 20,
}

const imageBlock = 64 << 10

// imageShelf serves the demo images and knows their checksums.
type imageShelf struct {
	mu   sync.Mutex
	sums map[string]string
}

// content is an image as a file: each block comes from the name and its number.
type content struct {
	name string
	size int64
}

// ReadAt makes the bytes at an offset.
func (c content) ReadAt(p []byte, off int64) (int, error) {
	if off >= c.size {
		return 0, io.EOF
	}
	var block [imageBlock]byte
	n := 0
	for n < len(p) && off < c.size {
		seed := sha256.Sum256(fmt.Appendf(nil, "%s %d", c.name, off/imageBlock))
		_, _ = rand.NewChaCha8(seed).Read(block[:]) // never fails
		end := min(imageBlock, c.size-off/imageBlock*imageBlock)
		k := copy(p[n:], block[off%imageBlock:end])
		n += k
		off += int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (c content) reader() *io.SectionReader { return io.NewSectionReader(c, 0, c.size) }

// sum is the SHA-256 of an image in hex.
func (s *imageShelf) sum(c content) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.sums[c.name]; ok {
		return known
	}
	h := sha256.New()
	_, _ = io.Copy(h, c.reader()) // neither side fails
	if s.sums == nil {
		s.sums = map[string]string{}
	}
	s.sums[c.name] = hex.EncodeToString(h.Sum(nil))
	return s.sums[c.name]
}

// serve answers /images/{name} and /images/{name}.sha256, the latter as sha256sum prints it.
func (s *imageShelf) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	image, wantsSum := strings.CutSuffix(name, ".sha256")
	size, ok := demoImages[image]
	if !ok {
		http.NotFound(w, r)
		return
	}
	c := content{image, size}
	if wantsSum {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "%s  %s\n", s.sum(c), image)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, image, time.Time{}, c.reader())
}
