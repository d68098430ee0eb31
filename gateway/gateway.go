// Package gateway is the machine-facing side of the control plane. A plain
// listener serves boot files by an unguessable id and takes the one-time reports
// of installed systems, which cannot check our CA; a TLS listener whose CA the
// machines pin takes call-ins and hands out commands. Any number of gateways
// run side by side: all they know is in Postgres.
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// Config is what a Gateway is made of.
type Config struct {
	Store *store.Store
	// CA signs the TLS listener's certificate; machines pin it.
	CA *identity.CA
	// Nodes signs the certificates of nodes; nil lets no machine join.
	Nodes *identity.Issuer
	// BootISO and BootEFI are files of the real boot image, each with a marked
	// place for the kernel's command line. Without BootISO the medium holds
	// nothing but the boot config and boots nowhere; without BootEFI there is no
	// file for HTTP boot.
	BootISO, BootEFI string
	// Log gets one line a request and never a secret; nil is slog's default.
	Log *slog.Logger
	// Poll is how often the gateway looks for commands of all machines that wait
	// at it, beside being told of them; 0 is 2 s.
	Poll time.Duration
}

// Gateway serves the machines.
type Gateway struct {
	store *store.Store
	cfg   Config
	log   *slog.Logger
	// id names this process to operators without telling where it runs.
	id string
	// host is the name by which machines reach the TLS listener.
	host    string
	waiting *waiting
	floods  *floods
	members *members
	// joining bounds the joins that are judged at once.
	joining chan struct{}
	known   *known
	boots   *liveBoots
	iso     *bootImage
	efi     *bootImage
	// closing ends the waits of machines when the process stops.
	closing chan struct{}
}

// New checks the configuration and opens the boot image.
func New(cfg Config) (*Gateway, error) {
	u, err := url.Parse(cfg.Store.GatewayURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the gateway's URL %q (COMPUTE_GATEWAY_URL) is no https URL", cfg.Store.GatewayURL)
	}
	if cfg.CA == nil {
		return nil, errors.New("the gateway has no CA")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Poll == 0 {
		cfg.Poll = 2 * time.Second
	}
	g := &Gateway{store: cfg.Store, cfg: cfg, log: cfg.Log, id: "gw-" + strings.ToLower(rand.Text()[:12]), host: u.Hostname(), waiting: newWaiting(), floods: newFloods(), members: newMembers(), joining: make(chan struct{}, joinsAtOnce), known: newKnown(), boots: newLiveBoots(),
		closing: make(chan struct{})}
	if g.iso, err = openBootImage(cfg.BootISO); err != nil {
		return nil, err
	}
	if g.efi, err = openBootImage(cfg.BootEFI); err != nil {
		return nil, err
	}
	return g, nil
}

// Run listens for new commands until the context ends, then lets waiting
// machines go.
func (g *Gateway) Run(ctx context.Context) {
	defer close(g.closing)
	var wg sync.WaitGroup
	wg.Go(func() { g.listen(ctx) })
	wg.Go(func() { g.poll(ctx) })
	wg.Go(func() { g.keepMembers(ctx) })
	wg.Go(func() { g.endSessions(ctx) })
	wg.Wait()
}

// listen wakes machines as soon as their command is there. The connection may
// break at any time: polling is the guarantee.
func (g *Gateway) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := g.store.ListenCommands(ctx, g.wake); err != nil && ctx.Err() == nil {
			g.log.Warn("not told of new commands, polling only", "error", err)
		}
		pause(ctx, time.Second)
	}
}

// wake wakes the machine of a boot or node.
func (g *Gateway) wake(owner string) {
	g.waiting.wake(owner)
	g.members.wake(owner)
}

// poll looks for what there is for all machines with one statement.
func (g *Gateway) poll(ctx context.Context) {
	for pause(ctx, g.cfg.Poll) {
		boots := g.waiting.owners()
		if len(boots) == 0 && g.members.none() {
			continue
		}
		due, err := g.store.OwnersWithCommands(ctx, g.id, boots)
		if err != nil {
			if ctx.Err() == nil {
				g.log.Warn("looking for commands", "error", err)
			}
			continue
		}
		for _, id := range due {
			g.wake(id)
		}
	}
}

// pause waits and says whether the context is still on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Ready says whether the gateway can serve: Postgres answers with a schema it
// knows.
func (g *Gateway) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	known, err := store.SchemaKnown(ctx, g.store.Pool())
	if err != nil {
		return fmt.Errorf("ask Postgres: %w", err)
	}
	if !known {
		return errors.New("the database's schema is older than this program: run compute migrate")
	}
	return nil
}

// degraded names what does not work although the gateway serves: sessions and
// boot files need no CA.
func (g *Gateway) degraded(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	out := []string{}
	if g.cfg.Nodes == nil {
		return append(out, "no machine can join: there is no CA of nodes")
	}
	if err := g.cfg.Nodes.Ready(ctx); err != nil {
		g.log.Warn("the key of the CA of nodes cannot be used", "error", err)
		out = append(out, "no machine can join and no certificate is renewed: the key of the CA of nodes cannot be used, and this process's log says why")
	}
	return out
}

// bootBase is the plain listener's base URL as machines are told it.
func (g *Gateway) bootBase() string { return strings.TrimSuffix(g.store.BootURL, "/") }

// logged writes one line a request: the route's pattern instead of its path,
// which can be a secret.
func (g *Gateway) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &seenWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(seen, r)
		level := slog.LevelDebug
		if seen.status >= 500 {
			level = slog.LevelWarn
		}
		g.log.Log(r.Context(), level, "request", "route", r.Pattern, "status", seen.status, "from", clientOf(r), "ms", time.Since(began).Milliseconds())
	})
}

// seenWriter remembers the status that was answered.
type seenWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status.
func (w *seenWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *seenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
