package identity

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"strings"
)

// OpenToken opens the key that a PKCS#11 URI names; of says which public key it
// has, nil leaves that to the URI. It does not wait for the token: an error means
// that the configuration is wrong. (It is a parameter so that a program that has
// no use for tokens, such as the agent, does not hold what speaks to them.)
type OpenToken func(uri string, of crypto.PublicKey) (RemoteKey, error)

// RemoteKey is a key outside of this process, which can be away: in a token or a
// key service. It comes back by itself.
type RemoteKey interface {
	crypto.Signer
	// Ready says why the key cannot sign now; after nil, Public knows the public
	// key.
	Ready(ctx context.Context) error
	// Close lets the token go until the key is used again.
	Close() error
}

// KeyReady says why a CA's key cannot sign now. One that was read from a file
// always can.
func KeyReady(ctx context.Context, key crypto.Signer) error {
	if remote, ok := key.(RemoteKey); ok {
		return remote.Ready(ctx)
	}
	return nil
}

// letGo closes a key's way to its token.
func letGo(key crypto.Signer) {
	if remote, ok := key.(RemoteKey); ok {
		_ = remote.Close() // it opens again by itself
	}
}

// tokenScheme begins a key's URI (RFC 7512).
const tokenScheme = "pkcs11:"

// readKey reads a CA's key. Its name is a PKCS#11 URI or a file; and the file
// may hold such a URI, so that a key can be replaced in place. For the key of a
// token it returns the key, for another the file's contents.
func readKey(name string, of crypto.PublicKey, tokens OpenToken) (RemoteKey, []byte, error) {
	uri := name
	var b []byte
	if !strings.HasPrefix(name, tokenScheme) {
		var err error
		if b, err = os.ReadFile(name); err != nil {
			return nil, nil, fmt.Errorf("read the CA's key: %w", err)
		}
		uri = string(bytes.TrimSpace(b))
	}
	if !strings.HasPrefix(uri, tokenScheme) {
		return nil, b, nil
	}
	if tokens == nil {
		return nil, nil, errors.New("the CA's key lies in a token, which this program does not use")
	}
	key, err := tokens(uri, of)
	if err != nil {
		return nil, nil, fmt.Errorf("the CA's key: %w", err)
	}
	return key, nil, nil
}
