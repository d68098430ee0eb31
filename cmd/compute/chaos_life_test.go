//go:build chaos

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// chaosLife takes one machine through lives, as its owner would who knows of no
// outage.
type chaosLife struct {
	*chaos
	r       *rand.Rand
	i, born int
	// machine is its id in the rack, node the node that it is now.
	machine, node string
	access        machine
	image         obj
}

// live takes each machine of the rack through its lives until the time is over
// and its last operation has ended.
func (c *chaos) live(wg *sync.WaitGroup) {
	var rack struct {
		Items []struct {
			ID string
			machine
		}
	}
	c.simulated("/sim/machines", &rack)
	var sum string
	c.simulated("/images/small.raw.sha256", &sum)
	image := obj{"url": c.env["BMCSIM_URL"] + "/images/small.raw", "format": "raw", "checksum": "sha256:" + strings.Fields(sum)[0]}
	for i, m := range rack.Items {
		l := &chaosLife{chaos: c, r: rand.New(rand.NewPCG(c.seed, uint64(i+1))), i: i, machine: m.ID, access: m.machine, image: image}
		wg.Go(func() {
			for time.Now().Before(c.until) && !c.t.Failed() {
				l.step()
			}
		})
	}
}

// ask calls a method at any of the APIs until it is answered, with one key; at
// times twice, which must be answered the same.
func (l *chaosLife) ask(method string, in obj, out *fleet.MetalOperationOut) *refusal {
	in["tenantId"] = l.env["COMPUTE_TENANT"]
	if l.node != "" {
		in["nodeId"] = l.node
	}
	key := fmt.Sprintf("%s-%x", l.machine, l.r.Uint64())
	var into any
	if out != nil {
		into = out
	}
	var r *refusal
	until(l.t, func() string {
		r = l.callAt(l.apis[l.r.IntN(len(l.apis))], method, in, into, "Idempotency-Key", key)
		unanswered := r != nil && (r.Status == 0 || r.RetryAfter != "")
		return missing(unanswered, "%s is not answered: %+v", method, r)
	})
	if r == nil && out != nil && out.Operation != nil && l.r.IntN(3) == 0 {
		var again fleet.MetalOperationOut
		until(l.t, func() string {
			p := l.callAt(l.apis[l.r.IntN(len(l.apis))], method, in, &again, "Idempotency-Key", key)
			if p != nil && p.Status != 0 && p.RetryAfter == "" {
				l.t.Errorf("the repeat of %s: %+v", method, *p)
			}
			return missing(p != nil && (p.Status == 0 || p.RetryAfter != ""), "the repeat of %s is not answered: %+v", method, p)
		})
		if again.Operation != nil && again.Operation.ID != out.Operation.ID {
			l.t.Errorf("the repeat of %s began %s beside %s", method, again.Operation.ID, out.Operation.ID)
		}
	}
	return r
}

// step calls one verb that the node's state admits and waits for its end.
func (l *chaosLife) step() {
	if l.node == "" {
		l.enroll()
		return
	}
	var out fleet.MetalOperationOut
	if r := l.ask("metal/get", obj{}, &out); r != nil {
		l.t.Errorf("metal/get: %+v", *r)
		return
	}
	n := out.Node
	l.aside()
	var from fleet.ProvisionState
	if n.Failed != nil {
		from = n.Failed.From
	}
	row, _ := fleet.RowFor(n.ProvisionState, from)
	verbs := slices.DeleteFunc(slices.Clone(row.Admits), func(v fleet.Verb) bool {
		return slices.Contains([]fleet.Verb{fleet.VerbRetry, fleet.VerbAbort, fleet.VerbUpdate, fleet.VerbSetCredentials}, v) ||
			v == fleet.VerbRetire && l.r.IntN(3) > 0 // or few are ever deployed
	})
	verb := verbs[l.r.IntN(len(verbs))]
	if n.ProvisionState == fleet.Ready && l.r.IntN(2) == 0 {
		verb = fleet.VerbDeploy
	}
	l.do(verb, n.ProvisionState)
}

