package ipmi_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/ipmi"
)

// The authentication algorithms of the suites, as Open Session names them.
const (
	algorithmSHA1   = 1 // suites 1 to 3
	algorithmSHA256 = 3 // suite 17
)

func TestC17CipherSuite(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	for name, c := range map[string]struct {
		policy   []int
		quirks   []string
		password string
		kind     bmc.Kind
		opened   []byte
	}{
		"17 is refused, 3 works":           {opened: []byte{algorithmSHA256, algorithmSHA1}},
		"what worked before comes first":   {quirks: []string{"ipmi-cipher-suite-3"}, opened: []byte{algorithmSHA1}},
		"never below the policy":           {policy: []int{17}, kind: bmc.KindUnsupported, opened: []byte{algorithmSHA256}},
		"nor by what worked before":        {policy: []int{17}, quirks: []string{"ipmi-cipher-suite-3"}, kind: bmc.KindUnsupported, opened: []byte{algorithmSHA256}},
		"never suite 0":                    {policy: []int{0}, kind: bmc.KindUnsupported},
		"a wrong password is no downgrade": {policy: []int{3, 1}, password: "wrong", kind: bmc.KindAuth, opened: []byte{algorithmSHA1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRelay(t, s)
			target := targetAt(t, r.port)
			target.CipherSuites, target.Quirks = c.policy, c.quirks
			if c.password != "" {
				target.Password = c.password
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			client, err := ipmi.Open(ctx, target, bmc.Options{Waits: waits()})
			wantKind(t, err, c.kind)
			r.mu.Lock()
			opened := slices.Compact(slices.Clone(r.openSuites))
			r.mu.Unlock()
			if !slices.Equal(opened, c.opened) {
				t.Errorf("sessions were opened with %v, want %v", opened, c.opened)
			}
			if n := r.requests([2]byte{0x06, 0x54}); n != 0 {
				t.Errorf("the list of suites, which some never answer, was asked for %d times", n)
			}
			if err != nil {
				return
			}
			f, err := client.Identify(t.Context())
			if err != nil || !slices.Contains(f.Quirks, "ipmi-cipher-suite-3") {
				t.Errorf("what works is not kept: %q, %v", f.Quirks, err)
			}
		})
	}
}

// plain opens through a relay that can read and change the messages.
func plain(t *testing.T, r *relay) bmc.Client {
	t.Helper()
	target := targetAt(t, r.port)
	target.CipherSuites = []int{1}
	return open(t, target, bmc.Options{})
}

// TestC18WrongState: a BMC that answers 0xD5 and one that answers 0 come to the
// same end.
func TestC18WrongState(t *testing.T) {
	t.Parallel()
	for _, code := range []byte{0, 0xd5} {
		for _, c := range []struct {
			power string
			aim   bmc.PowerAim
			want  bmc.PowerState
			sends int
		}{
			{"0\n", bmc.AimOff, bmc.PowerOff, 0},
			{"1\n", bmc.AimOn, bmc.PowerOn, 0},
			{"0\n", bmc.AimCycle, bmc.PowerOn, 1},
			{"0\n", bmc.AimReset, bmc.PowerOn, 1},
			{"1\n", bmc.AimOff, bmc.PowerOff, 1},
			{"1\n", bmc.AimCycle, bmc.PowerOn, 2},
		} {
			t.Run(string(c.aim)+"/"+strings.TrimSpace(c.power)+"/"+map[bool]string{true: "d5", false: "ok"}[code != 0], func(t *testing.T) {
				t.Parallel()
				s := startSim(t)
				s.Write("power", c.power, 0o600)
				r := startRelay(t, s)
				r.code = code
				got, err := plain(t, r).SetPower(t.Context(), bmc.PowerChange{Aim: c.aim})
				if err != nil || got.State != c.want || s.power() != c.want || r.controls() != c.sends {
					t.Errorf("%+v, %v; is %s after %d requests", got, err, s.power(), r.controls())
				}
			})
		}
	}
}

// TestC18NotForEver: a wrong state that stays is an error after a few tries.
func TestC18NotForEver(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	s.Write("refuse", "", 0o600)
	r := startRelay(t, s)
	r.code = 0xd5
	// What ends it is the count of tries: the time is more than a slow machine needs.
	patient := waits()
	patient.Change = time.Minute
	target := targetAt(t, r.port)
	target.CipherSuites = []int{1}
	_, err := open(t, target, bmc.Options{Waits: patient}).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn})
	wantKind(t, err, bmc.KindBusy)
	if n := r.controls(); n < 1 || n > 3 {
		t.Errorf("%d requests", n)
	}
	if !strings.Contains(err.Error(), "0xd5") {
		t.Errorf("%v does not name the completion code", err)
	}
}

