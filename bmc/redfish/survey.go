package redfish

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/bettercompute/compute/bmc"
)

var _ bmc.Surveyor = (*Client)(nil)

// Survey reads how the service does things.
func (c *Client) Survey(ctx context.Context) (bmc.Survey, error) {
	out := bmc.Survey{Protocol: strings.TrimSpace("Redfish " + c.root.RedfishVersion), Product: strings.TrimSpace(clean(c.root.Vendor) + " " + clean(c.root.Product)),
		Login: "session", Sessions: -1, Tasks: string(c.root.Tasks), Events: string(c.root.EventService),
		Accounts: string(c.root.AccountService), Updates: string(c.root.UpdateService)}
	if c.basic {
		out.Login = "basic"
	}
	if err := c.surveySessions(ctx, &out); err != nil {
		return out, err
	}
	all, err := c.listSystems(ctx, "read the systems of "+c.name())
	if err != nil {
		return out, err
	}
	for _, s := range all {
		if s.candidate() {
			out.Candidates = append(out.Candidates, s.path)
		} else {
			out.Parts = append(out.Parts, s.path)
		}
	}
	s, err := c.findSystem(ctx)
	if err != nil {
		return out, err
	}
	out.ETag = s.tag != ""
	return out, c.surveySystem(ctx, s, &out)
}

// surveySessions reads what the session service shows of itself. Services that
// show it to nobody but their own pages are left with "not shown".
func (c *Client) surveySessions(ctx context.Context, out *bmc.Survey) error {
	doing := "read the sessions of " + c.name()
	if l := string(c.root.SessionService); l != "" {
		r, err := c.get(ctx, l, doing)
		if hidden(err) {
			err = nil
		}
		if err != nil {
			return err
		}
		var svc struct{ SessionTimeout float64 }
		_ = json.Unmarshal(r.raw, &svc) // one that shows no time has none
		out.SessionTimeout = time.Duration(svc.SessionTimeout) * time.Second
	}
	if l := c.root.sessions(); l != "" && !c.basic {
		open, err := c.members(ctx, l, doing)
		if hidden(err) {
			return nil
		}
		out.Sessions = len(open)
		return err
	}
	return nil
}

// hidden says that a resource exists for others than us, or for nobody.
func hidden(err error) bool {
	k := bmc.KindOf(err)
	return k == bmc.KindUnsupported || k == bmc.KindAuth || k == bmc.KindRefused
}

func (c *Client) surveySystem(ctx context.Context, s system, out *bmc.Survey) error {
	types, _, err := c.resetTypes(ctx, s)
	switch {
	case err != nil:
		return err
	case len(s.more.Actions.Reset.Types) > 0:
		out.ResetTypesFrom = "inline"
	case len(types) > 0:
		out.ResetTypesFrom = "actionInfo"
	default:
		out.ResetTypesFrom = "none"
	}
	home, err := c.bootHome(ctx, s)
	if err != nil && !missing(err) {
		return err
	}
	if err == nil {
		out.BootHome, out.BootInSettings = home.path, home.settings
	}
	if err := c.surveyMedia(ctx, s, out); err != nil {
		return err
	}
	managers, err := c.managers(ctx, s)
	if err != nil {
		return err
	}
	services := []common.Link{s.more.LogServices}
	for _, m := range managers {
		services = append(services, m.more.LogServices)
	}
	for _, l := range services {
		if l == "" {
			continue
		}
		logs, err := c.members(ctx, string(l), "read the logs of "+c.name())
		if err != nil && !hidden(err) {
			return err
		}
		out.Logs = append(out.Logs, logs...)
	}
	return nil
}

func (c *Client) surveyMedia(ctx context.Context, s system, out *bmc.Survey) error {
	slots, err := c.slots(ctx, s)
	if err != nil && !missing(err) {
		return err
	}
	for _, sl := range slots {
		protocols, err := c.protocols(ctx, sl.Actions.Insert)
		if err != nil {
			return err
		}
		m := bmc.MediaSlot{Path: sl.path, Under: "manager", Holds: sl.holds(), Protocols: protocols}
		if l := string(s.more.VirtualMedia); l != "" && strings.HasPrefix(sl.path, trimSlash(l)+"/") {
			m.Under = "system"
		}
		out.Media = append(out.Media, m)
	}
	return nil
}
