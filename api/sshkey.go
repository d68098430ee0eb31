package api

import (
	"encoding/base64"
	"errors"
	"strings"

	"golang.org/x/crypto/ssh"
)

// sshKeyRule says what parseSSHKey takes.
const sshKeyRule = "one Ed25519 or ECDSA P-256 public key as its .pub file holds it: type, base64 and at most a comment, on one line without options or a line break"

// errSSHKey says no more than the rule: what is wrong with a key is seen by
// comparing.
var errSSHKey = errors.New(sshKeyRule)

// parseSSHKey reads a key to certify. Nothing but the key itself comes out of it:
// no options, no second line, no comment. Keys of tokens (sk-) are refused, since
// what they assert is not looked at; so are certificates, RSA and every other
// curve.
func parseSSHKey(text string) (ssh.PublicKey, error) {
	for _, r := range text {
		if r < 0x20 || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return nil, errSSHKey
		}
	}
	kind, rest, _ := strings.Cut(text, " ")
	if kind != ssh.KeyAlgoED25519 && kind != ssh.KeyAlgoECDSA256 {
		return nil, errSSHKey
	}
	body, _, _ := strings.Cut(rest, " ")
	blob, err := base64.StdEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, errSSHKey
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil || key.Type() != kind || weakSSHKey(key) {
		return nil, errSSHKey
	}
	return key, nil
}

// smallOrder are the points of small order of Curve25519's Edwards form, as they
// are encoded, canonically and not, without the sign bit. A signature by such a
// "key" can be made by anybody who sees it.
var smallOrder = [][32]byte{
	{0: 0}, // order 4
	{0: 1}, // order 1
	{0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
		0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05}, // order 8
	{0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
		0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a}, // order 8
	fieldTop(0xec), // p-1, order 2
	fieldTop(0xed), // p, is 0
	fieldTop(0xee), // p+1, is 1
}

// fieldTop is a number near 2^255-19, whose lowest byte is given.
func fieldTop(low byte) (b [32]byte) {
	for i := range b {
		b[i] = 0xff
	}
	b[0], b[31] = low, 0x7f
	return b
}

// weakSSHKey says whether a key of an accepted type gives no security.
func weakSSHKey(key ssh.PublicKey) bool {
	if key.Type() != ssh.KeyAlgoED25519 {
		return false // ParsePublicKey checked that the point is on the curve
	}
	blob := key.Marshal()
	var point [32]byte
	copy(point[:], blob[len(blob)-len(point):])
	point[31] &= 0x7f
	for _, weak := range smallOrder {
		if point == weak {
			return true
		}
	}
	return false
}
