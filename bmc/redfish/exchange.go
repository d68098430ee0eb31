package redfish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// maxBody bounds an answer; the largest known is an expanded inventory of some
// 3 MiB.
const maxBody = 16 << 20

// request is one request to the BMC.
type request struct {
	method, path string
	body         any
	ifMatch      string
	// doing is what the request is for, as the error will say it.
	doing string
}

// answer is what came back, whatever its status.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// etag is the resource's tag: the header's, else the body's.
func (a *answer) etag() string {
	if t := a.header.Get("ETag"); t != "" {
		return t
	}
	return a.bodyTag()
}

func (a *answer) bodyTag() string {
	var t struct {
		ETag string `json:"@odata.etag"`
	}
	if json.Unmarshal(a.body, &t) != nil {
		return ""
	}
	return t.ETag
}

// send makes one exchange with the present credentials. It waits first while
// the BMC asked to be left alone. An error means that no answer came; it is a
// *bmc.Error that says whether the request can have been read.
func (c *Client) send(ctx context.Context, rq request, login bool) (*answer, error) {
	if err := c.sleep(ctx, c.quiet(), rq.doing); err != nil {
		return nil, err
	}
	rctx, cancel := context.WithTimeout(ctx, c.waits.Request)
	defer cancel()
	req, err := c.newRequest(rctx, rq, login)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	ex := bmc.Exchange{At: start, Method: rq.method, Path: rq.path}
	defer func() {
		if c.opts.Observe != nil {
			ex.Millis = time.Since(start).Milliseconds()
			c.opts.Observe(ex)
		}
	}()
	resp, err := c.http.Do(req)
	if err != nil {
		err = c.transportError(ctx, rq, err)
		ex.Error = err.Error()
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	ex.Status = a.status
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	ex.MessageID = messagesOf(a.body).first()
	c.noteHint(a)
	if err != nil && rq.method == http.MethodGet {
		err = c.transportError(ctx, rq, err)
		ex.Error = err.Error()
		return nil, err
	}
	return a, nil // of a change, the status is kept though its body was cut
}

func (c *Client) newRequest(ctx context.Context, rq request, login bool) (*http.Request, error) {
	var body io.Reader
	if rq.body != nil {
		b, err := json.Marshal(rq.body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rq.doing, err)
		}
		body = bytes.NewReader(b)
	}
	u, err := c.base.Parse(rq.path)
	if err != nil {
		return nil, c.foreign(rq.path, err)
	}
	req, err := http.NewRequestWithContext(ctx, rq.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rq.doing, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("OData-Version", "4.0")
	req.Header.Set("User-Agent", "compute")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if rq.ifMatch != "" {
		req.Header.Set("If-Match", rq.ifMatch)
	}
	switch {
	case login:
	case c.token != "":
		req.Header.Set("X-Auth-Token", c.token)
	case c.basic:
		req.SetBasicAuth(c.target.Username, c.target.Password)
	}
	return req, nil
}

// noteHint keeps a hint as the earliest time of the next request: "no request
// earlier than hinted" holds for every request to this BMC.
func (c *Client) noteHint(a *answer) {
	if v := classify(a); v.hint > 0 {
		if at := time.Now().Add(c.scaled(v.hint)); at.After(c.notBefore) {
			c.notBefore = at
			if c.opts.Hinted != nil {
				c.opts.Hinted(at)
			}
		}
	}
}

// quiet is how long the BMC is still to be left alone, as it asked this
// conversation or one before.
func (c *Client) quiet() time.Duration {
	if c.opts.NotBefore != nil {
		if at := c.opts.NotBefore(); at.After(c.notBefore) {
			c.notBefore = at
		}
	}
	return time.Until(c.notBefore)
}

// scaled shortens a hint for a simulated rack that runs faster.
func (c *Client) scaled(d time.Duration) time.Duration {
	if s := c.waits.Scale; s > 0 && s != 1 {
		return time.Duration(float64(d) / s)
	}
	return d
}

// transportError says what a missing answer means.
func (c *Client) transportError(ctx context.Context, rq request, err error) error {
	var own *ownError
	if errors.As(err, &own) {
		return fmt.Errorf("%s: %w", rq.doing, own.err)
	}
	var known *bmc.Error
	if errors.As(err, &known) {
		e := *known
		e.Doing = rq.doing + ": " + e.Doing
		return &e
	}
	if ctx.Err() != nil {
		return c.ended(ctx, rq.doing)
	}
	e := &bmc.Error{Kind: bmc.KindUnreachable, Doing: rq.doing, Err: err,
		Cause: "no answer: " + c.redact(err.Error()), Remedy: "see whether the BMC answers at " + c.name()}
	if rq.method != http.MethodGet && !unsent(err) {
		e.Cause = "the answer was lost, the outcome is unknown: " + c.redact(err.Error())
	} else {
		e.Unsent = true
	}
	return e
}

// unsent says that an error came before the first byte of a request.
func unsent(err error) bool {
	var d *dialError
	return errors.As(err, &d)
}

// notSent says the same of an error made by transportError.
func notSent(err error) bool {
	var e *bmc.Error
	return errors.As(err, &e) && e.Unsent
}

// ended is the error for a context that is over.
func (c *Client) ended(ctx context.Context, doing string) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	return &bmc.Error{Kind: bmc.KindTimeout, Doing: doing, Cause: "the time given for it is over",
		Remedy: "try again", Err: ctx.Err()}
}

// sleep waits, or ends with the context.
func (c *Client) sleep(ctx context.Context, d time.Duration, doing string) error {
	if ctx.Err() != nil {
		return c.ended(ctx, doing)
	}
	if d <= 0 {
		return nil
	}
	if time.Now().Before(c.notBefore) && !c.within(ctx, d) {
		return &bmc.Error{Kind: bmc.KindBusy, Doing: doing, RetryAfter: time.Until(c.notBefore),
			Cause: "the BMC asked to wait longer than there is time", Remedy: "try again later"}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return c.ended(ctx, doing)
	case <-t.C:
		return nil
	}
}

// within says whether a wait the BMC asked for fits the time there is.
func (c *Client) within(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return d <= c.waits.Change && (!ok || time.Until(deadline) > d)
}
