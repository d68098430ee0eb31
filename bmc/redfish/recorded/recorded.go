// Package recorded serves to tests what real Redfish services answered.
package recorded

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// folder is where the recorded trees are: in shared/ beside the repository.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "..", "shared", "redfish-mockups")
		}
	}
	t.Fatal("not inside the repository")
	return ""
}

// Tree is a recorded service: path to answer.
type Tree map[string][]byte

var trees sync.Map

// Load unpacks a recorded tree into memory.
func Load(t testing.TB, name string) Tree {
	t.Helper()
	if v, ok := trees.Load(name); ok {
		return v.(Tree) //nolint:forcetypeassert // only trees are stored
	}
	f, err := os.Open(filepath.Join(folder(t), name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := Tree{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		dir, isIndex := strings.CutSuffix(h.Name, "/index.json")
		if !isIndex {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(strings.TrimPrefix(dir, "./"), "/")
		out[strings.ToLower(strings.TrimRight("/redfish/v1/"+rest, "/"))] = b
	}
	trees.Store(name, out)
	return out
}

// Serve serves a recorded tree over TLS, with sessions, and nothing that
// can be changed: any other write fails the test.
func Serve(t testing.TB, name string) *httptest.Server {
	t.Helper()
	files := Load(t, name)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.ToLower(strings.TrimRight(r.URL.Path, "/"))
		session := strings.HasPrefix(path, "/redfish/v1/sessionservice/sessions")
		switch {
		case r.Method == http.MethodPost && session:
			w.Header().Set("X-Auth-Token", "recorded")
			w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/1")
			w.WriteHeader(http.StatusCreated)
		case r.Method == http.MethodDelete && session:
			w.WriteHeader(http.StatusNoContent)
		case r.Method != http.MethodGet:
			t.Errorf("%s %s: a reading must change nothing", r.Method, r.URL.Path)
			w.WriteHeader(http.StatusMethodNotAllowed)
		case path != "/redfish/v1" && r.Header.Get("X-Auth-Token") != "recorded":
			w.WriteHeader(http.StatusUnauthorized)
		case files[path] == nil:
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(files[path])
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}
