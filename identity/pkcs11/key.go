//go:build cgo

package pkcs11

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// The bounds of a token's use. A token is a device at the end of a wire: it can
// be away, and it can let a call hang.
const (
	// usesAtOnce bounds the calls that are with the token, and so the sessions.
	usesAtOnce = 16
	// answerWithin bounds how long a signature may take, its wait for others
	// included.
	answerWithin = 5 * time.Second
	// goodFor is how long a key that answered counts as there.
	goodFor = 5 * time.Second
	// reopenPause is between two attempts to open the token.
	reopenPause = time.Second
)

// Key is a private key in a token. It opens the token by itself, again after the
// token was away; whoever wants it meanwhile gets an UNAVAILABLE error that says
// what to do. It is safe for concurrent use.
type Key struct {
	uri      keyURI
	slots    chan struct{}
	patience time.Duration

	// life is held for reading while the token is used, for writing while it is
	// opened or closed.
	life   sync.RWMutex
	open   *token
	opener opener

	mu     sync.Mutex
	public crypto.PublicKey
	// answered is when the token last did; doubtful says that a signature failed
	// since.
	answered time.Time
	doubtful bool
}

// Open takes the URI of a key; of says which public key it has, nil leaves that
// to the URI. The token is not spoken to yet: an error means that the
// configuration is wrong, and trying again is of no use.
func Open(uri string, of crypto.PublicKey) (*Key, error) {
	u, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if err := u.check(); err != nil {
		return nil, err
	}
	return &Key{uri: u, slots: make(chan struct{}, usesAtOnce), patience: answerWithin, public: of, opener: opener{pause: reopenPause}}, nil
}

// Public is the public key, nil as long as it was not given and the token not
// opened (Ready).
func (k *Key) Public() crypto.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.public
}

// Sign signs a digest with ECDSA. The token makes its own randomness.
func (k *Key) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), k.patience)
	defer cancel()
	return k.within(ctx, func(t *token) ([]byte, error) { return t.key.Sign(rand.Reader, digest, opts) })
}

// Ready says why the key cannot be used now. It asks the token unless that
// answered a moment ago.
func (k *Key) Ready(ctx context.Context) error {
	k.mu.Lock()
	good, doubtful := !k.doubtful && time.Since(k.answered) < goodFor, k.doubtful
	k.mu.Unlock()
	if good {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.patience)
	defer cancel()
	_, err := k.within(ctx, func(t *token) ([]byte, error) {
		if !doubtful {
			return nil, t.look()
		}
		digest := sha256.Sum256([]byte(rand.Text())) // of nothing that anybody could use
		return t.key.Sign(rand.Reader, digest[:], crypto.SHA256)
	})
	return err
}

// Close lets the token go, after the calls that are with it. A key that is used
// once more opens it again.
func (k *Key) Close() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.life.Lock()
		defer k.life.Unlock()
		if k.open != nil {
			k.open.close()
			k.open = nil
		}
	}()
	select {
	case <-done:
		return nil
	case <-time.After(k.patience):
		return fmt.Errorf("%s: the token does not answer; it is let go when it does", k.uri)
	}
}

// within uses the token for as long as the context allows. A call that the
// module does not come back from is left to itself: there is no way to end it.
func (k *Key) within(ctx context.Context, f func(*token) ([]byte, error)) ([]byte, error) {
	select {
	case k.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, k.unavailable(fmt.Errorf("%s: %d calls wait for the token, which does not answer", k.uri, usesAtOnce))
	}
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-k.slots }()
		out, err := k.use(f)
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, k.unavailable(r.err)
		}
		k.mu.Lock()
		k.answered, k.doubtful = time.Now(), false
		k.mu.Unlock()
		return r.out, nil
	case <-ctx.Done():
		return nil, k.unavailable(fmt.Errorf("%s: the token does not answer", k.uri))
	}
}

// use calls f with the open token, and once more with the token opened anew when
// it failed: sessions end with what lies between us and the token.
func (k *Key) use(f func(*token) ([]byte, error)) ([]byte, error) {
	var lost *token
	for {
		t, err := k.opened(lost)
		if err != nil {
			return nil, err
		}
		k.life.RLock()
		if k.open != t {
			k.life.RUnlock()
			continue // closed since
		}
		out, err := f(t)
		k.life.RUnlock()
		if err == nil {
			return out, nil
		}
		if lost != nil {
			return nil, fmt.Errorf("%s: the token was opened anew and does not sign: %w", k.uri, err)
		}
		lost = t
	}
}

// opened is the open token, another one than lost.
func (k *Key) opened(lost *token) (*token, error) {
	k.life.RLock()
	t := k.open
	k.life.RUnlock()
	if t != nil && t != lost {
		return t, nil
	}
	k.life.Lock()
	defer k.life.Unlock()
	if k.open != nil && k.open != lost {
		return k.open, nil
	}
	if k.open != nil {
		k.open.close()
		k.open = nil
	}
	t, err := k.opener.open(k.uri, k.Public())
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.public = t.key.Public()
	k.mu.Unlock()
	k.open = t
	return t, nil
}

// unavailable is what whoever wants the key is answered.
func (k *Key) unavailable(cause error) error {
	k.mu.Lock()
	k.doubtful = true
	k.mu.Unlock()
	return &fleet.Error{Code: fleet.CodeUnavailable, Reason: fleet.ReasonCAKey, Err: cause, RetryAfter: 2 * reopenPause,
		Detail: "the CA's key cannot be used now, so nothing is signed; it is tried again by itself. The log of the process that answered says why"}
}
