package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/identity"
)

// agentsFile names the file by which this program, started again, knows that it
// is the machines of TestLoad. They are a process of their own because each
// connection costs a descriptor at either end.
const agentsFile = "COMPUTE_TEST_AGENTS"

func TestMain(m *testing.M) {
	if file := os.Getenv(agentsFile); file != "" {
		if err := runAgents(file); err != nil {
			fmt.Fprintln(os.Stderr, "agents:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// loadFleet is what the machines are told.
type loadFleet struct {
	Gateway, Fingerprint string
	// Key is everybody's, PKCS#8; Chain is the intermediate.
	Key, Chain []byte
	Leaves     [][]byte
	// WaitSeconds is between a machine's heartbeats, Pause its agent's RetryPause.
	WaitSeconds int
	Pause       time.Duration
}

// loadStats is what the machines have seen. All but Live only grow.
type loadStats struct {
	// Live machines have a session, as far as they know.
	Live, Heartbeats, Opened int64
	// Specs is how many NodeSpecs were handed out, Asked how many answers asked
	// to come back later.
	Specs, Asked int64
	// Faults are sessions that broke.
	Faults int64
	// Refused are answers that sent a machine away for good.
	Refused int64
	Last    string
}

// loadAgent is a machine that does what an agent does on the wire, and nothing
// else.
type loadAgent struct {
	all    *loadAgents
	http   *http.Client
	base   string
	epoch  string
	spec   int64
	back   agent.Backoff
	cancel context.CancelFunc
}

type loadAgents struct {
	live, heartbeats, opened, specs, asked, faults, refused atomic.Int64
	last                                                    atomic.Value
}

// runAgents runs the machines and answers what it is asked on the standard input:
// "stats", or "silence" and how many machines fall silent.
func runAgents(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	var fleet loadFleet
	if err := gob.NewDecoder(f).Decode(&fleet); err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(fleet.Key)
	if err != nil {
		return err
	}
	all := &loadAgents{}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	defer func() { stop(); running.Wait() }()
	agents := make([]*loadAgent, len(fleet.Leaves))
	for i, leaf := range fleet.Leaves {
		cert := &tls.Certificate{Certificate: [][]byte{leaf, fleet.Chain}, PrivateKey: key}
		pinned := identity.PinnedTLS(fleet.Fingerprint, "127.0.0.1")
		pinned.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		own, cancel := context.WithCancel(ctx)
		a := &loadAgent{all: all, base: fleet.Gateway, back: agent.Backoff{Pause: fleet.Pause}, cancel: cancel,
			http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: pinned, ForceAttemptHTTP2: true, WriteBufferSize: 1 << 10, ReadBufferSize: 1 << 10}}}
		agents[i] = a
		running.Go(func() { a.serve(own, fleet.WaitSeconds) })
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		var n int
		if _, err := fmt.Sscanf(in.Text(), "silence %d", &n); err == nil {
			for _, a := range agents[:n] {
				a.cancel()
			}
		}
		if err := out.Encode(all.stats()); err != nil {
			return err
		}
	}
	return in.Err()
}

func (l *loadAgents) stats() loadStats {
	s := loadStats{Live: l.live.Load(), Heartbeats: l.heartbeats.Load(), Opened: l.opened.Load(), Specs: l.specs.Load(), Asked: l.asked.Load(),
		Faults: l.faults.Load(), Refused: l.refused.Load()}
	s.Last, _ = l.last.Load().(string)
	return s
}

// serve keeps a session as an agent does.
func (a *loadAgent) serve(ctx context.Context, wait int) {
	defer a.http.CloseIdleConnections()
	for asked := time.Duration(0); ; {
		t := time.NewTimer(a.back.Next(asked))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		var err error
		asked, err = a.session(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		a.all.faults.Add(1)
		a.all.last.Store(err.Error())
		a.http.CloseIdleConnections()
	}
}

// session opens a session and asks for what there is until it breaks.
func (a *loadAgent) session(ctx context.Context, wait int) (asked time.Duration, err error) {
	var opened struct{ Epoch int64 }
	a.epoch = ""
	if asked, err = a.post(ctx, "/node/v1/session", struct{}{}, &opened); err != nil {
		return asked, err
	}
	a.back.Reset()
	a.epoch = strconv.FormatInt(opened.Epoch, 10)
	a.all.opened.Add(1)
	a.all.live.Add(1)
	defer a.all.live.Add(-1)
	for {
		var next struct {
			Spec *struct{ Version int64 }
		}
		if asked, err = a.post(ctx, "/node/v1/session/next", map[string]any{"waitSeconds": wait, "spec": a.spec}, &next); err != nil {
			return asked, err
		}
		a.all.heartbeats.Add(1)
		if next.Spec == nil {
			continue
		}
		a.all.specs.Add(1)
		a.spec = next.Spec.Version
		if asked, err = a.post(ctx, "/node/v1/session/spec", map[string]any{"version": a.spec, "applied": a.spec}, nil); err != nil {
			return asked, err
		}
	}
}

func (a *loadAgent) post(ctx context.Context, path string, in, out any) (asked time.Duration, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if a.epoch != "" {
		req.Header.Set("Compute-Session-Epoch", a.epoch)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	switch {
	case resp.ProtoMajor != 2:
		return 0, errors.New("spoken to by " + resp.Proto)
	case resp.StatusCode >= 300:
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			a.all.asked.Add(1)
			asked = time.Duration(s) * time.Second
		}
		if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
			a.all.refused.Add(1)
		}
		return asked, fmt.Errorf("%s answered %d %s", path, resp.StatusCode, b)
	case resp.StatusCode == http.StatusNoContent || out == nil:
		return 0, nil
	}
	return 0, json.Unmarshal(b, out)
}