func (l *chaosLife) do(verb fleet.Verb, at fleet.ProvisionState) {
	in := obj{}
	switch verb {
	case fleet.VerbDelete:
		if r := l.ask("nodes/delete", obj{}, nil); r != nil {
			l.t.Errorf("delete of a node that is %s: %+v", at, *r)
		}
		l.node = ""
		return
	case fleet.VerbInspect, fleet.VerbCommission:
		in["inUse"] = false
	case fleet.VerbDeploy:
		in["image"] = l.image
	case fleet.VerbRescue:
		in["sshKeys"] = []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIz7a5bA6aO0aZ2r0N0o7FZ2cGZ1S2sP0mYp2n6J8VQ1 a@b"}
	case fleet.VerbPower:
		in["action"], in["force"], in["reason"] = []string{"on", "off", "cycle", "reset"}[l.r.IntN(4)], true, "chaos"
	default:
	}
	var out fleet.MetalOperationOut
	if r := l.ask("metal/"+string(verb), in, &out); r != nil {
		// What the state admits can be refused for what is not there yet.
		if r.Code != fleet.CodeInvalidState || !slices.Contains([]string{"no-inventory", "no-whole-image"}, r.Reason) {
			l.t.Errorf("%s of a node that is %s: %+v", verb, at, *r)
		}
		return
	}
	l.await(out.Operation.ID, verb)
}

func (l *chaosLife) enroll() {
	l.born++
	in := obj{"siteId": l.env["COMPUTE_SITE"], "name": fmt.Sprintf("n-%d-%d", l.i, l.born), "inUse": false, "advance": "ready",
		"bmc": obj{"address": l.access.Address, "username": l.access.Username, "password": l.access.Password, "tls": obj{"mode": "pin"}}}
	var out fleet.MetalOperationOut
	if r := l.ask("metal/enroll", in, &out); r != nil {
		l.t.Errorf("enroll: %+v", *r)
		return
	}
	l.node = out.Node.ID
	l.await(out.Operation.ID, fleet.VerbEnroll)
}

// await waits for the end of an operation and of those that follow it by
// themselves. One of some is aborted, one of some held for a while.
func (l *chaosLife) await(id string, verb fleet.Verb) {
	l.tell(id)
	abort, hold := verb != fleet.VerbRetire && l.r.IntN(8) == 0, l.r.IntN(8) == 0
	at := time.Now().Add(time.Duration(l.r.IntN(4000)) * time.Millisecond)
	aborted := false
	var o fleet.Operation
	until(l.t, func() string {
		var out fleet.OperationOut
		if r := l.callAt(l.apis[l.r.IntN(len(l.apis))], "operations/get", obj{"tenantId": l.env["COMPUTE_TENANT"], "operationId": id}, &out); r != nil {
			return fmt.Sprintf("operation %s cannot be read: %+v", id, *r)
		}
		o = out.Operation
		over := o.EndedAt != nil || o.State == fleet.OpFailed
		switch {
		case over && o.Next != "":
			id = o.Next
			l.tell(id)
			return "it goes on with operation " + id
		case over:
			return ""
		case abort && time.Now().After(at):
			abort, aborted = false, true
			l.ask("metal/abort", obj{}, nil) // it may have ended
		case hold && time.Now().After(at):
			hold = false
			l.ask("metal/hold", obj{"reason": "chaos"}, nil)
			time.Sleep(time.Duration(l.r.IntN(2000)) * time.Millisecond)
			l.ask("metal/unhold", obj{}, nil)
		}
		return fmt.Sprintf("%s %s is %s: %+v, waiting for %+v", o.Verb, id, o.State, o.Steps, o.WaitingFor)
	})
	if o.State != fleet.OpSucceeded && !(aborted && o.State == fleet.OpAborted) {
		l.t.Errorf("%s %s of %s needs a person: %s, %+v", o.Verb, id, l.machine, o.State, o.Error)
	}
}

// aside changes something about the node beside its operations.
func (l *chaosLife) aside() {
	verb := []string{"cordon", "uncordon", "drain", "label", "", ""}[l.r.IntN(6)]
	in := obj{}
	switch verb {
	case "":
		return
	case "label":
		in["set"] = obj{"chaos": fmt.Sprint(l.r.IntN(10))}
	}
	if r := l.ask("nodes/"+verb, in, nil); r != nil {
		l.t.Errorf("%s: %+v", verb, *r)
	}
}
