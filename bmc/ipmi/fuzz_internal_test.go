package ipmi

import (
	"errors"
	"strings"
	"testing"

	"github.com/bettercompute/compute/bmc"
)

// FuzzToolOutput: whatever ipmitool writes, its output is read or refused, and
// its complaint is an error of a kind that says what to do.
func FuzzToolOutput(f *testing.F) {
	for _, s := range []string{" 01 00 40 54\n", "RAW REQ (channel=0x0)\n", "Product Name : X\nProduct Name : Y", "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2 rsp=0xd5): Command not supported in present state",
		"Error in open session response message : no matching cipher suite\n", "RAKP 2 HMAC is invalid", ":", "zz", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, out string) {
		if data, err := hexLines(out); err == nil && len(data) > len(out)/2 {
			t.Fatalf("%d bytes out of %q", len(data), out)
		}
		for name, value := range fields(out) {
			if strings.TrimSpace(value) == "" || strings.Contains(name, "\n") {
				t.Fatalf("%q: %q", name, value)
			}
		}
		err := (&tool{host: "h", port: "623"}).failure(t.Context(), "read", out, errors.New("exit status 1"))
		var code *completion
		var cipher *cipherRefused
		var known *bmc.Error
		switch {
		case errors.As(err, &code), errors.As(err, &cipher):
		case errors.As(err, &known) && known.Kind != "" && known.Remedy != "" && known.Cause != "":
		default:
			t.Fatalf("%q is told as %v", out, err)
		}
	})
}
