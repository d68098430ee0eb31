package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// What goes wrong between us and a BMC, and what a person does about it, each on
// a machine of its own through API, worker and database.
func TestTroubles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// One minute of a BMC's absence is enough for a person to be told.
	r.ok("sites/update", obj{"siteId": r.site, "timeouts": obj{"bmcAway": 60, "powerChange": 36000, "callIn": 36000}}, nil)
	r.startWorker()
	for name, run := range map[string]func(*testing.T, *rig){
		"Unreachable": unreachable, "NameOutsideNetworks": nameOutside,
		"EnrolledByAnotherAddress": enrolledTwice, "FoundRunning": foundRunning, "CapacityInTime": capacityInTime,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, r)
		})
	}
}

// on is a rig as a subtest uses it.
func (r *rig) on(t *testing.T) *rig {
	at := *r
	at.t = t
	return &at
}

// An enroll of a BMC that does not answer waits, then parks and says so; once
// the BMC is there, a retry enrolls it.
func unreachable(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Seed: 42})
	cable := &relay{t: t, to: strings.TrimPrefix(h.Address(), "https://")}
	address := cable.plug("127.0.0.1:0")
	cable.unplug()
	var out fleet.MetalOperationOut
	r.on(t).ok("metal/enroll", obj{"siteId": r.site, "bmc": obj{"address": "https://" + address, "username": h.Username(), "password": h.Password(), "tls": h.tls}}, &out)
	h.node = out.Node.ID
	h.until(out.Operation.ID, func(o fleet.Operation) bool {
		return len(o.Steps) > 0 && strings.Contains(o.Steps[0].Detail, "tried again until") // said while it waits
	})
	o := h.await(out.Operation.ID)
	if o.State != fleet.OpFailed || o.EndedAt != nil || o.Error.Code != "unreachable" || o.Error.Step != fleet.StepIdentify {
		t.Fatalf("enroll: %s %+v", o.State, o.Error)
	}
	if !strings.Contains(o.Error.Remedy, "retry") {
		t.Errorf("to do: %q", o.Error.Remedy)
	}
	if n := h.metal(); n.ProvisionState != fleet.Failed || n.Failed.From != fleet.Enrolling || n.Failed.Cause != o.Error.Cause {
		t.Errorf("node %s, %+v", n.ProvisionState, n.Failed)
	}
	cable.plug(address)
	if o := h.do("retry", nil); o.State != fleet.OpSucceeded || h.metal().ProvisionState != fleet.Enrolling {
		t.Errorf("with the BMC back: %s %+v", o.State, o.Error)
	}
}

// A BMC's name that leads out of the site's networks is refused in the dial:
// the machine that answers there is sent nothing.
func nameOutside(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Seed: 43})
	cable := &relay{t: t, to: strings.TrimPrefix(h.Address(), "https://")}
	_, port, err := net.SplitHostPort(cable.plug("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	var site fleet.SiteOut
	r.on(t).ok("sites/create", obj{"name": "elsewhere", "allowedNetworks": []string{"10.0.0.0/8"}}, &site)
	bmc := func(host string) obj {
		return obj{"siteId": site.Site.ID, "bmc": obj{"address": host, "username": h.Username(), "password": h.Password(), "tls": h.tls}}
	}
	if err := r.call(t, "metal/enroll", bmc(h.Address()), nil); fleet.CodeOf(err) != fleet.CodeInvalidInput {
		t.Errorf("a literal address outside: %v", err)
	}
	o := h.enroll(bmc("https://localhost:" + port))
	if o.State != fleet.OpFailed || o.Error.Code != "address-not-allowed" || !strings.Contains(o.Error.Remedy, "on the site") {
		t.Errorf("enroll: %s %+v", o.State, o.Error)
	}
	if n := cable.dialled(); n != 0 {
		t.Errorf("%d connections went to an address outside", n)
	}
}

// A machine that is enrolled is found again behind another address, and nothing
// is changed on it.
func enrolledTwice(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Seed: 44})
	h.enrolled()
	first := h.node
	again := obj{"siteId": r.site, "bmc": obj{"address": h.Address(), "username": h.Username(), "password": h.Password(), "tls": h.tls}}
	if err := r.call(t, "metal/enroll", again, nil); err == nil || err.Code != fleet.CodeConflict || err.Reason != "already-enrolled" {
		t.Errorf("the same address: %v", err)
	}
	cable := &relay{t: t, to: strings.TrimPrefix(h.Address(), "https://")}
	o := h.enroll(obj{"name": "another", "bmc": obj{"address": "https://" + cable.plug("127.0.0.1:0"), "username": h.Username(), "password": h.Password(), "tls": h.tls}})
	if o.State != fleet.OpFailed || o.Error.Code != "already-enrolled" || !strings.Contains(o.Error.Cause, first) {
		t.Errorf("another address: %s %+v", o.State, o.Error)
	}
	if n := len(h.Counts().Resets); n != 0 {
		t.Errorf("%d kinds of resets", n)
	}
}

// A machine found running is presumed in use: its chain ends after the enroll,
// nothing switches it, until somebody says that it is not.
func foundRunning(t *testing.T, r *rig) {
	h := r.add(t, sim.MachineSpec{Seed: 45, Power: "On"})
	var out fleet.MetalOperationOut
	r.on(t).ok("metal/enroll", obj{"siteId": r.site, "advance": "ready",
		"bmc": obj{"address": h.Address(), "username": h.Username(), "password": h.Password(), "tls": h.tls}}, &out)
	h.node = out.Node.ID
	o := h.await(out.Operation.ID)
	last := o.Steps[len(o.Steps)-1]
	if o.State != fleet.OpSucceeded || o.Next != "" || h.metal().ProvisionState != fleet.Enrolling || !strings.Contains(last.Detail, "in use") {
		t.Fatalf("enroll: %s, next %q, node %s, %q", o.State, o.Next, h.metal().ProvisionState, last.Detail)
	}
	if o := h.do("inspect", nil); o.State != fleet.OpSucceeded { // out of band it disturbs nobody
		t.Fatalf("inspect: %+v", o.Error)
	}
	for verb, in := range map[string]obj{"inspect": {"mode": "inBand"}, "commission": {}, "retire": {"erase": "full"}, "power": {"action": "off"}} {
		in["nodeId"] = h.node
		if err := r.call(t, "metal/"+verb, in, nil); err == nil || err.Code != fleet.CodeInvalidState || err.Reason != "maybe-in-use" {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if got := h.Counts().Resets; len(got) != 0 || h.View(false).Power != "On" {
		t.Errorf("resets %v", got)
	}
	if o := h.do("inspect", obj{"inUse": false}); o.State != fleet.OpSucceeded {
		t.Fatalf("inspect: %+v", o.Error)
	}
	if o := h.do("commission", nil); o.State != fleet.OpSucceeded {
		t.Errorf("commission: %+v", o.Error)
	}
}

// relay is a way to a BMC that can be cut and mended.
type relay struct {
	t  *testing.T
	to string

	mu    sync.Mutex
	l     net.Listener
	dials int
}

// plug listens and returns where.
func (c *relay) plug(address string) string {
	c.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.l = l
	c.mu.Unlock()
	c.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.dials++
			c.mu.Unlock()
			go c.pass(conn)
		}
	}()
	return l.Addr().String()
}

func (c *relay) unplug() { _ = c.l.Close() }

func (c *relay) dialled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dials
}

func (c *relay) pass(conn net.Conn) {
	defer conn.Close()
	far, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer far.Close()
	go func() { _, _ = io.Copy(far, conn); _ = far.Close() }()
	_, _ = io.Copy(conn, far)
}
