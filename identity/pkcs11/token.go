//go:build cgo

package pkcs11

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThalesGroup/crypto11"
	"github.com/miekg/pkcs11"
)

// token is an open token and the key in it.
type token struct {
	ctx *crypto11.Context
	key crypto11.Signer
}

// look asks the token whether the key is there.
func (t *token) look() error {
	_, err := t.ctx.GetAttribute(t.key, crypto11.CkaKeyType)
	return err
}

// close ends the sessions; the module is let go with its last user.
func (t *token) close() {
	_ = t.ctx.Close() // what cannot be closed is gone already
}

// opener opens a token and remembers what came of it.
type opener struct {
	// failed is what the last attempt ended with, at tried.
	failed error
	tried  time.Time
	// pause is between two attempts.
	pause time.Duration
	// refused is the file whose PIN the token refused, as it was then.
	refused os.FileInfo
}

// open opens the token, not more often than its pause allows.
func (o *opener) open(u keyURI, of crypto.PublicKey) (*token, error) {
	if o.failed != nil && time.Since(o.tried) < o.pause {
		return nil, o.failed
	}
	var t *token
	t, o.failed = o.try(u, of)
	o.tried = time.Now()
	return t, o.failed
}

// try logs in. A PIN that was refused is not tried again: tokens lock after a
// few, and then only their security officer can help.
func (o *opener) try(u keyURI, of crypto.PublicKey) (*token, error) {
	config := &crypto11.Config{Path: u.module, TokenLabel: u.token, TokenSerial: u.serial, MaxSessions: usesAtOnce + 1, LoginNotSupported: u.pinFile == ""}
	var pin os.FileInfo
	if u.pinFile != "" {
		var err error
		if pin, err = os.Stat(u.pinFile); err != nil {
			return nil, fmt.Errorf("%s: read the PIN: %w", u, err)
		}
		if o.refused != nil && pin.ModTime().Equal(o.refused.ModTime()) && os.SameFile(pin, o.refused) {
			return nil, fmt.Errorf("%s: the token refused the PIN in %s, which is not tried again because tokens lock: write the right one into the file", u, u.pinFile)
		}
		b, err := os.ReadFile(u.pinFile)
		if err != nil {
			return nil, fmt.Errorf("%s: read the PIN: %w", u, err)
		}
		config.Pin = string(bytes.TrimRight(b, "\r\n"))
	}
	ctx, err := crypto11.Configure(config)
	o.refused = nil
	switch {
	case isCode(err, pkcs11.CKR_PIN_INCORRECT, pkcs11.CKR_PIN_INVALID, pkcs11.CKR_PIN_LEN_RANGE, pkcs11.CKR_PIN_EXPIRED):
		o.refused = pin
		return nil, fmt.Errorf("%s: the token refuses the PIN in %s; write the right one into the file: %w", u, u.pinFile, err)
	case isCode(err, pkcs11.CKR_PIN_LOCKED):
		o.refused = pin
		return nil, fmt.Errorf("%s: the token has locked its PIN after wrong ones; its security officer has to set a new one, which then goes into %s: %w", u, u.pinFile, err)
	case err != nil:
		return nil, fmt.Errorf("%s: open the token by %s; look whether it is there and can be reached: %w", u, u.module, err)
	}
	key, err := findKey(ctx, u, of)
	if err != nil {
		_ = ctx.Close() // the other error says more
		return nil, err
	}
	return &token{ctx: ctx, key: key}, nil
}

func isCode(err error, codes ...pkcs11.Error) bool {
	var e pkcs11.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e == c {
			return true
		}
	}
	return false
}

// findKey finds the one key that is meant: after a rotation a label can be that
// of several, and the certificate says which.
func findKey(ctx *crypto11.Context, u keyURI, of crypto.PublicKey) (crypto11.Signer, error) {
	var id, label []byte
	if u.id != "" {
		id = []byte(u.id)
	}
	if u.object != "" {
		label = []byte(u.object)
	}
	keys, err := ctx.FindKeyPairs(id, label)
	if err != nil {
		return nil, fmt.Errorf("%s: look for the key: %w", u, err)
	}
	var found []crypto11.Signer
	for _, k := range keys {
		public, ok := k.Public().(*ecdsa.PublicKey)
		if ok && (of == nil || public.Equal(of)) {
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%s: %d keys are named so; name one by its id", u, len(found))
	case len(keys) == 0:
		return nil, fmt.Errorf("%s: there is no such private key with its public key and the same id beside it", u)
	case of != nil:
		return nil, fmt.Errorf("%s: the key is not that of the certificate", u)
	}
	return nil, fmt.Errorf("%s: the key is no ECDSA key (P-256, P-384 or P-521)", u)
}
