// Package pkcs11 uses keys that lie in a token: a hardware security module, a
// cloud's key service with a PKCS#11 module, SoftHSM. A key is named by a URI
// (RFC 7512). Tokens are spoken to through a C library, so a program built
// without cgo has none: Open then says so.
package pkcs11

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Scheme begins a key's URI.
const Scheme = "pkcs11:"

// keyURI is a key's URI, taken apart.
type keyURI struct {
	// token and serial name the token, one of them.
	token, serial string
	// object and id name the key in it: CKA_LABEL and CKA_ID, one or both.
	object, id string
	// module is the path of the PKCS#11 module, a shared library.
	module string
	// pinFile holds the user's PIN; empty for tokens that ask for none.
	pinFile string
}

// parseURI reads a key's URI. What it does not know it refuses, as the RFC says:
// an attribute that is ignored could have told two keys apart. No error repeats
// a value, which could be a PIN.
func parseURI(s string) (keyURI, error) {
	var u keyURI
	rest, ok := strings.CutPrefix(s, Scheme)
	if !ok {
		return u, fmt.Errorf("a key's URI begins with %q", Scheme)
	}
	path, query, _ := strings.Cut(rest, "?")
	kind, pinSource := "private", ""
	err := attributes(path, ";", map[string]*string{"token": &u.token, "serial": &u.serial, "object": &u.object, "id": &u.id, "type": &kind})
	if err == nil {
		err = attributes(query, "&", map[string]*string{"module-path": &u.module, "pin-source": &pinSource})
	}
	if err != nil {
		return u, err
	}
	switch {
	case kind != "private":
		return u, errors.New("the key's URI is of another type: leave type out, or say type=private")
	case (u.token == "") == (u.serial == ""):
		return u, errors.New("the key's URI has to name the token by token=LABEL or serial=NUMBER, one of them")
	case u.object == "" && u.id == "":
		return u, errors.New("the key's URI has to name the key by object=LABEL, id=%01... or both")
	case !filepath.IsAbs(u.module):
		return u, errors.New("the key's URI has to name the PKCS#11 module: ?module-path=/path/of/the/module.so")
	}
	if pinSource == "" {
		return u, nil
	}
	if u.pinFile = strings.TrimPrefix(strings.TrimPrefix(pinSource, "file:"), "//"); !filepath.IsAbs(u.pinFile) {
		return u, errors.New("pin-source has to be a file: pin-source=file:/path/of/the/pin")
	}
	return u, nil
}

// attributes reads the attributes of one part of a URI.
func attributes(part, separator string, known map[string]*string) error {
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(part, separator) {
		if pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		into := known[name]
		switch {
		case name == "pin-value":
			return errors.New("a PIN in the key's URI can be read in process lists and logs: put it into a file that only the process can read, and say pin-source=file:/path")
		case !ok || into == nil:
			return fmt.Errorf("the key's URI has the attribute %q: known are token, serial, object, id and type, and after the ? module-path and pin-source", name)
		case seen[name]:
			return fmt.Errorf("the key's URI has the attribute %q twice", name)
		}
		seen[name] = true
		var err error
		if *into, err = url.PathUnescape(value); err != nil {
			return fmt.Errorf("the attribute %q of the key's URI is not encoded as in a URI", name)
		}
	}
	return nil
}

// String names the key to people.
func (u keyURI) String() string {
	token, key := "token "+u.token, "key "+u.object
	if u.token == "" {
		token = "token with serial number " + u.serial
	}
	if u.id != "" {
		key += " id " + hex.EncodeToString([]byte(u.id))
	}
	return strings.Join(strings.Fields(key), " ") + " of " + token
}

// check looks whether the module is there, which no waiting mends.
func (u keyURI) check() error {
	if _, err := os.Stat(u.module); err != nil {
		return fmt.Errorf("the PKCS#11 module of %s: %w", u, err)
	}
	return nil
}
