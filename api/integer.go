package api

import (
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// integer reads a whole number, which may be written 5.0 or 5e0. One beyond 64
// bits becomes the nearest that is not, so that its range judges it.
func integer(raw jsontext.Value) (int64, bool) {
	if raw.Kind() != '0' {
		return 0, false
	}
	text := strings.ToLower(strings.TrimSpace(string(raw)))
	number, exponent, _ := strings.Cut(text, "e")
	digits, negative := strings.CutPrefix(number, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, true
	}
	// The value is digits * 10^shift.
	shift := shiftOf(exponent) - len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	shift += len(digits) - len(trimmed)
	if shift < 0 {
		return 0, false
	}
	n := int64(math.MaxInt64)
	if len(trimmed)+shift <= maxDigits {
		if v, err := strconv.ParseInt(trimmed+strings.Repeat("0", shift), 10, 64); err == nil {
			n = v
		}
	}
	if negative {
		return -n, true
	}
	return n, true
}

// maxDigits is how many digits the largest 64-bit number has.
const maxDigits = 19

// farAway stands for an exponent that no body's digits can make up for.
const farAway = 1 << 40

func shiftOf(exponent string) int {
	if exponent == "" {
		return 0
	}
	n, err := strconv.ParseInt(exponent, 10, 64)
	switch {
	case err == nil && n < farAway && n > -farAway:
		return int(n)
	case strings.HasPrefix(exponent, "-"):
		return -farAway
	default:
		return farAway
	}
}
