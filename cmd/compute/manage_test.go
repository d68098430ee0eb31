package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// runningHost is the system that runs on a machine of the rack already.
type runningHost struct{ hw fleet.Hardware }

func (h runningHost) Hardware(context.Context) (fleet.Hardware, error) { return h.hw, nil }

func (h runningHost) Inventory(context.Context) (fleet.Inventory, error) {
	return fleet.Inventory{UUID: h.hw.UUID, Serial: h.hw.Serial}, nil
}

func (h runningHost) Acceptance(ctx context.Context) (fleet.AcceptanceFacts, error) {
	inv, err := h.Inventory(ctx)
	return fleet.AcceptanceFacts{Inventory: inv, DiskFreeBytes: 1 << 40, Kernel: "6.12.0"}, err
}

func (h runningHost) ApplySpec(context.Context, fleet.NodeSpec) (string, error) { return "", nil }
func (h runningHost) RemoveSpec(context.Context) error                          { return nil }

// adopt joins the system that runs on a machine, and waits until it is adopted.
func (r *rig) adopt(t *testing.T, h *host) {
	t.Helper()
	v := h.View(true)
	var token fleet.JoinTokenSecretOut
	if err := r.call(t, "joinTokens/create", obj{"siteId": r.site, "ttlSeconds": 600, "maxUses": 1}, &token); err != nil {
		t.Fatal(err)
	}
	state, member := agent.State{Dir: t.TempDir()}, runningHost{fleet.Hardware{UUID: v.UUID, Serial: v.Serial, MACs: v.MACs}}
	id, err := agent.Join(t.Context(), agent.JoinConfig{GatewayURL: r.store.GatewayURL, CAFingerprint: r.ca, Token: token.Secret, State: state,
		Log: slog.New(slog.DiscardHandler)}, member)
	if err != nil {
		t.Fatal(err)
	}
	h.node = id.NodeID
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = agent.Serve(ctx, agent.ServeConfig{State: state, Host: member, Log: slog.New(slog.DiscardHandler)}) // stopped below
	}()
	t.Cleanup(func() { stop(); <-ended })
	for deadline := time.Now().Add(rigPatience); h.shown().ProvisionState != fleet.Adopted; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not adopted: %+v", h.shown())
		}
	}
}

// An adopted host gets a BMC only when that proves to be its own, by what the
// agent reported; then its power can be changed, and nothing else.
func testManage(t *testing.T, r *rig) {
	h, other := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 21, Power: "On"}), r.add(t, sim.MachineSpec{Profile: "generic", Seed: 22, Power: "On"})
	r.adopt(t, h)
	bmc := func(m *host) obj {
		return obj{"bmc": obj{"address": m.Address(), "username": m.Username(), "password": m.Password(), "tls": obj{"mode": "pin"}}}
	}
	if o := h.do("manage", bmc(other)); o.State != fleet.OpFailed || o.Error == nil || o.Error.Code != "no-proof" {
		t.Errorf("another machine's BMC: %s, %+v", o.State, o.Error)
	}
	if m := h.metal(); m.BMC != nil || m.ProvisionState != fleet.Adopted {
		t.Errorf("without proof: %s, BMC %+v", m.ProvisionState, m.BMC)
	}
	if err := r.call(t, "metal/power", obj{"nodeId": h.node, "action": "reset", "force": true, "reason": "test"}, nil); err == nil || err.Reason != "guarded" {
		t.Errorf("power without a BMC: %v", err)
	}
	h.mustEnd(h.do("manage", bmc(h)))
	if m := h.metal(); m.BMC == nil || m.BMC.Identity.UUID == "" || !m.Guarded || m.ProvisionState != fleet.Adopted {
		t.Errorf("managed: %+v", m)
	}
	h.mustEnd(h.do("power", obj{"action": "reset", "force": true, "reason": "test"}))
	for _, m := range []*host{h, other} {
		if resets := m.View(true).State.Counts.Resets; len(resets) != map[bool]int{true: 1, false: 0}[m == h] {
			t.Errorf("resets of %s: %v", m.ID(), resets)
		}
	}
}
