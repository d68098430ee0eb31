package identity

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// CreateSSHCA makes the SSH CA's key in a file that only its owner can read, and
// beside it the public key that hosts are told, and leaves those that are there.
func CreateSSHCA(ctx context.Context, keyFile, publicFile string, tokens OpenToken) error {
	if _, err := os.Stat(keyFile); err == nil {
		signer, err := LoadSSHCA(keyFile, tokens)
		if err != nil {
			return err
		}
		defer letGo(signer)
		if err := KeyReady(ctx, signer); err != nil {
			return err
		}
		return writeSSHPublic(publicFile, signer)
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for the SSH CA: %w", err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make the SSH CA's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("write the SSH CA's key: %w", err)
	}
	if err := writePEM(keyFile, "PRIVATE KEY", der, 0o600); err != nil {
		return err
	}
	return writeSSHPublic(publicFile, key)
}

func writeSSHPublic(file string, signer crypto.Signer) error {
	public, err := SSHPublicKey(signer.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(public+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the SSH CA's public key: %w", err)
	}
	return nil
}

// LoadSSHCA reads the SSH CA's key: PKCS#8 or as ssh-keygen writes it, without a
// passphrase, or one of a token (see readKey), whose public key is known only
// when it is ready.
func LoadSSHCA(keyName string, tokens OpenToken) (crypto.Signer, error) {
	remote, b, err := readKey(keyName, nil, tokens)
	if err != nil {
		return nil, err
	}
	if remote != nil {
		return remote, nil
	}
	key, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("the SSH CA %s is no private key, or has a passphrase", keyName)
	}
	if k, ok := key.(*ed25519.PrivateKey); ok {
		key = *k
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the SSH CA %s cannot sign", keyName)
	}
	return signer, nil
}

// SSHPublicKey is a key as OpenSSH writes it, on one line without a comment.
func SSHPublicKey(public crypto.PublicKey) (string, error) {
	k, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("write an SSH public key: %w", err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))), nil
}

// ReadSSHPublicKey reads the key of a .pub file, without its comment.
func ReadSSHPublicKey(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read an SSH public key: %w", err)
	}
	k, _, options, rest, err := ssh.ParseAuthorizedKey(b)
	if err != nil || len(options) > 0 || len(strings.TrimSpace(string(rest))) > 0 {
		return "", fmt.Errorf("%s does not hold one public key", file)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))), nil
}