// TestNoResend: a change whose answer is lost is looked for, not sent again.
func TestNoResend(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	r := startRelay(t, s)
	r.lose = 1
	got, err := plain(t, r).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn})
	if err != nil || got.State != bmc.PowerOn || r.controls() != 1 {
		t.Errorf("%+v, %v, %d requests", got, err, r.controls())
	}
	// A reset shows nothing: it is an unknown outcome, and not repeated.
	r.mu.Lock()
	r.lose = 1
	r.mu.Unlock()
	_, err = plain(t, r).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimReset})
	wantKind(t, err, bmc.KindUnreachable)
	var be *bmc.Error
	if errors.As(err, &be); be.Unsent || r.controls() != 2 {
		t.Errorf("%+v, %d requests", be, r.controls())
	}
}

// TestWithheld: a change that did not arrive is sent again once the state shows
// that nothing came of it.
func TestWithheld(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	r := startRelay(t, s)
	r.withhold = 1
	got, err := plain(t, r).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn})
	if err != nil || got.State != bmc.PowerOn || r.controls() != 2 || len(s.changes()) != 1 {
		t.Errorf("%+v, %v, %d requests", got, err, r.controls())
	}
}

// TestC19Lengths: what does not fit is refused before anything is sent, counted
// in bytes.
func TestC19Lengths(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user, password string
		ok             bool
	}{
		"20 bytes":             {user, "12345678901234567890", true},
		"21 bytes":             {user, "123456789012345678901", false},
		"11 letters, 22 bytes": {user, "üüüüüüüüüüü", false},
		"16 bytes":             {"1234567890123456", password, true},
		"17 bytes":             {"12345678901234567", password, false},
		"zero byte":            {user, "a\x00b", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := ipmi.Fits(c.user, c.password); (err == nil) != c.ok {
				t.Fatalf("%v", err)
			}
			if c.ok {
				return
			}
			target := targetAt(t, freePort(t))
			target.Username, target.Password = c.user, c.password
			exchanges := 0
			_, err := ipmi.Open(t.Context(), target, bmc.Options{Waits: waits(), Observe: func(bmc.Exchange) { exchanges++ }})
			wantKind(t, err, bmc.KindUnsupported)
			if exchanges != 0 || strings.Contains(err.Error(), c.password) {
				t.Errorf("%d exchanges, %v", exchanges, err)
			}
		})
	}
}

// TestUnreachable: silence is unreachable, and nothing was changed.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	_, err := ipmi.Open(t.Context(), targetAt(t, freePort(t)), bmc.Options{Waits: waits()})
	wantKind(t, err, bmc.KindUnreachable)
	var be *bmc.Error
	if errors.As(err, &be); !be.Unsent {
		t.Errorf("%+v", be)
	}
}

// TestLeftOverDevice: a device that an earlier override left is no proof that
// ours was taken.
func TestLeftOverDevice(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	s.Write("boot", "cdrom\n", 0o600)
	if err := open(t, s.target(), bmc.Options{}).SetBoot(t.Context(), bmc.BootOverride{Target: bmc.BootCD}); err != nil {
		t.Fatal(err)
	}
	if got := s.changes(); len(got) != 2 || got[0] != "boot none" && got[0] != "boot default" {
		t.Errorf("the machine was told %q", got)
	}
	// A machine that takes no override at all.
	refusing := startSim(t)
	refusing.Write("refuse", "", 0o600)
	if err := open(t, refusing.target(), bmc.Options{}).SetBoot(t.Context(), bmc.BootOverride{Target: bmc.BootPXE}); err == nil {
		t.Error("an override that was not taken was called a success")
	}
	err := open(t, s.target(), bmc.Options{}).SetBoot(t.Context(), bmc.BootOverride{Target: bmc.BootHTTP})
	wantKind(t, err, bmc.KindUnsupported)
}

// TestEvidenceHoldsNoPassword looks at what is kept as evidence; the
// process table shows the same arguments.
func TestEvidenceHoldsNoPassword(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	var seen []bmc.Exchange
	c := open(t, s.target(), bmc.Options{Observe: func(e bmc.Exchange) { seen = append(seen, e) }})
	if _, err := c.SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Fatal(err)
	}
	if len(seen) == 0 {
		t.Fatal("no evidence")
	}
	for _, e := range seen {
		if strings.Contains(e.Path+e.Error, password) {
			t.Errorf("%+v", e)
		}
	}
}
