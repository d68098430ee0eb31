package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// keyPause bounds how often an issuer is asked for its keys. The library asks at
// each token that none of the known keys verifies, which is how it follows a
// rotation; but such a token is anybody's to send.
const keyPause = time.Second

// errKeysFresh is why keys are not fetched: they were a moment ago.
var errKeysFresh = errors.New("the issuer's keys were fetched a moment ago")

// issuerKeys verifies signatures with an issuer's keys, which it fetches at most
// once a keyPause. It notes for the call at hand whether the keys could not be
// had, which says nothing of the token: the verifier's own error does not keep it.
type issuerKeys struct {
	remote oidc.KeySet

	mu sync.Mutex
	at time.Time
	// failed is why the last fetch brought no keys.
	failed error
}

func newIssuerKeys(ctx context.Context, url string) *issuerKeys {
	k := &issuerKeys{}
	k.remote = oidc.NewRemoteKeySet(oidc.ClientContext(ctx, &http.Client{Timeout: discoveryTimeout, Transport: k}), url)
	return k
}

// RoundTrip fetches, or repeats what the last fetch came to.
func (k *issuerKeys) RoundTrip(q *http.Request) (*http.Response, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) < keyPause {
		if k.failed != nil {
			return nil, k.failed
		}
		return nil, errKeysFresh
	}
	resp, err := http.DefaultTransport.RoundTrip(q)
	k.at, k.failed = time.Now(), err
	return resp, err //nolint:wrapcheck // a transport's errors are the client's to wrap
}

// keysAway is the context's place of the note that keys could not be had.
type keysAway struct{}

// VerifySignature verifies a token with the known keys, else with those that the
// issuer has now.
func (k *issuerKeys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.remote.VerifySignature(ctx, token)
	if err == nil || !strings.HasPrefix(err.Error(), "fetching keys") || errors.Is(err, errKeysFresh) {
		return payload, err //nolint:wrapcheck // the verifier says what it was doing
	}
	if away, ok := ctx.Value(keysAway{}).(*bool); ok {
		*away = true
	}
	if ctx.Err() == nil {
		// An answer that holds no keys is a failure too, which the transport cannot see.
		k.mu.Lock()
		defer k.mu.Unlock()
		k.failed = err
	}
	return nil, err //nolint:wrapcheck // the verifier says what it was doing
}
