package gateway_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/gob"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// way is what connections lie on: while it is cut, nothing comes through in
// either direction, and nobody is told.
type way struct {
	mu    sync.Mutex
	whole chan struct{} // closed while the way is whole
	conns map[net.Conn]struct{}
}

func newWay() *way {
	w := &way{whole: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(w.whole)
	return w
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = make(chan struct{})
}

func (w *way) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.whole)
}

func (w *way) pass() {
	w.mu.Lock()
	whole := w.whole
	w.mu.Unlock()
	<-whole
}

// breakAll ends all connections, as the death of the process at one end does.
func (w *way) breakAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
	clear(w.conns)
}

func (w *way) add(c net.Conn) net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = struct{}{}
	return &wayConn{Conn: c, way: w}
}

type wayConn struct {
	net.Conn
	way *way
}

func (c *wayConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.way.pass()
	return n, err
}

func (c *wayConn) Write(b []byte) (int, error) {
	c.way.pass()
	return c.Conn.Write(b)
}

func (c *wayConn) Close() error {
	c.way.mu.Lock()
	delete(c.way.conns, c.Conn)
	c.way.mu.Unlock()
	return c.Conn.Close()
}

type wayListener struct {
	net.Listener
	way *way
}

func (l wayListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.way.add(c), nil
}

// statements counts what is sent to Postgres, by its text.
type statements struct {
	mu   sync.Mutex
	sent map[string]int
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[strings.Join(strings.Fields(d.SQL), " ")]++
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// all is what was sent so far.
func (s *statements) all() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sent)
}

// loadRig is a gateway with a fleet.
type loadRig struct {
	t     *testing.T
	nodes int
	// admin reaches Postgres beside the way; worker is the store of a worker.
	admin  *pgxpool.Pool
	worker *store.Store

	sent              *statements
	toAgents, toStore *way
	ca                *identity.CA
	issuer            *identity.Issuer
	address           string

	in  io.Writer
	out *json.Decoder
	pid int
}

// descriptors is how many files this process may hold open, raised as far as it
// may be.
func descriptors(t *testing.T, want uint64) uint64 {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Cur < want {
		more := syscall.Rlimit{Cur: want, Max: max(l.Max, want)}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) != nil { // for root alone
			more = syscall.Rlimit{Cur: l.Max, Max: l.Max}
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more); err != nil {
				t.Fatal(err)
			}
		}
		l = more
	}
	return l.Cur
}

// newLoad makes a fleet that Postgres knows as in session with a gateway that
// was there a moment ago.
func newLoad(t *testing.T, nodes int) *loadRig {
	t.Helper()
	const others = 500
	if may := descriptors(t, uint64(nodes+others)); may < uint64(nodes+others) {
		nodes = int(may) - others
		t.Logf("a process may open %d files here: %d machines (ulimit -n)", may, nodes)
	}
	r := &loadRig{t: t, nodes: nodes, sent: &statements{sent: map[string]int{}}, toAgents: newWay(), toStore: newWay()}
	r.admin = storetest.New(t)
	r.worker = store.New(r.admin, store.Options{})
	ca, err := identity.NewCA("load CA")
	if err != nil {
		t.Fatal(err)
	}
	between, err := ca.NewIntermediate("nodes")
	if err != nil {
		t.Fatal(err)
	}
	if r.issuer, err = identity.NewIssuer(between, ca.Cert, "compute.example"); err != nil {
		t.Fatal(err)
	}
	r.ca = ca
	first := listen(t)
	r.address = first.Addr().String()
	first.Close()
	r.fill()
	return r
}

func nodeID(n int) string { return fmt.Sprintf("node_%026d", n) }

// fill writes the fleet, and makes its certificates: of one key, which is what
// costs.
func (r *loadRig) fill() {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	hash, err := identity.KeyHash(key.Public())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO tenants (id) VALUES ('acme')`,
		`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_a', 'acme', 'a', '{}')`,
		`INSERT INTO nodes (id, tenant_id, site_id, provision_state) SELECT 'node_' || lpad(n::text, 26, '0'), 'acme', 'site_a', 'deployed' FROM generate_series(1, @nodes) n`,
		`INSERT INTO node_visibility (tenant_id, node_id) SELECT tenant_id, id FROM nodes`,
		`INSERT INTO conditions (node_id, type, status, reason) SELECT id, 'Connected', 'True', 'session' FROM nodes`,
		`INSERT INTO sessions (node_id, epoch, gateway, connected_at, last_seen_at) SELECT id, 1, 'gw-before', now(), now() FROM nodes`,
		`INSERT INTO certificates (serial, node_id, generation, not_after, key_hash, used_at)
			SELECT to_hex(n), 'node_' || lpad(n::text, 26, '0'), 0, now() + interval '1 day', @hash, now() FROM generate_series(1, @nodes) n`,
		`ANALYZE`,
	} {
		if _, err := r.admin.Exec(r.t.Context(), sql, pgx.NamedArgs{"nodes": r.nodes, "hash": hash}); err != nil {
			r.t.Fatalf("%v\n%s", err, sql)
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		r.t.Fatal(err)
	}
	fleet := loadFleet{Gateway: "https://" + r.address, Fingerprint: r.ca.Fingerprint(), Key: der, Chain: r.issuer.CA().Cert.Raw, WaitSeconds: 3, Pause: 200 * time.Millisecond}
	for n := range r.nodes {
		chain, err := r.issuer.Issue(key.Public(), identity.Grant{NodeID: nodeID(n + 1), Serial: fmt.Sprintf("%x", n+1), At: time.Now(), NotAfter: time.Now().Add(24 * time.Hour)})
		if err != nil {
			r.t.Fatal(err)
		}
		leaf, _ := pem.Decode(chain)
		fleet.Leaves = append(fleet.Leaves, leaf.Bytes)
	}
	r.startAgents(fleet)
}

