package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmc-toolbox/bmclib/v2"
	"github.com/bmc-toolbox/bmclib/v2/providers/ipmitool"
	"github.com/go-logr/logr"
	"github.com/jacobweinstock/registrar"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// The limits of IPMI 2.0 (section 22.30 and 22.28), in bytes. BMCs cut longer
// ones without a word.
const (
	MaxPassword = 20
	MaxUsername = 16
)

// defaultSuites is the order of cipher suites without a policy.
var defaultSuites = []int{17, 3}

const (
	// quirkSuite keeps the cipher suite that was found to work.
	quirkSuite = "ipmi-cipher-suite-"
	// quirkOperator is learned of an account that may not be administrator.
	quirkOperator = "ipmi-operator-privilege"
)

// The privileges that sessions ask for. Power and boot device need no more than
// the lower one (IPMI 2.0, appendix G).
const (
	roleAdministrator = "ADMINISTRATOR"
	roleOperator      = "OPERATOR"
)

// Client is a conversation with one BMC over IPMI. There is no session between
// its calls: ipmitool opens and closes one for each.
type Client struct {
	target bmc.Target
	opts   bmc.Options
	waits  bmc.Waits
	tool   tool
	lib    *bmclib.Client
	quirks []string
}

var _ bmc.Client = (*Client)(nil)

// Fits says whether a user name and a password can be used over IPMI at all.
func Fits(username, password string) error {
	switch {
	case len(password) > MaxPassword:
		return fmt.Errorf("the password has %d bytes; IPMI takes %d", len(password), MaxPassword)
	case len(username) > MaxUsername:
		return fmt.Errorf("the user name has %d bytes; IPMI takes %d", len(username), MaxUsername)
	case strings.ContainsRune(username+password, 0):
		return errors.New("user name and password must not hold a zero byte")
	}
	return nil
}

// Open finds the cipher suite that works and logs in once, which proves the
// credentials. The returned client is a bmc.Client.
func Open(ctx context.Context, target bmc.Target, opts bmc.Options) (*Client, error) {
	doing := "log in to " + target.Address.String() + " over IPMI as " + target.Username
	if err := Fits(target.Username, target.Password); err != nil {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: err.Error(), Remedy: "use a shorter one, or driver redfish", Unsent: true}
	}
	path, err := exec.LookPath("ipmitool")
	if err != nil {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: "ipmitool is not installed on this worker", Remedy: "install ipmitool", Err: err, Unsent: true}
	}
	host, port, err := locate(ctx, target.Address, opts.AllowAddress)
	if err != nil {
		return nil, err
	}
	waits := opts.Waits
	if waits == (bmc.Waits{}) {
		waits = bmc.DefaultWaits
	}
	c := &Client{target: target, opts: opts, waits: waits, quirks: slices.Clone(target.Quirks),
		tool: tool{path: path, host: host, port: port, user: target.Username, password: target.Password, observe: opts.Observe, wait: waits.Request, role: roleAdministrator}}
	if slices.Contains(c.quirks, quirkOperator) {
		c.tool.role = roleOperator
	}
	if err := c.chooseSuite(ctx, doing); err != nil {
		return nil, err
	}
	return c, c.useLibrary()
}

// locate resolves the address once and checks it: what is checked is what is
// given to ipmitool. A BMC found by its Redfish address is at IPMI's own port.
func locate(ctx context.Context, a fleet.BMCAddress, allow func(string) error) (host, port string, err error) {
	port = "623"
	if a.Scheme == "ipmi" {
		port = strconv.Itoa(a.Port)
	}
	doing := "find " + a.String()
	ips := []net.IP{net.ParseIP(a.Host)}
	if ips[0] == nil {
		if ips, err = net.DefaultResolver.LookupIP(ctx, "ip", a.Host); err != nil {
			return "", "", &bmc.Error{Kind: bmc.KindUnreachable, Doing: doing, Cause: err.Error(), Remedy: "check the name", Err: err, Unsent: true}
		}
	}
	for _, ip := range ips {
		if allow == nil {
			return ip.String(), port, nil
		}
		if err = allow(ip.String()); err == nil {
			return ip.String(), port, nil
		}
	}
	return "", "", &bmc.Error{Kind: bmc.KindNotAllowed, Doing: doing, Cause: fmt.Sprintf("%s is outside the networks allowed for this site", ips[0]),
		Remedy: "correct the address, or allow its network on the site", Err: err, Unsent: true}
}

