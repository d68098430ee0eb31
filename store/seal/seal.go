// Package seal encrypts secrets at rest with a tink keyset: each secret is
// bound to what it belongs to, and keys can be rotated without re-encrypting at
// once.
package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Keyset seals and opens secrets. The primary key seals; any key opens. One
// that was loaded from a file reads it again when it meets a secret that it
// cannot open: the file was rotated since.
type Keyset struct {
	path string

	mu     sync.RWMutex
	handle *keyset.Handle
	aead   tink.AEAD
	// read is the file's time of change when it was read.
	read time.Time
}

// Load reads a keyset file (tink's JSON). The file is itself a secret: 0600.
func Load(path string) (*Keyset, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the keyset: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the keyset: %w", err)
	}
	h, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("read the keyset %s: %w", path, err)
	}
	k, err := fromHandle(h)
	if err != nil {
		return nil, err
	}
	k.path, k.read = path, info.ModTime()
	return k, nil
}

// reload takes up the keyset's file when it changed, and says whether it did.
func (k *Keyset) reload() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" {
		return false
	}
	info, err := os.Stat(k.path)
	if err != nil || info.ModTime().Equal(k.read) {
		return false
	}
	fresh, err := Load(k.path)
	if err != nil {
		return false
	}
	k.handle, k.aead, k.read = fresh.handle, fresh.aead, fresh.read
	return true
}

func (k *Keyset) primitive() tink.AEAD {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.aead
}

// Keys is how many keys the set holds.
func (k *Keyset) Keys() int { return len(k.handle.KeysetInfo().GetKeyInfo()) }

// New makes a keyset with one fresh AES-256-GCM key.
func New() (*Keyset, error) {
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("make a keyset: %w", err)
	}
	return fromHandle(h)
}

// Create makes a keyset file, and leaves one that is there alone.
func Create(path string) (*Keyset, error) {
	if _, err := os.Stat(path); err == nil {
		return Load(path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for the keyset: %w", err)
	}
	k, err := New()
	if err != nil {
		return nil, err
	}
	return k, k.Save(path)
}

func fromHandle(h *keyset.Handle) (*Keyset, error) {
	a, err := aead.New(h)
	if err != nil {
		return nil, fmt.Errorf("use the keyset: %w", err)
	}
	return &Keyset{handle: h, aead: a}, nil
}

// SealedByPrimary says whether the primary key sealed a secret.
func (k *Keyset) SealedByPrimary(sealed []byte) bool {
	id := k.handle.KeysetInfo().GetPrimaryKeyId()
	// Tink's prefix: a version byte and the key's id.
	return len(sealed) > 5 && sealed[0] == 1 && binary.BigEndian.Uint32(sealed[1:5]) == id
}

// Save writes the keyset to a file that only its owner reads, whole or not at
// all.
func (k *Keyset) Save(path string) error {
	var buf bytes.Buffer
	if err := insecurecleartextkeyset.Write(k.handle, keyset.NewJSONWriter(&buf)); err != nil {
		return fmt.Errorf("write the keyset: %w", err)
	}
	if err := os.WriteFile(path+".new", buf.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write the keyset: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("put the keyset in place: %w", err)
	}
	return nil
}

// Rotate returns the set with a fresh key that seals. The old ones go on
// opening.
func (k *Keyset) Rotate() (*Keyset, error) {
	m := keyset.NewManagerFromHandle(k.handle)
	id, err := m.Add(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("add a key: %w", err)
	}
	if err := m.SetPrimary(id); err != nil {
		return nil, fmt.Errorf("make the new key the primary one: %w", err)
	}
	h, err := m.Handle()
	if err != nil {
		return nil, fmt.Errorf("rotate the keyset: %w", err)
	}
	return fromHandle(h)
}

// Seal encrypts a secret bound to what it belongs to, such as a node's id and
// the column: it opens only under the same words.
func (k *Keyset) Seal(secret []byte, belongsTo string) ([]byte, error) {
	if k == nil {
		return nil, errors.New("no keyset is configured (COMPUTE_KEYSET)")
	}
	b, err := k.primitive().Encrypt(secret, []byte(belongsTo))
	if err != nil {
		return nil, fmt.Errorf("seal the secret of %s: %w", belongsTo, err)
	}
	return b, nil
}

// Open decrypts what Seal made for the same belongsTo.
func (k *Keyset) Open(sealed []byte, belongsTo string) ([]byte, error) {
	if k == nil {
		return nil, errors.New("no keyset is configured (COMPUTE_KEYSET)")
	}
	b, err := k.primitive().Decrypt(sealed, []byte(belongsTo))
	if err != nil && k.reload() {
		b, err = k.primitive().Decrypt(sealed, []byte(belongsTo))
	}
	if err != nil {
		return nil, fmt.Errorf("open the secret of %s: it was sealed with another keyset, or for something else", belongsTo)
	}
	return b, nil
}
