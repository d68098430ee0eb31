package redfish

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/bettercompute/compute/bmc"
)

// serviceRoot is the one path that the protocol itself fixes (DSP0266).
const serviceRoot = "/redfish/v1/"

// local makes a link, task monitor or Location a path of this service: it is
// resolved against the service root and must keep the origin. Anything else
// would carry the token to another machine, and is refused before a request.
func (c *Client) local(link string) (string, error) {
	u, err := url.Parse(link)
	if err != nil {
		return "", c.foreign(link, err)
	}
	u = c.base.ResolveReference(u)
	if u.User != nil || u.Opaque != "" || !sameOrigin(u, c.base) || u.Path == "" || u.Path[0] != '/' {
		return "", c.foreign(link, nil)
	}
	u.Fragment = ""
	return u.RequestURI(), nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && a.Hostname() == b.Hostname() && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"https": "443", "http": "80"}[u.Scheme]
}

func (c *Client) foreign(link string, err error) error {
	return &bmc.Error{Kind: bmc.KindWrongMachine, Doing: "follow a link of " + c.name(),
		Cause:  fmt.Sprintf("it leads to %.200q, another origin than the BMC's own", c.redact(link)),
		Remedy: "check that the address is the BMC itself and no proxy in front of it", Err: err}
}

// checkRedirect follows a redirect within the BMC, as some send for a missing
// or surplus slash, unless it would turn a change into a GET.
func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	if !sameOrigin(req.URL, c.base) {
		return c.foreign(req.URL.Redacted(), nil)
	}
	if len(via) >= 5 {
		return errors.New("redirected too often")
	}
	if req.Method != via[0].Method {
		return http.ErrUseLastResponse
	}
	return nil
}