// startAgents starts the machines, which find no gateway yet.
func (r *loadRig) startAgents(fleet loadFleet) {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "fleet")
	f, err := os.Create(file)
	if err != nil {
		r.t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	if err := gob.NewEncoder(w).Encode(fleet); err != nil {
		r.t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		r.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), agentsFile+"="+file), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.in, r.out, r.pid = in, json.NewDecoder(out), cmd.Process.Pid
	r.t.Cleanup(func() {
		in.Close() // they end
		if err := cmd.Wait(); err != nil && r.t.Context().Err() == nil {
			r.t.Errorf("the machines: %v", err)
		}
	})
}

// tell asks the machines.
func (r *loadRig) tell(what string) loadStats {
	r.t.Helper()
	if _, err := fmt.Fprintln(r.in, what); err != nil {
		r.t.Fatal(err)
	}
	var s loadStats
	if err := r.out.Decode(&s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *loadRig) stats() loadStats { return r.tell("stats") }

// await waits until the machines' stats are as wanted.
func (r *loadRig) await(what string, holds func(loadStats) bool) loadStats {
	r.t.Helper()
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		s := r.stats()
		if holds(s) {
			r.t.Logf("%s: after %.1f s, %+v", what, time.Since(began).Seconds(), s)
			return s
		}
		select {
		case <-r.t.Context().Done():
			r.t.Fatalf("never came: %s; %+v", what, s)
		case <-tick.C:
		}
	}
}

// startGateway starts a gateway process's worth of a gateway at the fleet's
// address. kill ends it as the death of its process does, stop in order.
func (r *loadRig) startGateway() (kill, stop func()) {
	r.t.Helper()
	cfg := r.admin.Config()
	cfg.ConnConfig.Tracer = r.sent
	dialer := &net.Dialer{}
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return r.toStore.add(c), nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	// A third of the usual time between heartbeats, which the machines ask for too.
	s := store.New(pool, store.Options{GatewayURL: "https://" + r.address, TimeScale: 3})
	g, err := gateway.New(gateway.Config{Store: s, CA: r.ca, Nodes: r.issuer, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	node, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, wayListener{node, r.toAgents}, listen(r.t)) }()
	var once sync.Once
	end := func(first func()) func() {
		return func() {
			once.Do(func() {
				first()
				cancel()
				if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
					r.t.Errorf("Serve: %v", err)
				}
				s.Close()
			})
		}
	}
	stop = end(func() {})
	r.t.Cleanup(stop)
	return end(func() { node.Close(); r.toAgents.breakAll() }), stop
}

// memory says what the processes hold, where that can be read.
func (r *loadRig) memory() {
	for what, pid := range map[string]int{"this process": os.Getpid(), "the machines": r.pid} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(line, "VmRSS") {
				r.t.Log(what, line)
			}
		}
	}
}

func (r *loadRig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.admin.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *loadRig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.admin.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// later lets time pass for all that Postgres holds of sessions.
func (r *loadRig) later(d time.Duration) {
	r.t.Helper()
	r.exec(`UPDATE sessions SET last_seen_at = last_seen_at - $1::interval`, d)
	r.exec(`UPDATE gateways SET at = at - $1::interval, since = since - $1::interval`, d)
}

// steady makes the gateways that serve now have done so for long.
func (r *loadRig) steady() {
	r.t.Helper()
	r.exec(`UPDATE gateways SET at = now(), since = now() - interval '1 hour' WHERE at > now() - interval '5 minutes'`)
}

// lose does what the worker does again and again.
func (r *loadRig) lose(when string, want int) {
	r.t.Helper()
	if lost, err := r.worker.LoseSessions(r.t.Context()); err != nil || lost != want {
		r.t.Fatalf("%s: %d nodes are lost, %v; want %d", when, lost, err, want)
	}
}

// awaitFresh waits until Postgres knows that so many were heard of just now.
func (r *loadRig) awaitFresh(want int) {
	r.t.Helper()
	await(r.t, "what was heard of is noted", func() bool {
		return r.count(`SELECT count(*) FROM sessions WHERE last_seen_at > now() - interval '60 seconds'`) >= want
	})
}

// untouched says that nothing was written of any node since the fleet began.
func (r *loadRig) untouched(when string) {
	r.t.Helper()
	for what, sql := range map[string]string{
		"events":              `SELECT count(*) FROM events`,
		"orders to Temporal":  `SELECT count(*) FROM dispatch`,
		"reconcilers wanted":  `SELECT count(*) FROM reconcile_wanted`,
		"versions":            `SELECT count(*) FROM nodes WHERE version > 1`,
		"conditions":          `SELECT count(*) FROM conditions WHERE type = 'Connected' AND status <> 'True'`,
		"sessions given up":   `SELECT count(*) FROM sessions WHERE disconnected_at IS NOT NULL`,
		"unschedulable nodes": `SELECT count(*) FROM nodes WHERE no_schedule_reasons <> '{}'`,
	} {
		if n := r.count(sql); n != 0 {
			r.t.Errorf("%s: %d %s, want none", when, n, what)
		}
	}
}
