package redfish_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// scale is how much faster the simulated rack and our waits run.
const scale = 200

// waits are the waits of production on the rack's clock. A request is given
// more: it is answered by a process that shares the machine with the tests.
func waits() bmc.Waits {
	w := bmc.DefaultWaits
	w.Request = 5 * time.Second
	for _, d := range []*time.Duration{&w.Poll, &w.Busy, &w.Change, &w.Post} {
		*d /= scale
	}
	w.Scale = scale
	return w
}

// bench is one simulated machine and what a client of it is lent.
type bench struct {
	t    *testing.T
	rack *sim.Rack
	m    *sim.Machine
	opts bmc.Options
	// tls is the trust; pin on first use unless a test sets another.
	tls    bmc.TLS
	system string
	mu     sync.Mutex
	seen   []bmc.Exchange
	// identity, when set, is what the machine was enrolled as.
	identity *fleet.BMCIdentity
	quirks   []string
}

func newBench(t *testing.T, spec sim.MachineSpec) *bench {
	t.Helper()
	return newBenchAt(t, scale, spec)
}

func newBenchAt(t *testing.T, timeScale float64, spec sim.MachineSpec) *bench {
	t.Helper()
	rack, err := sim.NewRack(sim.Options{TimeScale: timeScale, Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rack.Close() })
	m, err := rack.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, rack: rack, m: m, tls: bmc.TLS{Mode: "pin"}}
	b.opts = bmc.Options{Waits: waits(), Observe: func(e bmc.Exchange) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.seen = append(b.seen, e)
	}}
	t.Cleanup(func() {
		if t.Failed() {
			b.log()
		}
	})
	return b
}

// fault puts a built-in fault file on the machine.
func (b *bench) fault(name string) {
	b.t.Helper()
	f, err := sim.NamedFaults(name)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.m.SetFaults(f); err != nil {
		b.t.Fatal(err)
	}
}

// rules puts rules on the machine.
func (b *bench) rules(doc string) {
	b.t.Helper()
	f, err := sim.ParseFaults([]byte(doc))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.m.SetFaults(f); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) target() bmc.Target {
	a, err := fleet.ParseBMCAddress(b.m.Address())
	if err != nil {
		b.t.Fatal(err)
	}
	return bmc.Target{Address: a, System: b.system, Driver: "redfish", Username: b.m.Username(), Password: b.m.Password(),
		TLS: b.tls, Identity: b.identity, Quirks: b.quirks}
}

func (b *bench) open() *redfish.Client {
	b.t.Helper()
	c, err := redfish.Open(b.ctx(), b.target(), b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// ctx bounds a test's own patience, well over what any case takes.
func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.t.Cleanup(cancel)
	return ctx
}

// set puts values into the machine's true state.
func (b *bench) set(values map[string]any) {
	b.t.Helper()
	if err := b.m.Change(values); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) resets() int {
	n := 0
	for _, c := range b.m.Counts().Resets {
		n += c
	}
	return n
}

func (b *bench) log() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.seen {
		b.t.Logf("%s %s -> %d %s %s", e.Method, e.Path, e.Status, e.MessageID, e.Error)
	}
}

func wantKind(t *testing.T, err error, kind bmc.Kind) {
	t.Helper()
	if got := bmc.KindOf(err); got != kind {
		t.Fatalf("error kind %q, want %q: %v", got, kind, err)
	}
}
