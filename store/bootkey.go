package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// bootKeyBytes is the length of the key that boot ids and tokens derive from.
const bootKeyBytes = 32

// LoadBootKey reads the boot key's file: 64 hex digits. The file is a secret.
func LoadBootKey(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the boot key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(key) != bootKeyBytes {
		return nil, fmt.Errorf("the boot key %s is not %d hex digits", path, 2*bootKeyBytes)
	}
	return key, nil
}

// CreateBootKey makes the boot key's file, and leaves one that is there alone.
func CreateBootKey(path string) ([]byte, error) {
	if _, err := os.Stat(path); err == nil {
		return LoadBootKey(path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for the boot key: %w", err)
	}
	key := make([]byte, bootKeyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make the boot key: %w", err)
	}
	if err := os.WriteFile(path+".new", []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the boot key: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, fmt.Errorf("put the boot key in place: %w", err)
	}
	return key, nil
}
