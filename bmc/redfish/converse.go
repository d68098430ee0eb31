package redfish

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// authed sends a request with the session. A token that is no longer good is
// replaced by one fresh login and the request sent once more; the BMC refused
// it unread, so that holds for changes too. A second refusal ends it.
func (c *Client) authed(ctx context.Context, rq request) (*answer, verdict, error) {
	a, err := c.send(ctx, rq, false)
	if err != nil {
		return nil, verdict{}, err
	}
	v := classify(a)
	if v.class == classSession && c.token != "" {
		if err := c.renewSession(ctx); err != nil {
			return nil, verdict{}, err
		}
		if a, err = c.send(ctx, rq, false); err != nil {
			return nil, verdict{}, err
		}
		v = classify(a)
	}
	if v.class == classPassword {
		c.noteMustChange(v.msgs)
	}
	return a, v, nil
}

// read makes a GET and waits, as told, while the BMC is not ready. A
// connection that breaks is tried again twice.
func (c *Client) read(ctx context.Context, rq request, login bool) (*answer, error) {
	until := time.Now().Add(c.waits.Change)
	broken := 0
	for {
		a, v, err := c.readOnce(ctx, rq, login)
		switch {
		case bmc.KindOf(err) == bmc.KindUnreachable && broken < 2:
			broken++
			if err := c.sleep(ctx, c.waits.Poll, rq.doing); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		case v.class == classDone:
			return a, nil
		}
		failed := c.failure(rq.doing, a, v)
		if v.class != classLater && v.class != classConflict || time.Now().After(until) {
			return nil, failed
		}
		if err := c.pause(ctx, v, rq.doing); err != nil {
			return nil, err
		}
	}
}

func (c *Client) readOnce(ctx context.Context, rq request, login bool) (*answer, verdict, error) {
	if !login {
		return c.authed(ctx, rq)
	}
	a, err := c.send(ctx, rq, true)
	if err != nil {
		return nil, verdict{}, err
	}
	return a, classify(a), nil
}

// pause waits before something is tried again: as long as the BMC asked, else
// the usual time.
func (c *Client) pause(ctx context.Context, v verdict, doing string) error {
	wait := c.waits.Busy
	if v.hint > 0 {
		wait = c.quiet()
	}
	if v.post { // it ends in minutes: asking more often than usual helps nobody
		wait = max(wait, c.waits.Busy)
	}
	return c.sleep(ctx, wait, doing)
}

// change sends a changing request once, after the lease was checked. What the
// answer means is the caller's to judge; an error means that none came.
func (c *Client) change(ctx context.Context, rq request) (*answer, verdict, error) {
	if err := c.mayChange(ctx, rq.doing); err != nil {
		return nil, verdict{}, err
	}
	return c.authed(ctx, rq)
}

// mayChange waits as long as the BMC asked, then has the lease judged, at the
// moment of sending.
func (c *Client) mayChange(ctx context.Context, doing string) error {
	if err := c.sleep(ctx, c.quiet(), doing); err != nil {
		return err
	}
	if c.opts.BeforeChange == nil {
		return nil
	}
	return c.opts.BeforeChange(ctx)
}

// resource is a resource as it was read.
type resource struct {
	path string
	raw  json.RawMessage
	// tag is the ETag, bodyTag the one in the body, "" where there is none.
	tag, bodyTag string
}

// get reads a resource by its link.
func (c *Client) get(ctx context.Context, link, doing string) (resource, error) {
	path, err := c.local(link)
	if err != nil {
		return resource{}, err
	}
	rq := request{method: http.MethodGet, path: path, doing: doing}
	r := resource{path: path}
	var last error
	for try := range 3 {
		if try > 0 {
			if err := c.sleep(ctx, c.waits.Poll, doing); err != nil {
				return resource{}, err
			}
		}
		a, err := c.read(ctx, rq, false)
		if err != nil {
			return resource{}, err
		}
		var object map[string]json.RawMessage
		if last = json.Unmarshal(a.body, &object); last == nil && object != nil {
			r.raw, r.tag, r.bodyTag = a.body, a.etag(), a.bodyTag()
			return r, nil
		}
	}
	return resource{}, c.nonsense(doing, last)
}

func (c *Client) nonsense(doing string, err error) error {
	cause := "the answer is no JSON object"
	if err != nil {
		cause = "the answer is not the JSON it should be: " + err.Error()
	}
	return &bmc.Error{Kind: bmc.KindProtocol, Doing: doing, Cause: cause,
		Remedy: "try again; restart the BMC if it stays so", Err: err}
}
