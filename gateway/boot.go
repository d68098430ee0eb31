package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// liveFor is how long a gateway serves a boot's files on its last look: a BMC
// reads an image in thousands of small ranges.
const liveFor = 2 * time.Second

// liveBoots remembers boots that were live a moment ago.
type liveBoots struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newLiveBoots() *liveBoots { return &liveBoots{until: map[string]time.Time{}} }

func (l *liveBoots) has(id string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[id])
}

func (l *liveBoots) add(id string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) > 10_000 {
		clear(l.until)
	}
	l.until[id] = now.Add(liveFor)
}

// BootHandler is the plain listener's: boot files, reports, and how the process
// is.
func (g *Gateway) BootHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /boot/{id}/compute.iso", g.guard(g.serveISO))
	mux.HandleFunc("GET /boot/{id}/boot.efi", g.guard(g.serveEFI))
	mux.HandleFunc("GET /boot/{id}/config", g.guard(g.serveConfig))
	mux.HandleFunc("POST /report/{id}", g.guard(g.takeReport))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, map[string]string{"status": "ok"}) })
	mux.HandleFunc("GET /readyz", g.readyz)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answerProblem(w, http.StatusNotFound, string(fleet.CodeNotFound), "", "no such route")
	})
	return g.logged(mux)
}

func (g *Gateway) readyz(w http.ResponseWriter, r *http.Request) {
	if err := g.Ready(r.Context()); err != nil {
		g.log.Warn("not ready", "error", err)
		answerProblem(w, http.StatusServiceUnavailable, string(fleet.CodeUnavailable), "not-ready", "Postgres does not answer, or its schema is not known")
		return
	}
	answerJSON(w, map[string]any{"status": "ready", "degraded": g.degraded(r.Context())})
}

// live says whether a boot's files are served.
func (g *Gateway) live(r *http.Request) error {
	id, now := r.PathValue("id"), time.Now()
	if g.boots.has(id, now) {
		return nil
	}
	if err := g.store.BootLive(r.Context(), id); err != nil {
		return err
	}
	g.boots.add(id, now)
	return nil
}

// serveISO serves the virtual medium: the boot image with this boot's command
// line in its marked place, or, without an image, a medium that holds the boot
// config alone.
func (g *Gateway) serveISO(w http.ResponseWriter, r *http.Request) {
	if g.iso != nil {
		g.serveImage(w, r, g.iso)
		return
	}
	config, err := g.bootConfig(r)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	b, err := json.Marshal(config)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	medium, err := configISO(b)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	serveFile(w, r, "application/octet-stream", bytes.NewReader(medium))
}

// serveEFI serves the program of UEFI HTTP boot.
func (g *Gateway) serveEFI(w http.ResponseWriter, r *http.Request) {
	if g.efi == nil {
		g.answerError(w, r, fleet.Errorf(fleet.CodeNotFound, "no-boot-image", "no boot image for HTTP boot is configured"))
		return
	}
	g.serveImage(w, r, g.efi)
}

func (g *Gateway) serveImage(w http.ResponseWriter, r *http.Request, image *bootImage) {
	if err := g.live(r); err != nil {
		g.answerError(w, r, err)
		return
	}
	f, err := image.forBoot(g.bootBase() + "/boot/" + r.PathValue("id") + "/config")
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	defer f.Close()
	serveFile(w, r, image.contentType, f)
}

// serveFile serves with ranges. Whoever reads nothing for a while is let go.
func serveFile(w http.ResponseWriter, r *http.Request, contentType string, f io.ReadSeeker) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	http.ServeContent(&patientWriter{ResponseWriter: w, control: http.NewResponseController(w)}, r, "", time.Time{}, f)
}

// stallLimit is how long one piece of a file may take to be read.
const stallLimit = 60 * time.Second

// patientWriter moves the connection's deadline with each piece written.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write sends a piece.
func (w *patientWriter) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(stallLimit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// bootConfig is what differs from one power-on to the next.
type bootConfig struct {
	BootID        string `json:"bootId"`
	GatewayURL    string `json:"gatewayUrl"`
	CAFingerprint string `json:"caFingerprint"`
	Token         string `json:"token"`
}

func (g *Gateway) bootConfig(r *http.Request) (bootConfig, error) {
	c, err := g.store.BootConfig(r.Context(), r.PathValue("id"))
	if err != nil {
		return bootConfig{}, err
	}
	return bootConfig{BootID: c.ID, GatewayURL: g.store.GatewayURL, CAFingerprint: g.cfg.CA.Fingerprint(), Token: c.Token}, nil
}

func (g *Gateway) serveConfig(w http.ResponseWriter, r *http.Request) {
	c, err := g.bootConfig(r)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	answerJSON(w, c)
}

// reportMembers are what is kept of a report; cloud-init's host keys too, so
// that a first login can check them.
func reportMember(name string) bool {
	switch name {
	case "instance_id", "hostname", "fqdn":
		return true
	}
	return strings.HasPrefix(name, "pub_key_")
}

// takeReport takes the one report of an installed system: cloud-init's
// phone_home form, or a JSON object of strings.
func (g *Gateway) takeReport(w http.ResponseWriter, r *http.Request) {
	data, err := readReport(w, r)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	if err := g.store.TakeReport(r.Context(), r.PathValue("id"), data); err != nil {
		g.answerError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func readReport(w http.ResponseWriter, r *http.Request) (map[string]string, error) {
	kept := map[string]string{}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		kind = "" // curl and old cloud-init send odd ones; the body decides
	}
	if kind == "application/json" {
		var in map[string]any
		if err := readJSON(w, r, smallBody, &in); err != nil {
			return nil, err
		}
		for k, v := range in {
			if s, ok := v.(string); ok && reportMember(k) {
				kept[fleet.Text(k, 64)] = fleet.Text(s, 8<<10)
			}
		}
		return kept, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, smallBody))
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidInput, "", "the report could not be read, or is larger than %d bytes", smallBody)
	}
	form, err := url.ParseQuery(string(b))
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidInput, "", "the report is neither a form nor JSON")
	}
	for k := range form {
		if reportMember(k) {
			kept[fleet.Text(k, 64)] = fleet.Text(form.Get(k), 8<<10)
		}
	}
	return kept, nil
}
