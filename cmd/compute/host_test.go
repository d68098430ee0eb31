package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// host is a machine of the rack, and its node once it is enrolled.
type host struct {
	*sim.Machine
	r    *rig
	t    testing.TB
	node string
	tls  obj
}

// add puts a machine into the rack.
func (r *rig) add(t testing.TB, spec sim.MachineSpec) *host {
	t.Helper()
	m, err := r.rack.Add(spec)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Machine: m, r: r, t: t, tls: obj{"mode": "pin"}}
	t.Cleanup(func() {
		if t.Failed() {
			h.show()
		}
		r.rack.Remove(m.ID())
	})
	return h
}

// show logs what the machine was asked and what its node's operations came to.
func (h *host) show() {
	for _, q := range h.Requests() {
		h.t.Logf("%s %s %s -> %d %s %v", q.At.Format("15:04:05.000"), q.Method, q.Path, q.Status, q.Body, q.Rules)
	}
	if h.node == "" {
		return
	}
	var page fleet.OperationsPage
	if err := h.r.call(h.t, "operations/list", obj{"nodeId": h.node}, &page); err != nil {
		h.t.Log(err)
	}
	for _, o := range page.Items {
		h.t.Logf("%s %s: error %+v, left behind %q, steps %+v", o.Verb, o.State, o.Error, o.LeftBehind, o.Steps)
	}
}

// faults puts a fault file on the machine.
func (h *host) faults(f *sim.FaultFile) {
	h.t.Helper()
	if err := h.SetFaults(f); err != nil {
		h.t.Fatal(err)
	}
}

// enroll enrolls the machine as unused and returns the ended operation.
func (h *host) enroll(more obj) fleet.Operation {
	h.t.Helper()
	in := obj{"siteId": h.r.site, "name": strings.ToLower(h.ID()), "inUse": false,
		"bmc": obj{"address": h.Address(), "username": h.Username(), "password": h.Password(), "tls": h.tls}}
	for k, v := range more {
		in[k] = v
	}
	var out fleet.MetalOperationOut
	if err := h.r.call(h.t, "metal/enroll", in, &out); err != nil {
		h.t.Fatalf("enroll: %v", err)
	}
	h.node = out.Node.ID
	return h.await(out.Operation.ID)
}

// begin starts a verb and returns its operation as it was accepted.
func (h *host) begin(verb string, more obj) fleet.Operation {
	h.t.Helper()
	in := obj{"nodeId": h.node}
	for k, v := range more {
		in[k] = v
	}
	var out fleet.MetalOperationOut
	if err := h.r.call(h.t, "metal/"+verb, in, &out); err != nil {
		h.t.Fatalf("%s: %v", verb, err)
	}
	return *out.Operation
}

// do runs a verb to its end.
func (h *host) do(verb string, more obj) fleet.Operation {
	h.t.Helper()
	return h.await(h.begin(verb, more).ID)
}

// operation reads an operation.
func (h *host) operation(id string) fleet.Operation {
	h.t.Helper()
	var out fleet.OperationOut
	if err := h.r.call(h.t, "operations/get", obj{"operationId": id}, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Operation
}

// await waits until an operation, and those that its chain adds, has ended or
// is parked.
func (h *host) await(id string) fleet.Operation {
	h.t.Helper()
	return h.until(id, func(o fleet.Operation) bool {
		return o.State == fleet.OpFailed || o.EndedAt != nil
	})
}

// until waits until an operation is as wanted; of a chain, the last.
func (h *host) until(id string, wanted func(fleet.Operation) bool) fleet.Operation {
	h.t.Helper()
	deadline := time.Now().Add(rigPatience)
	for {
		o := h.operation(id)
		switch {
		case wanted(o) && o.Next == "":
			return o
		case o.Next != "":
			id = o.Next
		case time.Now().After(deadline):
			h.t.Fatalf("%s of %s is %s for too long: %+v", o.Verb, h.ID(), o.State, o.Steps)
		default:
			if err := h.r.call(h.t, "operations/wait", obj{"operationId": id, "timeoutSeconds": 1}, nil); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

// poll looks until something is so.
func (h *host) poll(what string, so func() bool) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(rigPatience); !so(); <-tick.C {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: %s never came", h.ID(), what)
		}
	}
}

// metal is the node's metal view.
func (h *host) metal() fleet.MetalNode {
	h.t.Helper()
	var out fleet.MetalOut
	if err := h.r.call(h.t, "metal/get", obj{"nodeId": h.node}, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Node
}

// condition is a condition of the node, "" where it has none of that type.
func (h *host) condition(kind string) fleet.ConditionStatus {
	h.t.Helper()
	var out fleet.NodeOut
	if err := h.r.call(h.t, "nodes/get", obj{"nodeId": h.node}, &out); err != nil {
		h.t.Fatal(err)
	}
	for _, c := range out.Node.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// told is the data of an operation's event of a type.
func (h *host) told(operation, kind string) string {
	h.t.Helper()
	var data string
	err := h.r.store.Pool().QueryRow(context.Background(), `SELECT data::text FROM events WHERE node_id = $1 AND type = $2 AND data->>'operationId' = $3`,
		h.node, kind, operation).Scan(&data)
	if err != nil {
		h.t.Fatalf("event %s: %v", kind, err)
	}
	return data
}

// heard says whether the node has an event of a type.
func (h *host) heard(kind string) bool {
	h.t.Helper()
	var heard bool
	if err := h.r.store.Pool().QueryRow(context.Background(), `SELECT EXISTS (SELECT FROM events WHERE node_id = $1 AND type = $2)`, h.node, kind).Scan(&heard); err != nil {
		h.t.Fatal(err)
	}
	return heard
}
