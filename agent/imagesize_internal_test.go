package agent

import (
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The room an image needs is asked of its server without fetching it, and an
// error never shows the URL's query.
func TestImageSize(t *testing.T) {
	t.Parallel()
	qcow := make([]byte, 512)
	copy(qcow, qcow2Magic)
	binary.BigEndian.PutUint64(qcow[qcow2SizeAt:], 20<<30)
	mux := http.NewServeMux()
	mux.HandleFunc("/raw", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(strings.Repeat("x", 5000)))
	})
	mux.HandleFunc("/no-ranges", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "7000")
		_, _ = w.Write(make([]byte, 7000))
	})
	mux.HandleFunc("/qcow2", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(qcow)))
	})
	mux.HandleFunc("/unknown", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("x"))
		w.(http.Flusher).Flush()
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	for name, c := range map[string]struct {
		path, format string
		want         int64
		fails        string
	}{
		"raw by range":       {"/raw", "raw", 5000, ""},
		"raw without ranges": {"/no-ranges", "raw", 7000, ""},
		"length not told":    {"/unknown", "raw", 0, ""},
		"qcow2":              {"/qcow2", "qcow2", 20 << 30, ""},
		"no qcow2":           {"/raw", "qcow2", 0, "no qcow2"},
		"not there":          {"/gone", "raw", 0, "404"},
	} {
		got, err := imageSize(t.Context(), s.Client(), WriteImage{URL: s.URL + c.path + "?sig=hush", Format: c.format})
		if got != c.want || (err != nil) != (c.fails != "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %d, %v; want %d, %q", name, got, err, c.want, c.fails)
		}
	}
	s.Close()
	_, err := imageSize(t.Context(), s.Client(), WriteImage{URL: s.URL + "/raw?sig=hush", Format: "raw"})
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("server away: %v, want an error without the query", err)
	}
}
