package pkcs11

import (
	"strings"
	"testing"
)

func TestParseURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]keyURI{
		"pkcs11:token=ca;object=node-ca?module-path=/m.so&pin-source=file:/run/pin": {token: "ca", object: "node-ca", module: "/m.so", pinFile: "/run/pin"},
		"pkcs11:id=%01%FF;serial=0f;type=private?module-path=/m.so":                 {serial: "0f", id: "\x01\xff", module: "/m.so"},
		"pkcs11:token=a%3Bb;object=c%20d;id=%61?pin-source=/pin&module-path=/m.so":  {token: "a;b", object: "c d", id: "a", module: "/m.so", pinFile: "/pin"},
		"pkcs11:token=ca;object=x?module-path=/m.so&pin-source=file:///run/pin":     {token: "ca", object: "x", module: "/m.so", pinFile: "/run/pin"},
	} {
		if got, err := parseURI(uri); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", uri, got, err, want)
		}
	}
	for uri, why := range map[string]string{
		"/keys/ca-key.pem":                                                          "begins with",
		"pkcs11:object=k?module-path=/m.so":                                         "name the token",
		"pkcs11:token=ca;serial=1;object=k?module-path=/m.so":                       "name the token",
		"pkcs11:token=ca?module-path=/m.so":                                         "name the key",
		"pkcs11:token=ca;object=k":                                                  "module",
		"pkcs11:token=ca;object=k?module-path=m.so":                                 "module",
		"pkcs11:token=ca;object=k;type=public?module-path=/m.so":                    "type",
		"pkcs11:token=ca;object=k;object=l?module-path=/m.so":                       "twice",
		"pkcs11:token=ca;object=k;slot-id=1?module-path=/m.so":                      `"slot-id"`,
		"pkcs11:token=ca;object=k;module-path=/m.so":                                `"module-path"`,
		"pkcs11:token=ca;object=%zz?module-path=/m.so":                              "encoded",
		"pkcs11:token=ca;object=k?module-path=/m.so&pin-source=|/bin/sh":            "a file",
		"pkcs11:token=ca;object=k?module-path=/m.so&pin-source=pin":                 "a file",
		"pkcs11:token=ca;object=k?module-path=/m.so&pin-value=hush-pin":             "process lists",
		"pkcs11:token=ca;object=k;pin-value=hush-pin?module-path=/m.so":             "process lists",
		"pkcs11:token=ca;object=k?module-path=/m.so&pin-value=hush-pin&unknown=yes": "process lists",
	} {
		_, err := parseURI(uri)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v; want an error with %q", uri, err, why)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error repeats the PIN: %v", uri, err)
		}
	}
}
