// Package devidp is the OIDC issuer of a local stack: whoever can reach it on
// loopback gets a token of any name. It exists only inside `compute dev` and in
// tests; no production process starts it.
package devidp

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Audience is the audience of every token of a local issuer.
const Audience = "better-compute"

// Issuer mints tokens and serves discovery, keys and a token endpoint.
type Issuer struct {
	url string
	key *ecdsa.PrivateKey
	kid string
}

// New makes an issuer whose tokens name url as their issuer. Its key is read
// from keyFile, or made there when the file is missing, so that tokens outlive
// a restart.
func New(url, keyFile string) (*Issuer, error) {
	key, err := loadKey(keyFile)
	if err != nil {
		return nil, err
	}
	i := &Issuer{url: url, key: key}
	thumb, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("name the issuer's key: %w", err)
	}
	i.kid = fmt.Sprintf("%x", thumb[:8])
	return i, nil
}

func loadKey(path string) (*ecdsa.PrivateKey, error) {
	if b, err := os.ReadFile(path); err == nil {
		block, _ := pem.Decode(b)
		if block == nil {
			return nil, fmt.Errorf("issuer key %s: no PEM block", path)
		}
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("issuer key %s: %w", path, err)
		}
		return key, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("issuer key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the issuer's key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the issuer's key: %w", err)
	}
	// Written beside and renamed: half a key would stop every later start.
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("keep the issuer's key: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, fmt.Errorf("keep the issuer's key: %w", err)
	}
	return key, nil
}

// Token is what a token of the local issuer says.
type Token struct {
	Subject string
	MFA     bool
	TTL     time.Duration
}

// Mint signs a token.
func (i *Issuer) Mint(t Token) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", i.kid))
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	amr := []string{"pwd"}
	if t.MFA {
		amr = append(amr, "mfa")
	}
	now := time.Now()
	token, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: i.url, Subject: t.Subject, Audience: jwt.Audience{Audience},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now.Add(-time.Minute)), Expiry: jwt.NewNumericDate(now.Add(t.TTL))}).
		Claims(map[string]any{"amr": amr}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return token, nil
}

// tokenRequest is the body of POST /token.
type tokenRequest struct {
	Sub        string `json:"sub"`
	MFA        bool   `json:"mfa"`
	TTLSeconds int64  `json:"ttlSeconds"`
}

// Handler serves the issuer: /.well-known/openid-configuration, /keys, and
// POST /token {sub, mfa, ttlSeconds} -> {token}. It answers only under the
// issuer's own name, so that a web page whose name was made to point to
// loopback gets no token.
func (i *Issuer) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "token_endpoint": i.url + "/token",
			"id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"id_token"},
			"subject_types_supported": []string{"public"}, "authorization_endpoint": i.url + "/token"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: i.kid, Algorithm: "ES256", Use: "sig"}}})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		var in tokenRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil || in.Sub == "" {
			http.Error(w, `send {"sub": NAME, "mfa": bool, "ttlSeconds": n}`, http.StatusBadRequest)
			return
		}
		ttl := time.Duration(in.TTLSeconds) * time.Second
		if ttl <= 0 {
			ttl = 12 * time.Hour
		}
		token, err := i.Mint(Token{Subject: in.Sub, MFA: in.MFA, TTL: ttl})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, map[string]string{"token": token})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.url != "http://"+r.Host {
			http.Error(w, "this issuer is "+i.url, http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that went away is no error of ours
}
