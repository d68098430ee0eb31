package fleet

import (
	"fmt"
	"regexp"
)

// Patterns holds every pattern of the API by name, written as the reference
// writes them (ECMAScript). Tags name them (`pattern=tenantId`); GoPattern
// translates them.
var Patterns = map[string]string{
	"tenantId":       `^[A-Za-z0-9._:-]{1,128}$`,
	"poolRef":        `^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`,
	"siteId":         `^site_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"nodeId":         `^node_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"sshNodeId":      `^node_[0-9a-z]{26,52}$`,
	"operationId":    `^op_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"allocationId":   `^alloc_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"reservationId":  `^resv_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"joinTokenId":    `^join_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"bindingId":      `^bind_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"serviceTokenId": `^svct_[0-9a-hjkmnp-tv-z]{26,52}$`,
	"listCursor":     `^[A-Za-z0-9._:-]{1,256}$`,
	"eventType":      `^[a-z][a-z0-9.-]{0,63}$`,
	"eventCursor":    `^\d{1,20}:\d{1,20}$`,
	"reason":         `^[^\u0000-\u001f\u007f]*$`,
	"labelKey":       `^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$`,
	"principal":      `^[a-z_][a-z0-9_-]{0,31}$`,
	"serial":         `^[0-9]{1,20}$`,
	"dnsLabel":       `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`,
	"hostname":       `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`,
	"mac":            `^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`,
	"checksum":       `^sha256:[0-9a-f]{64}$`,
	"fingerprint":    `^sha256:[0-9a-f]{64}$`,
	"identity":       `^[a-z0-9-]{1,32}:[^\u0000-\u0020\u007f]{1,256}$`,
	"httpURL":        `^https?://[^\u0000-\u0020\u007f]+$`,
	"uuid":           `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`,
	"sshKey":         `^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\u0000-\u001f\u007f]*)?$`,
	"taintKey":       `^[^\u0000]+$`,
}

var unicodeEscape = regexp.MustCompile(`\\u([0-9a-fA-F]{4})`)

// GoPattern translates a pattern of the reference to Go's syntax: \uXXXX
// becomes \x{XXXX}. A final $ means the same in both, the end of the text alone.
func GoPattern(ecma string) string { return unicodeEscape.ReplaceAllString(ecma, `\x{$1}`) }

var compiled = func() map[string]*regexp.Regexp {
	m := make(map[string]*regexp.Regexp, len(Patterns))
	for name, p := range Patterns {
		m[name] = regexp.MustCompile(GoPattern(p))
	}
	return m
}()

// MatchPattern says whether s matches the named pattern. It panics on a name
// that Patterns does not hold, which is a programming error.
func MatchPattern(name, s string) bool {
	re, ok := compiled[name]
	if !ok {
		panic(fmt.Sprintf("fleet: no pattern named %q", name))
	}
	return re.MatchString(s)
}
