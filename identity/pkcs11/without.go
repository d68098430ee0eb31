//go:build !cgo

package pkcs11

import (
	"context"
	"crypto"
	"errors"
	"io"
)

// Key is a private key in a token, of which this program can use none.
type Key struct{}

// errWithout says why there is none.
var errWithout = errors.New("this program was built without cgo and so without PKCS#11: build it with make build PKCS11=1")

// Open refuses a key's URI: there is no way to load a PKCS#11 module.
func Open(uri string, _ crypto.PublicKey) (*Key, error) {
	if _, err := parseURI(uri); err != nil {
		return nil, err
	}
	return nil, errWithout
}

// Public is no key.
func (*Key) Public() crypto.PublicKey { return nil }

// Sign says why it cannot.
func (*Key) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) { return nil, errWithout }

// Ready says why it is not.
func (*Key) Ready(context.Context) error { return errWithout }

// Close has nothing to let go.
func (*Key) Close() error { return nil }
