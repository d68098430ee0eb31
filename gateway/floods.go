package gateway

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/bettercompute/compute/fleet"
)

// How many requests of one address may fail: machines of a whole site can share
// one, so only failures count, and what succeeds is never slowed.
const (
	failuresPerSecond = 5
	failuresBurst     = 100
	floodsRemembered  = 10_000
)

// floods counts failed requests by the client's network.
type floods struct {
	mu sync.Mutex
	by map[string]*rate.Limiter
}

func newFloods() *floods { return &floods{by: map[string]*rate.Limiter{}} }

// spent says whether a client has used up its failures.
func (f *floods) spent(client string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.by[client]
	return l != nil && l.Tokens() < 1
}

// failed counts a failure.
func (f *floods) failed(client string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.by[client]
	if l == nil {
		if len(f.by) >= floodsRemembered {
			f.forget()
		}
		l = rate.NewLimiter(failuresPerSecond, failuresBurst)
		f.by[client] = l
	}
	l.AllowN(time.Now(), 1)
}

// forget drops those that have all their failures back, or, in a flood from
// everywhere, all.
func (f *floods) forget() {
	for client, l := range f.by {
		if l.Tokens() >= failuresBurst {
			delete(f.by, client)
		}
	}
	if len(f.by) >= floodsRemembered {
		clear(f.by)
	}
}

// guard refuses clients that have failed too often, and counts answers that say
// that something was guessed. Who shows a certificate of a node guesses nothing
// and is let through a flood from the same address.
func (g *Gateway) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client := clientOf(r)
		if g.floods.spent(client) && !g.holdsCertificate(r) {
			refuseFlood(w)
			return
		}
		seen := &seenWriter{ResponseWriter: w, status: http.StatusOK}
		next(seen, r)
		if seen.status >= 400 && seen.status < 500 {
			g.floods.failed(client)
		}
	}
}

func (g *Gateway) holdsCertificate(r *http.Request) bool {
	if g.cfg.Nodes == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	_, err := g.cfg.Nodes.Read(r.TLS.PeerCertificates)
	return err == nil
}

func refuseFlood(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	answerProblem(w, http.StatusTooManyRequests, string(fleet.CodeRateLimited), "too-many-failures", "too many requests from this address failed")
}

// known remembers hashes of sessions that were good.
type known struct {
	mu sync.Mutex
	by map[[sha256.Size]byte]struct{}
}

// knownRemembered bounds how many; when it is reached, all are learned anew.
const knownRemembered = 100_000

func newKnown() *known { return &known{by: map[[sha256.Size]byte]struct{}{}} }

func (k *known) has(session string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.by[sha256.Sum256([]byte(session))]
	return ok
}

func (k *known) add(session string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.by) >= knownRemembered {
		clear(k.by)
	}
	k.by[sha256.Sum256([]byte(session))] = struct{}{}
}

// clientOf is the client's address; of IPv6 the network that one customer has.
func clientOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Is4() || ip.Is4In6() {
		return host
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}
