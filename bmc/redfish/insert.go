package redfish

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
)

const protocolProperty = "TransferProtocolType"

// insertRun is one InsertMedia under way: what to send beside the image is
// learned from refusals.
type insertRun struct {
	*mediaRun
	slot  slot
	image string
	extra map[string]any
	// tried are the properties that were added or left out because of a refusal.
	tried map[string]bool
	tag   bool
	// sent counts requests that failed but may be repeated, refused those refused
	// without a reason.
	sent, refused int
}

// maxInserts bounds how often an image is inserted while the slot is busy.
const maxInserts = 5

// insertable are the parameters a service may miss, with what they are for a
// bootable CD read by URL.
func insertable(image string) map[string]any {
	m := map[string]any{"Inserted": true, "WriteProtected": true, "TransferMethod": "Stream", "MediaType": "CD"}
	if u, err := url.Parse(image); err == nil && u.Scheme != "" {
		m[protocolProperty] = strings.ToUpper(u.Scheme)
	}
	return m
}

// insert posts the image once, and again only with what a refusal showed to be
// missing or while the BMC was busy with something else.
func (r *mediaRun) insert(ctx context.Context, s slot, image string) error {
	run := &insertRun{mediaRun: r, slot: s, image: image, extra: map[string]any{}, tried: map[string]bool{}}
	allowed, err := r.c.protocols(ctx, s.Actions.Insert)
	if err != nil {
		return err
	}
	if p, ok := insertable(image)[protocolProperty].(string); ok && (slices.Contains(allowed, p) || r.c.knows(quirkProtocolType)) {
		run.extra[protocolProperty] = p
	}
	for {
		again, err := run.once(ctx)
		if err != nil || !again {
			return err
		}
	}
}

func (r *insertRun) once(ctx context.Context) (again bool, err error) {
	rq, err := r.request()
	if err != nil {
		return false, err
	}
	a, v, failed := r.send(ctx, rq)
	look := lookOnce
	switch {
	case failed == nil:
		look = lookToEnd
	case perhapsDone(a, v, failed):
		look = lookAWhile
	}
	now, reached, err := r.await(ctx, r.slot, func(s slot) bool { return s.shows(r.image) }, look)
	if err != nil || reached {
		return false, err
	}
	r.slot = now
	if r.learn(v) {
		return true, nil
	}
	if !r.mayRepeat(v, failed) {
		return false, failed
	}
	if look == lookAWhile {
		return true, nil // it was given its time
	}
	if err := r.c.pause(ctx, v, r.doing); err != nil {
		return false, err
	}
	if v.class != classConflict && v.class != classRefused {
		return true, nil
	}
	// What keeps the slot busy may be a request of ours whose answer was lost: it
	// is given its time before another is sent.
	_, reached, err = r.await(ctx, r.slot, func(s slot) bool { return s.shows(r.image) }, lookAWhile)
	return !reached, err
}

// mayRepeat says whether a request that failed is worth another try. Refused
// without a reason that names what we sent, it gets two more: some answer so
// while another transfer runs.
func (r *insertRun) mayRepeat(v verdict, failed error) bool {
	if time.Now().After(r.until) {
		return false
	}
	switch {
	case v.class == classLater, v.class == classConflict, bmc.KindOf(failed) == bmc.KindUnreachable:
		r.sent++
		return r.sent < maxInserts
	case v.class == classRefused && !r.aboutUs(v):
		r.refused++
		return r.refused < maxSends
	default:
		return false
	}
}

func (r *insertRun) request() (request, error) {
	body := map[string]any{"Image": r.image}
	for k, v := range r.extra {
		body[k] = v
	}
	rq := request{method: http.MethodPost, body: body, doing: r.doing}
	if a := r.slot.Actions.Insert; a != nil && a.Target != "" {
		path, err := r.c.local(a.Target)
		rq.path = path
		if r.tag {
			rq.ifMatch = r.slot.tag
		}
		return rq, err
	}
	// A slot without the action is filled by writing it.
	body["Inserted"] = true
	rq.method, rq.path, rq.ifMatch = http.MethodPatch, r.slot.path, r.slot.tag
	return rq, nil
}

// learn takes from a refusal what to add or leave out, each thing once.
func (r *insertRun) learn(v verdict) bool {
	if v.class == classPrecondition && !r.tag {
		r.tag = true
		return true
	}
	if v.class != classRefused {
		return false
	}
	learned := false
	for _, m := range v.msgs {
		for name, value := range insertable(r.image) {
			if !m.names(name) || r.tried[name] {
				continue
			}
			_, sent := r.extra[name]
			switch {
			case !sent && omitted.has(m.key()):
				r.extra[name] = value
				if name == protocolProperty {
					r.c.learn(quirkProtocolType)
				}
			case sent && (unwritable.has(m.key()) || badValue.has(m.key())):
				delete(r.extra, name)
			default:
				continue
			}
			r.tried[name], learned = true, true
		}
	}
	if _, ok := v.msgs.has(omitted); ok && !learned && !r.tried[protocolProperty] {
		// Something is missing and it is not said what: this is what usually is.
		if p, has := insertable(r.image)[protocolProperty]; has && r.extra[protocolProperty] == nil {
			r.extra[protocolProperty], r.tried[protocolProperty] = p, true
			return true
		}
	}
	return learned
}

// aboutUs says that a refusal is about what was sent, so that repeating it is
// pointless.
func (r *insertRun) aboutUs(v verdict) bool {
	for _, k := range []*meaning{omitted, unwritable, badValue, remote} {
		if _, ok := v.msgs.has(k); ok {
			return true
		}
	}
	return false
}
