package redfish

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/bettercompute/compute/bmc"
)

// logIn makes the client ready to speak: the session of the last holder of the
// lease is taken over, else a new one is opened. A service without sessions is
// spoken to with Basic authentication.
func (c *Client) logIn(ctx context.Context) error {
	if s := c.opts.Session; s != nil {
		uri, token, err := s.Load(ctx)
		if err != nil {
			return err
		}
		if token != "" {
			c.sessionURI, c.token = uri, token
			c.secrets = append(c.secrets, token)
			return nil
		}
	}
	return c.newSession(ctx)
}

// newSession logs in once. The caller's cancellation does not reach the
// request: a session that was opened without anybody knowing its token would
// stay in the BMC's small table until it times out there.
func (c *Client) newSession(ctx context.Context) error {
	doing := "log in to " + c.name() + " as " + c.target.Username
	if err := c.sleep(ctx, 0, doing); err != nil {
		return err
	}
	link := c.root.sessions()
	if link == "" {
		return c.useBasic(ctx)
	}
	path, err := c.local(link)
	if err != nil {
		return err
	}
	rq := request{method: http.MethodPost, path: path, doing: doing,
		body: map[string]string{"UserName": c.target.Username, "Password": c.target.Password}}
	a, err := c.send(context.WithoutCancel(ctx), rq, true)
	if err != nil {
		return err
	}
	v := classify(a)
	switch v.class {
	case classDone:
		return c.takeSession(ctx, a, doing)
	case classMissing, classUnsupported:
		return c.useBasic(ctx)
	case classPassword:
		// No session before the password is changed, which Basic authentication
		// may do.
		c.noteMustChange(v.msgs)
		c.basic = true
		return c.noSession(ctx)
	case classRefused, classAuth:
		// Some answer a wrong password with 400 or 403.
		v.class = classSession
	default:
	}
	return c.failure(doing, a, v)
}

func (c *Client) useBasic(ctx context.Context) error {
	c.basic = true
	c.learn(quirkBasicAuth)
	return c.noSession(ctx)
}

// noSession tells the store that this login makes none.
func (c *Client) noSession(ctx context.Context) error {
	if s := c.opts.Session; s != nil {
		return s.Save(ctx, "", "")
	}
	return nil
}

func (c *Client) takeSession(ctx context.Context, a *answer, doing string) error {
	token := a.header.Get("X-Auth-Token")
	if token == "" {
		return &bmc.Error{Kind: bmc.KindProtocol, Doing: doing, Cause: "it answered a login without a token", Remedy: "try again"}
	}
	link := a.header.Get("Location")
	if link == "" {
		var body struct {
			ID string `json:"@odata.id"`
		}
		_ = json.Unmarshal(a.body, &body) // no link: the session cannot be deleted by us, and ends by itself
		link = body.ID
	}
	c.secrets = append(c.secrets, token)
	c.token, c.sessionURI = token, ""
	if link != "" {
		uri, err := c.local(link)
		if err != nil {
			c.token = ""
			return err
		}
		c.sessionURI = uri
	}
	c.noteMustChange(messagesOf(a.body))
	if s := c.opts.Session; s != nil {
		if err := s.Save(context.WithoutCancel(ctx), c.sessionURI, c.token); err != nil {
			// One that nobody knows of would take a place until it times out.
			_ = c.deleteSession(ctx) // then it does
			return err
		}
	}
	return nil
}

// noteMustChange remembers that the account can do nothing before its password
// is changed, and which account it is where the message says so.
func (c *Client) noteMustChange(ms messages) {
	m, ok := ms.has(mustChange)
	if !ok {
		return
	}
	c.mustChange = true
	for _, arg := range m.MessageArgs {
		if s, ok := arg.(string); ok && strings.HasPrefix(s, "/") {
			c.ownAccount = s
		}
	}
}

// renewSession replaces a session whose token is no longer good, by the one that
// another holder has made meanwhile, if it has.
func (c *Client) renewSession(ctx context.Context) error {
	c.token, c.sessionURI = "", ""
	if s := c.opts.Session; s != nil {
		if err := s.Save(ctx, "", ""); err != nil {
			return err
		}
	}
	return c.logIn(ctx)
}

// Close deletes the session unless the store keeps it for the next holder, and
// closes the connections. It works with a context that is already cancelled.
func (c *Client) Close(ctx context.Context) error {
	defer c.http.CloseIdleConnections()
	if s := c.opts.Session; s != nil && s.Keep() {
		return nil
	}
	return c.endSession(ctx)
}

func (c *Client) endSession(ctx context.Context) error {
	if c.token == "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if err := c.deleteSession(ctx); err != nil {
		return err
	}
	if s := c.opts.Session; s != nil {
		return s.Save(ctx, "", "")
	}
	return nil
}

// deleteSession logs out.
func (c *Client) deleteSession(ctx context.Context) error {
	if uri := c.sessionURI; uri != "" {
		if wait := c.quiet(); wait > c.waits.Request {
			return &bmc.Error{Kind: bmc.KindBusy, Doing: "log out of " + c.name(), Cause: "the BMC asked to be left alone", RetryAfter: wait}
		}
		rq := request{method: http.MethodDelete, path: uri, doing: "log out of " + c.name()}
		a, err := c.send(context.WithoutCancel(ctx), rq, false)
		if err != nil {
			return err
		}
		// A session that is no longer known is as good as deleted.
		if v := classify(a); v.class != classDone && v.class != classSession && v.class != classMissing {
			return c.failure(rq.doing, a, v)
		}
	}
	c.token, c.sessionURI = "", ""
	return nil
}