// chooseSuite finds the first allowed cipher suite with which a session opens.
// Only a refused Open Session leads to the next: a failed password check, or
// silence, is no reason for a weaker suite. Suite 0, which checks no password,
// is never used.
func (c *Client) chooseSuite(ctx context.Context, doing string) error {
	var last error
	for _, s := range c.suites() {
		c.tool.suite = s
		err := c.login(ctx, doing)
		var refused *cipherRefused
		if errors.As(err, &refused) {
			last = err
			continue
		}
		if err != nil {
			return explain(doing, err)
		}
		c.noteSuite(s)
		return nil
	}
	if last == nil {
		last = &cipherRefused{text: "no suite is allowed"}
	}
	return explain(doing, last)
}

// login opens a session, which proves the credentials, as administrator or, where
// the account may not be that, as operator.
func (c *Client) login(ctx context.Context, doing string) error {
	_, err := c.tool.raw(ctx, false, doing, 0x06, 0x01)
	var role *roleRefused
	if !errors.As(err, &role) || c.tool.role == roleOperator {
		return err
	}
	c.tool.role = roleOperator
	if _, err = c.tool.raw(ctx, false, doing, 0x06, 0x01); err == nil {
		c.learn(quirkOperator)
	}
	return err
}

// suites is the allowed order, the one that worked before first.
func (c *Client) suites() []int {
	allowed := c.target.CipherSuites
	if len(allowed) == 0 {
		allowed = defaultSuites
	}
	allowed = slices.DeleteFunc(slices.Clone(allowed), func(s int) bool { return s <= 0 })
	known := 0
	for _, q := range c.target.Quirks {
		if n, err := strconv.Atoi(strings.TrimPrefix(q, quirkSuite)); err == nil && strings.HasPrefix(q, quirkSuite) {
			known = n
		}
	}
	if i := slices.Index(allowed, known); i > 0 {
		return append([]int{known}, slices.Delete(allowed, i, i+1)...)
	}
	return allowed
}

func (c *Client) noteSuite(s int) {
	if quirk := quirkSuite + strconv.Itoa(s); !slices.Contains(c.quirks, quirk) {
		c.quirks = slices.DeleteFunc(c.quirks, func(q string) bool { return strings.HasPrefix(q, quirkSuite) })
		c.learn(quirk)
	}
}

func (c *Client) learn(quirk string) {
	if slices.Contains(c.quirks, quirk) {
		return
	}
	c.quirks = append(c.quirks, quirk)
	if c.opts.Learned != nil {
		c.opts.Learned(slices.Clone(c.quirks))
	}
}

// useLibrary makes the bmclib client that reads: a registry of one driver, and
// that driver of one cipher suite.
func (c *Client) useLibrary() error {
	host := c.tool.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // bmclib joins host and port with a colon
	}
	driver, err := ipmitool.New(host, c.tool.user, c.tool.password, ipmitool.WithPort(c.tool.port),
		ipmitool.WithCipherSuite(strconv.Itoa(c.tool.suite)), ipmitool.WithIpmitoolPath(c.tool.path))
	if err != nil {
		return fmt.Errorf("prepare bmclib for %s: %w", c.tool.name(), err)
	}
	registry := registrar.NewRegistry()
	registry.Register(ipmitool.ProviderName, ipmitool.ProviderProtocol, ipmitool.Features, nil, driver)
	c.lib = bmclib.NewClient(host, c.tool.user, c.tool.password, bmclib.WithLogger(logr.Discard()), bmclib.WithRegistry(registry),
		bmclib.WithPerProviderTimeout(c.waits.Request))
	return nil
}

// Close ends the conversation; there is no session to end.
func (c *Client) Close(context.Context) error { return nil }

// wait waits, or ends with the context.
func (c *Client) wait(ctx context.Context, d time.Duration, doing string) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ended(ctx, doing)
	case <-t.C:
		return nil
	}
}
