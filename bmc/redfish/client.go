package redfish

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/bettercompute/compute/bmc"
)

// The quirks a BMC can be learned to have, as they are stored and shown.
const (
	quirkBasicAuth    = "basic-auth"
	quirkBootSettings = "boot-in-settings-resource"
	quirkBootLive     = "boot-not-in-settings-resource"
	quirkBootMode     = "boot-mode-must-be-sent"
	quirkNoBootMode   = "boot-mode-not-writable"
	quirkProtocolType = "media-needs-transfer-protocol-type"
)

// Client is a conversation with one BMC over Redfish.
type Client struct {
	target bmc.Target
	opts   bmc.Options
	waits  bmc.Waits
	base   *url.URL
	http   *http.Client
	dialer *dialer
	root   root

	token, sessionURI string
	basic             bool
	// mustChange is true while the account may only change its password.
	mustChange bool
	// ownAccount is the account's link, where the BMC named it.
	ownAccount string
	// notBefore is the earliest time of the next request, as the BMC asked.
	notBefore time.Time
	// bootWritten is when a boot override was written last.
	bootWritten time.Time
	// system is the path of the chosen ComputerSystem once it is known.
	system string
	quirks []string
	// secrets are what must not appear in an error.
	secrets []string
}

var _ bmc.Client = (*Client)(nil)

// Open reads the service root, which needs no login, and logs in. The returned
// client is a bmc.Client; it must be closed.
func Open(ctx context.Context, target bmc.Target, opts bmc.Options) (*Client, error) {
	c, err := connect(target, opts)
	if err != nil {
		return nil, err
	}
	if err := c.readRoot(ctx); err != nil {
		c.http.CloseIdleConnections()
		return nil, err
	}
	if err := c.logIn(ctx); err != nil {
		c.http.CloseIdleConnections()
		return nil, err
	}
	return c, nil
}

// Probe says whether a Redfish service answers at an address, without a login.
// The error's kind tells what was found instead: KindUnsupported when something
// answers that is no Redfish service.
func Probe(ctx context.Context, target bmc.Target, opts bmc.Options) error {
	c, err := connect(target, opts)
	if err != nil {
		return err
	}
	defer c.http.CloseIdleConnections()
	return c.readRoot(ctx)
}

func connect(target bmc.Target, opts bmc.Options) (*Client, error) {
	base, err := url.Parse(target.Address.String() + serviceRoot)
	if err != nil {
		return nil, err
	}
	if base.Scheme != "https" && base.Scheme != "http" {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: "connect to " + target.Address.String(),
			Cause: "this address is not a Redfish one", Remedy: "use driver ipmi, or an https address"}
	}
	if base.Scheme == "http" && target.TLS.Mode != "insecure" {
		return nil, &bmc.Error{Kind: bmc.KindTrust, Doing: "connect to " + target.Address.String(),
			Cause: "plain HTTP would send the password in the clear, and tls.mode is " + target.TLS.Mode, Remedy: "use https, or say tls.mode insecure"}
	}
	waits := opts.Waits
	if waits == (bmc.Waits{}) {
		waits = bmc.DefaultWaits
	}
	if target.System == "" {
		target.System = target.Address.System
	}
	c := &Client{target: target, opts: opts, waits: waits, base: base, quirks: slices.Clone(target.Quirks),
		secrets: []string{target.Password},
		dialer:  &dialer{target: target, allow: opts.AllowAddress, pinned: opts.Pinned}}
	c.http = &http.Client{Transport: c.dialer.transport(waits.Request), CheckRedirect: c.checkRedirect}
	return c, nil
}

// root is the service root; links are found here.
type root struct {
	ODataType      string      `json:"@odata.type"`
	RedfishVersion string      `json:"RedfishVersion"`
	UUID           string      `json:"UUID"`
	Vendor         string      `json:"Vendor"`
	Product        string      `json:"Product"`
	Systems        common.Link `json:"Systems"`
	Chassis        common.Link `json:"Chassis"`
	Managers       common.Link `json:"Managers"`
	AccountService common.Link `json:"AccountService"`
	SessionService common.Link `json:"SessionService"`
	UpdateService  common.Link `json:"UpdateService"`
	EventService   common.Link `json:"EventService"`
	Tasks          common.Link `json:"Tasks"`
	Links          struct {
		Sessions common.Link `json:"Sessions"`
	} `json:"Links"`
}

// sessions is the link of the session collection, "" when there is none.
func (r root) sessions() string { return string(r.Links.Sessions) }

// readRoot reads the service root without credentials.
func (c *Client) readRoot(ctx context.Context) error {
	doing := "reach the Redfish service of " + c.name()
	if err := c.readOpen(ctx, serviceRoot, doing, &c.root); err != nil {
		return err
	}
	if c.root.RedfishVersion == "" && !strings.Contains(c.root.ODataType, "ServiceRoot") {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: "what answers there is no Redfish service root",
			Remedy: "check the address and the port"}
	}
	if c.root.sessions() == "" && c.root.SessionService != "" {
		return c.findSessions(ctx, doing)
	}
	return nil
}

// findSessions follows the session service where the root has no direct link.
func (c *Client) findSessions(ctx context.Context, doing string) error {
	path, err := c.local(string(c.root.SessionService))
	if err != nil {
		return err
	}
	var svc struct{ Sessions common.Link }
	err = c.readOpen(ctx, path, doing, &svc)
	if k := bmc.KindOf(err); err != nil && k != bmc.KindAuth && k != bmc.KindUnsupported {
		return err
	}
	c.root.Links.Sessions = svc.Sessions
	return nil
}

func (c *Client) name() string { return c.target.Address.String() }

// contrary are the quirks that cannot both be true: the one learned last is.
var contrary = map[string]string{quirkBootMode: quirkNoBootMode, quirkNoBootMode: quirkBootMode,
	quirkBootSettings: quirkBootLive, quirkBootLive: quirkBootSettings}

func (c *Client) knows(quirk string) bool { return slices.Contains(c.quirks, quirk) }

func (c *Client) learn(quirk string) {
	if c.knows(quirk) {
		return
	}
	c.quirks = append(slices.DeleteFunc(c.quirks, func(q string) bool { return q == contrary[quirk] }), quirk)
	if c.opts.Learned != nil {
		c.opts.Learned(slices.Clone(c.quirks))
	}
}

// redact takes passwords, tokens and image queries out of a text: services
// repeat what they refuse.
func (c *Client) redact(s string) string {
	for _, secret := range c.secrets {
		if len(secret) > 3 {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	return s
}

// readOpen reads a resource that needs no login into v. What cannot be decoded
// is read again twice: a service that starts cuts its answers or sends a web
// page.
func (c *Client) readOpen(ctx context.Context, path, doing string, v any) error {
	var last error
	for try := range 3 {
		if try > 0 {
			if err := c.sleep(ctx, c.waits.Poll, doing); err != nil {
				return err
			}
		}
		a, err := c.read(ctx, request{method: http.MethodGet, path: path, doing: doing}, true)
		if err != nil {
			return err
		}
		if last = json.Unmarshal(a.body, v); last == nil {
			return nil
		}
	}
	return c.nonsense(doing, last)
}
