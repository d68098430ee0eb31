package main

import (
	"crypto"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/identity/pkcs11"
)

// caKeyUsage is how the key of a CA is named, in flags' words.
const caKeyUsage = "a file, or a key in a token by its PKCS#11 URI, which may also be what the file holds"

// openToken opens the keys that lie in tokens.
func openToken(uri string, of crypto.PublicKey) (identity.RemoteKey, error) {
	key, err := pkcs11.Open(uri, of)
	if err != nil {
		return nil, err // a nil *Key would not be a nil RemoteKey
	}
	return key, nil
}
