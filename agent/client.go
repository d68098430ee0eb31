package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
)

// answerMax bounds what is read of an answer.
const answerMax = 4 << 20

// longPoll is how long the gateway is asked to wait for a command; it may
// answer sooner.
const longPoll = 30 * time.Second

// requestTimeout bounds a request beyond what the gateway waits.
const requestTimeout = 30 * time.Second

// A connection on which nothing came for pingAfter is asked for a sign of life,
// and given up without one: a wait for a command says nothing by itself, and the
// way to the gateway can be cut without a word.
const (
	pingAfter  = 15 * time.Second
	pingWithin = 10 * time.Second
)

// client talks to one gateway as one machine.
type client struct {
	http  *http.Client
	base  string
	pause time.Duration
	warn  func(msg string, args ...any)
	// header goes with every request.
	header http.Header
	// date is what the last answer said of the time.
	date atomic.Value
	// local is the machine's own address of the last connection.
	local       atomic.Value
	nodeID      string
	operationID string
}

func newClient(cfg Config, boot BootConfig) (*client, error) {
	return dial(boot.GatewayURL, boot.CAFingerprint, nil, cfg.RetryPause, cfg.Log.Warn)
}

// dial makes the client of a gateway whose CA is pinned. certificate, when not
// nil, is asked for the machine's own on each new connection.
func dial(gateway, fingerprint string, certificate func() (*tls.Certificate, error), pause time.Duration, warn func(string, ...any)) (*client, error) {
	u, err := url.Parse(gateway)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the gateway's URL %q is no https URL", gateway)
	}
	pinned := identity.PinnedTLS(fingerprint, u.Hostname())
	if certificate != nil {
		pinned.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() }
	}
	c := &client{base: strings.TrimSuffix(gateway, "/"), pause: pause, warn: warn, header: http.Header{}}
	transport := &http.Transport{TLSClientConfig: pinned, ForceAttemptHTTP2: true, TLSHandshakeTimeout: requestTimeout,
		IdleConnTimeout: 90 * time.Second, DialContext: c.connect, HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWithin}}
	c.http = &http.Client{Transport: transport, Timeout: longPoll + requestTimeout, CheckRedirect: noRedirect}
	return c, nil
}

// connect opens a connection and notes the machine's own address on it.
func (c *client) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if at, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		c.local.Store(at.AddrPort().Addr().Unmap().WithZone("").String())
	}
	return conn, nil
}

// localAddress is the machine's own on its way to the gateway, "" when there has
// been no connection.
func (c *client) localAddress() string {
	local, _ := c.local.Load().(string)
	return local
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// serverTime is the gateway's clock at the last answer, to the second; zero when
// it said none.
func (c *client) serverTime() time.Time {
	date, _ := c.date.Load().(string)
	at, err := http.ParseTime(date)
	if err != nil {
		return time.Time{}
	}
	return at
}

// statusError is an answer that is no success.
type statusError struct {
	Status int
	// Reason is the answer's word for programs.
	Reason     string
	Detail     string
	YouCan     []string
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the gateway answered %d %s %s", e.Status, e.Reason, e.Detail)
}

// final says whether another try would be the same.
func (e *statusError) final() bool {
	return e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout
}

// retryable says whether another try may fare better than the one that failed.
func retryable(err error) bool {
	var status *statusError
	return err != nil && (!errors.As(err, &status) || !status.final())
}

// askedPause is how long the gateway asked to wait, 0 when it did not.
func askedPause(err error) time.Duration {
	var status *statusError
	if errors.As(err, &status) {
		return status.retryAfter
	}
	return 0
}

// post sends one request. out may be nil; a 204 leaves it as it is and returns
// false.
func (c *client) post(ctx context.Context, path string, in, out any) (bool, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return false, fmt.Errorf("write the request %s: %w", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("make the request %s: %w", path, err)
	}
	maps.Copy(req.Header, c.header)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return false, fmt.Errorf("ask the gateway: %w", err)
	}
	defer resp.Body.Close()
	c.date.Store(resp.Header.Get("Date"))
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return false, fmt.Errorf("read the gateway's answer to %s: %w", path, err)
	}
	if resp.StatusCode >= 300 {
		return false, problemOf(resp, b)
	}
	if resp.StatusCode == http.StatusNoContent || out == nil {
		return false, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return false, fmt.Errorf("read the gateway's answer to %s: %w", path, err)
	}
	return true, nil
}

