package redfish_test

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

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/fleet"
)

// mockups is where the recorded trees are, beside the repository.
const mockups = "../../../shared/redfish-mockups"

// tree is a recorded service: path to answer.
type tree map[string][]byte

var trees sync.Map

// loadTree unpacks a recorded tree into memory.
func loadTree(t *testing.T, name string) tree {
	t.Helper()
	if v, ok := trees.Load(name); ok {
		return v.(tree) //nolint:forcetypeassert // only trees are stored
	}
	f, err := os.Open(filepath.Join(mockups, name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := tree{}
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

// serveTree serves a recorded tree over TLS, with sessions, and nothing that
// can be changed: any other write fails the test.
func serveTree(t *testing.T, name string) *httptest.Server {
	t.Helper()
	files := loadTree(t, name)
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

func openTree(t *testing.T, name, system string) (*redfish.Client, error) {
	t.Helper()
	srv := serveTree(t, name)
	a, err := fleet.ParseBMCAddress(srv.URL + system)
	if err != nil {
		t.Fatal(err)
	}
	c, err := redfish.Open(t.Context(), bmc.Target{Address: a, Username: "root", Password: "secret", TLS: bmc.TLS{Mode: "insecure"}},
		bmc.Options{Waits: waits()})
	if err == nil {
		t.Cleanup(func() { _ = c.Close(t.Context()) })
	}
	return c, err
}
