package main

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// follower reads a tenant's event stream and resumes where it broke, at the
// next process of the API.
type follower struct {
	mu      sync.Mutex
	cursors []string
	last    string // the last id, of an event or of a sign of life
}

// follow follows the events of nodes from now on until the test ends.
func (r *pair) follow() *follower {
	r.t.Helper()
	f := &follower{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	r.t.Cleanup(func() { cancel(); <-ended })
	began := make(chan struct{})
	go func() {
		defer close(ended)
		once := sync.OnceFunc(func() { close(began) })
		for i := 0; ctx.Err() == nil; i++ {
			f.read(ctx, r.apis[i%len(r.apis)], r.env["COMPUTE_TENANT"], r.env["COMPUTE_TOKEN"], once)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond): // an API that is away is not hammered
			}
		}
	}()
	<-began
	return f
}

// read reads until the stream breaks.
func (f *follower) read(ctx context.Context, api, tenant, token string, opened func()) {
	q := url.Values{"tenantId": {tenant}, "type": {"node."}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/api/compute/events/stream?"+q.Encode(), nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if f.last != "" {
		req.Header.Set("Last-Event-ID", f.last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	opened()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			f.last = id
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			f.mu.Lock()
			f.cursors = append(f.cursors, f.last)
			f.mu.Unlock()
		}
	}
}

// seen are the cursors so far, in the order they came.
func (f *follower) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.cursors)
}