func problemOf(resp *http.Response, b []byte) error {
	e := &statusError{Status: resp.StatusCode}
	var p struct {
		Reason, Detail string
		YouCan         []string
	}
	if json.Unmarshal(b, &p) == nil {
		e.Reason, e.Detail, e.YouCan = p.Reason, p.Detail, p.YouCan
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.retryAfter = time.Duration(s) * time.Second
	}
	return e
}

// persist repeats a request until it has an answer that another try would not
// change, or the context ends.
func (c *client) persist(ctx context.Context, path string, in, out any) (got bool, err error) {
	back := Backoff{Pause: c.pause}
	for {
		got, err = c.post(ctx, path, in, out)
		if !retryable(err) {
			return got, err
		}
		pause := back.Next(askedPause(err))
		c.warn("the gateway cannot be reached, trying again", "request", path, "error", err, "pause", pause)
		if !sleep(ctx, pause) {
			return false, ctx.Err()
		}
	}
}

// sleep waits and says whether the context is still on.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (c *client) callIn(ctx context.Context, boot BootConfig, hw fleet.Hardware) error {
	in := map[string]any{"bootId": boot.BootID, "token": boot.Token, "nonce": rand.Text(), "hardware": hw}
	var out struct{ NodeID, OperationID, Session string }
	_, err := c.persist(ctx, "/node/v1/call-in", in, &out)
	var status *statusError
	switch {
	case errors.As(err, &status) && status.Status == http.StatusConflict:
		return ErrTokenUsed
	case errors.As(err, &status) && status.Status == http.StatusNotFound:
		return ErrBootEnded
	case errors.As(err, &status):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return fmt.Errorf("call in: %w", err)
	}
	c.header.Set("Authorization", "Bearer "+out.Session)
	c.nodeID, c.operationID = out.NodeID, out.OperationID
	return nil
}

// next waits for a command; nil is none yet.
func (c *client) next(ctx context.Context) (*command, error) {
	var out struct{ Command *command }
	_, err := c.persist(ctx, "/node/v1/commands/next", map[string]any{"waitSeconds": int(longPoll / time.Second)}, &out)
	return out.Command, endOf(err)
}

// endOf turns the answers that end a run into ErrBootEnded.
func endOf(err error) error {
	var status *statusError
	if errors.As(err, &status) && (status.Status == http.StatusUnauthorized || status.Status == http.StatusNotFound) {
		return ErrBootEnded
	}
	return err
}

// fetchBootConfig gets the config of this power-on from the plain listener. A
// server that cannot be reached is tried again; one that knows no such boot has
// spoken.
func fetchBootConfig(ctx context.Context, cfg Config) (*BootConfig, error) {
	for try := 0; ; try++ {
		boot, final, err := tryBootConfig(ctx, cfg)
		if err == nil || final {
			return boot, err
		}
		cfg.Log.Warn("the boot config cannot be fetched, trying again", "error", err)
		if !sleep(ctx, min(cfg.RetryPause<<min(try, 5), 30*cfg.RetryPause)) {
			return nil, ctx.Err()
		}
	}
}

func tryBootConfig(ctx context.Context, cfg Config) (boot *BootConfig, final bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.BootConfigURL, nil)
	if err != nil {
		return nil, true, errors.New("the boot config's URL is none")
	}
	resp, err := cfg.HTTP.Do(req)
	if err != nil {
		return nil, false, withoutURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, true, ErrBootEnded
	}
	if resp.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("the boot server answered %s", resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return nil, false, fmt.Errorf("read the boot config: %w", err)
	}
	boot, err = ParseBootConfig(b)
	return boot, true, err
}

// ParseBootConfig reads a boot config as the plain listener serves it.
func ParseBootConfig(b []byte) (*BootConfig, error) {
	var boot BootConfig
	if err := json.Unmarshal(b, &boot); err != nil {
		return nil, errors.New("the boot config is no JSON object of strings") // the cause could quote the token
	}
	if boot.BootID == "" || boot.GatewayURL == "" || boot.CAFingerprint == "" || boot.Token == "" {
		return nil, errors.New("the boot config lacks one of bootId, gatewayUrl, caFingerprint, token")
	}
	return &boot, nil
}

// withoutURL cuts the URL, whose path or query can be a secret, out of an HTTP
// client's error.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
