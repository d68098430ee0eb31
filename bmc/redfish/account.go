package redfish

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// SetPassword changes the password of the account in use and proves it by a
// fresh login. Whether the change was acted upon is never taken from the
// answer alone: the new password either logs in or it does not.
func (c *Client) SetPassword(ctx context.Context, password string) error {
	c.secrets = append(c.secrets, password)
	doing := fmt.Sprintf("set the password of %s on %s", c.target.Username, c.name())
	if !c.mustChange { // nothing else can be read before the password is changed
		if _, err := c.mine(ctx); err != nil && !c.mustChange {
			return err
		}
	}
	until := time.Now().Add(c.waits.Change)
	tag := 0
	for lost := 0; ; {
		acc, err := c.account(ctx, doing)
		if err != nil {
			return err
		}
		rq := request{method: http.MethodPatch, path: acc.path, ifMatch: ifMatch(acc, tag), doing: doing, body: map[string]any{"Password": password}}
		a, v, err := c.change(ctx, rq)
		switch {
		case err == nil && v.class == classDone:
			if err := c.follow(ctx, a, until, doing); err != nil {
				return err
			}
			return c.prove(ctx, password, doing)
		case err == nil && v.class == classPrecondition && tag < maxTagRefusals:
			tag++
			continue
		case err == nil && v.class != classLater && v.class != classConflict:
			return c.failure(doing, a, v)
		case err != nil && (bmc.KindOf(err) != bmc.KindUnreachable || notSent(err)):
			return err
		}
		if err != nil || outcomeUnknown(a, v) { // it may have been set, and if not, is set once more
			proved := c.prove(ctx, password, doing)
			if lost++; lost > 1 || bmc.KindOf(proved) != bmc.KindRefused {
				return proved
			}
			continue
		}
		if time.Now().After(until) {
			return c.failure(doing, a, v)
		}
		if err := c.pause(ctx, v, doing); err != nil {
			return err
		}
	}
}

// account finds the account in use: the one the BMC named, or the one with our
// user name.
func (c *Client) account(ctx context.Context, doing string) (resource, error) {
	if c.ownAccount != "" {
		path, err := c.local(c.ownAccount)
		if err != nil {
			return resource{}, err
		}
		r, err := c.get(ctx, path, doing)
		if err != nil {
			// While the password must be changed some let it be written but not read.
			//lint:ignore nilerr the write says what is wrong
			return resource{path: path}, nil
		}
		return r, nil
	}
	if c.root.AccountService == "" {
		return resource{}, &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: "the service has no accounts", Remedy: "change the password at the BMC itself, then metal/setCredentials without rotate"}
	}
	r, err := c.get(ctx, string(c.root.AccountService), doing)
	if err != nil {
		return resource{}, err
	}
	svc, _, err := decode[struct{ Accounts common.Link }](r.raw)
	if err != nil {
		return resource{}, c.nonsense(doing, err)
	}
	links, err := c.members(ctx, string(svc.Accounts), doing)
	if err != nil {
		return resource{}, err
	}
	var found []resource
	for _, l := range links {
		r, err := c.get(ctx, l, doing)
		if missing(err) {
			continue
		}
		if err != nil {
			return resource{}, err
		}
		acc, _, err := decode[redfish.ManagerAccount](r.raw)
		if err == nil && acc.UserName == c.target.Username {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return resource{}, &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: fmt.Sprintf("%d accounts are named %q; nothing was changed", len(found), c.target.Username),
			Remedy: "an account of a directory cannot be rotated; use a local one"}
	}
	return found[0], nil
}

// prove logs in with the new password. Only then is it the client's own, and
// the session of the old one ended.
func (c *Client) prove(ctx context.Context, password, doing string) error {
	old := *c
	c.target.Password = password
	c.token, c.sessionURI, c.mustChange, c.ownAccount = "", "", false, ""
	err := c.login(ctx)
	if err != nil {
		c.target.Password, c.token, c.sessionURI = old.target.Password, old.token, old.sessionURI
		c.mustChange, c.ownAccount = old.mustChange, old.ownAccount
		if bmc.KindOf(err) == bmc.KindAuth {
			return &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: "the new password does not log in; the old one was kept", Remedy: "see the BMC's rules for passwords and try again", Err: err}
		}
		return err
	}
	if old.token != "" && old.sessionURI != "" {
		// The old session may have ended with the old password.
		_, _, err := c.authed(ctx, request{method: http.MethodDelete, path: old.sessionURI, doing: "log out the old session of " + c.name()})
		return err
	}
	return nil
}

// login is a fresh login that is proved by a read where there are no sessions.
func (c *Client) login(ctx context.Context) error {
	for {
		err := c.newSession(ctx)
		if bmc.KindOf(err) == bmc.KindBusy {
			if err := c.sleep(ctx, c.waits.Busy, "log in to "+c.name()); err != nil {
				return err
			}
			continue
		}
		if err != nil || !c.basic {
			return err
		}
		_, err = c.findSystem(ctx)
		return err
	}
}
