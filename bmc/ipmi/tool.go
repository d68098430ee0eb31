package ipmi

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
)

// tool is ipmitool aimed at one BMC.
type tool struct {
	path, host, port string
	user, password   string
	suite            int
	// role is the privilege that a session asks for.
	role    string
	observe func(bmc.Exchange)
	wait    time.Duration
}

// attempts are how often a packet is sent: a read may be repeated, a change
// never is, since a lost answer does not say that it was not acted upon.
const (
	readAttempts   = 2
	changeAttempts = 1
)

// run is the one place where ipmitool is started. The password goes by the
// environment, the language is fixed so that its messages can be read, and the
// verbosity is that at which it says why a session was refused.
func (t *tool) run(ctx context.Context, change bool, doing string, args ...string) (string, error) {
	n := readAttempts
	if change {
		n = changeAttempts
	}
	full := append([]string{"-I", "lanplus", "-H", t.host, "-p", t.port, "-U", t.user, "-E", "-L", t.role,
		"-C", strconv.Itoa(t.suite), "-R", strconv.Itoa(n), "-N", "1", "-v"}, args...)
	rctx, cancel := context.WithTimeout(ctx, t.wait)
	defer cancel()
	cmd := exec.CommandContext(rctx, t.path, full...)
	cmd.Env = []string{"IPMITOOL_PASSWORD=" + t.password, "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	start := time.Now()
	err := cmd.Run()
	if err != nil {
		err = t.failure(ctx, doing, diag.String(), err)
	}
	if t.observe != nil {
		ex := bmc.Exchange{At: start, Method: "IPMI", Path: strings.Join(args, " "), Millis: time.Since(start).Milliseconds()}
		if err != nil {
			ex.Error = err.Error()
		}
		t.observe(ex)
	}
	return out.String(), err
}

// completion is a command's completion code other than 0 (IPMI 2.0, table 5-2).
type completion struct {
	code byte
	text string
}

func (c *completion) Error() string {
	return fmt.Sprintf("completion code 0x%02x (%s)", c.code, c.text)
}

var rawFailed = regexp.MustCompile(`Unable to send RAW command \([^)]*rsp=0x([0-9a-f]{1,2})\): (.*)`)

// raw sends one request and returns the data of its response. A completion
// code that is not 0 is a *completion error.
func (t *tool) raw(ctx context.Context, change bool, doing string, request ...byte) ([]byte, error) {
	args := []string{"raw"}
	for _, b := range request {
		args = append(args, fmt.Sprintf("0x%02x", b))
	}
	out, err := t.run(ctx, change, doing, args...)
	if err != nil {
		return nil, err
	}
	return hexLines(out)
}

// hexLines reads the bytes of a response out of ipmitool's output; lines that
// are no bytes describe the exchange.
func hexLines(out string) ([]byte, error) {
	var data []byte
	for line := range strings.Lines(out) {
		if strings.ContainsAny(line, "(=:") {
			continue
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			return nil, fmt.Errorf("read the answer of ipmitool: %q is no row of bytes", strings.TrimSpace(line))
		}
		data = append(data, b...)
	}
	return data, nil
}

// failure classifies what ipmitool wrote when it failed. It is the one place
// that does, beside the completion codes in codes.go.
func (t *tool) failure(ctx context.Context, doing, diag string, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, doing)
	}
	if m := rawFailed.FindStringSubmatch(diag); m != nil {
		n, _ := strconv.ParseUint(m[1], 16, 8) // two hex digits by the pattern
		return &completion{code: byte(n), text: m[2]}
	}
	e := &bmc.Error{Kind: bmc.KindUnreachable, Doing: doing, Err: err, Cause: "no answer from " + t.name(), Remedy: "see whether the BMC answers IPMI over LAN there"}
	has := func(texts ...string) bool {
		for _, s := range texts {
			if strings.Contains(diag, s) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		e.Kind, e.Cause, e.Remedy, e.Unsent = bmc.KindUnsupported, "ipmitool is not installed on this worker", "install ipmitool", true
	case has("no matching cipher suite", "invalid authentication algorithm", "invalid integrity algorithm", "no matching authentication algorithm", "no matching integrity payload", "invalid confidentiality algorithm"):
		return &cipherRefused{suite: t.suite, text: openSessionText(diag)}
	case has("insufficient resources for session", "insufficient resources for role"):
		e.Kind, e.Cause, e.Remedy, e.Unsent = bmc.KindBusy, "the BMC has no session free", "wait; it is tried again", true
	case has("indicates an error : invalid session ID", "indicates an error : inactive session ID"):
		e.Kind, e.Cause, e.Remedy, e.Unsent = bmc.KindBusy, "the BMC forgot the session while it was opened", "wait; it is tried again", true
	case has("HMAC is invalid", "unauthorized name", "invalid integrity check value", "unauthorized GUID"):
		e.Kind, e.Cause, e.Unsent = bmc.KindAuth, "user name or password were refused", true
		e.Remedy = "check user name and password, then metal/setCredentials"
	case has("invalid role", "unauthorized role", "privilege level", "Set Session Privilege Level"):
		return &roleRefused{role: t.role}
	case has("Unable to establish IPMI v2 / RMCP+ session", "Error issuing Get Channel Authentication Capabilities", "Address lookup"):
		e.Unsent = true
	default:
		e.Cause = "the answer of " + t.name() + " was lost, the outcome is unknown"
	}
	return e
}

// roleRefused says that the account may not have the privilege that the session
// asked for. Its password was not judged.
type roleRefused struct{ role string }

func (r *roleRefused) Error() string {
	return fmt.Sprintf("the account has not the privilege %s over LAN", strings.ToLower(r.role))
}

// cipherRefused says that the BMC refused Open Session for its cipher suite.
type cipherRefused struct {
	suite int
	text  string
}

func (c *cipherRefused) Error() string {
	return fmt.Sprintf("cipher suite %d was refused: %s", c.suite, c.text)
}

func openSessionText(diag string) string {
	_, text, _ := strings.Cut(diag, "open session response message :")
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

func (t *tool) name() string { return "ipmi://" + net.JoinHostPort(t.host, t.port) }

// ended is the error for a context that is over.
func ended(ctx context.Context, doing string) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	return &bmc.Error{Kind: bmc.KindTimeout, Doing: doing, Cause: "the time given for it is over", Remedy: "try again", Err: ctx.Err()}
}
