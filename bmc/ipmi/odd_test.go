package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/ipmi"
	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
)

// Passwords that shells, command lines or tables could mangle log in as they
// are, through ipmitool and through bmclib, up to the limit.
func TestOddPasswords(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]string{
		"quotes": `a"b'c`, "spaces": " in side ", "dollar": "$HOME`id`", "backslash": `a\b\\c`, "unicode": "pässwörd", "dash": "-E-leading", "percent": "%s%n;&|",
		"16 bytes": "1234567890123456",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSimWith(t, ipmisim.Config{Password: p})
			target := s.target()
			target.Password = p
			c := open(t, target, bmc.Options{})
			if got, err := c.SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil || got.State != bmc.PowerOn {
				t.Errorf("%+v, %v", got, err)
			}
			target.Password = p[:len(p)-1]
			_, err := ipmi.Open(t.Context(), target, bmc.Options{Waits: waits()})
			wantKind(t, err, bmc.KindAuth)
		})
	}
}

// An account that may not be administrator is used as operator, which is all
// that power and boot device need; one that may do less is refused for its
// privilege, not its password, and is asked about no further.
func TestPrivilege(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*relay){
		"at RAKP":                  func(r *relay) { r.roles = 3 },
		"at Set Session Privilege": func(r *relay) { r.codes = map[[2]byte][]byte{setPrivilege: {0x81}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSim(t)
			r := startRelay(t, s)
			limit(r)
			target := targetAt(t, r.port)
			target.CipherSuites = []int{1}
			var told []string
			c := open(t, target, bmc.Options{Learned: func(q []string) { told = q }})
			if !slices.Contains(told, "ipmi-operator-privilege") {
				t.Errorf("learned %q", told)
			}
			if got, err := c.SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil || got.State != bmc.PowerOn {
				t.Errorf("%+v, %v", got, err)
			}
			if err := c.SetBoot(t.Context(), bmc.BootOverride{Target: bmc.BootPXE}); err != nil || s.boot() != bmc.BootPXE {
				t.Errorf("boot from %s, %v", s.boot(), err)
			}
			if f, err := c.Identify(t.Context()); err != nil || f.Power != bmc.PowerOn || !slices.Contains(f.Quirks, "ipmi-operator-privilege") {
				t.Errorf("%+v, %v", f, err)
			}
			if _, err := c.Log(t.Context(), time.Time{}); err != nil {
				t.Errorf("log: %v", err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if n := len(r.asked); n < 2 || r.asked[0] != 4 || slices.Contains(r.asked[1:], 4) {
				t.Errorf("privileges asked for: %v", r.asked)
			}
		})
	}
	s := startSim(t)
	r := startRelay(t, s)
	r.roles = 2
	target := targetAt(t, r.port)
	target.CipherSuites = []int{1}
	_, err := ipmi.Open(t.Context(), target, bmc.Options{Waits: waits()})
	wantKind(t, err, bmc.KindAuth)
	var e *bmc.Error
	if errors.As(err, &e) && !strings.Contains(e.Cause, "privilege") {
		t.Errorf("%v does not name the privilege", err)
	}
}

// A BMC whose sessions are used up, or that is busy, is waited for and not
// called unreachable or wrong.
func TestExhausted(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	r := startRelay(t, s)
	r.full = 1000
	target := targetAt(t, r.port)
	target.CipherSuites = []int{1}
	_, err := ipmi.Open(t.Context(), target, bmc.Options{Waits: waits()})
	wantKind(t, err, bmc.KindBusy)
	var e *bmc.Error
	if errors.As(err, &e) && (!strings.Contains(e.Cause, "session") || !e.Unsent) {
		t.Errorf("%+v", e)
	}
	r.mu.Lock()
	r.full = 0
	r.mu.Unlock()
	c := open(t, target, bmc.Options{})
	// Node busy, and out of resources: the state decides, then time.
	r.mu.Lock()
	r.codes = map[[2]byte][]byte{chassisControl: {0xc0}}
	r.mu.Unlock()
	if got, err := c.SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil || got.State != bmc.PowerOn || r.controls() != 1 {
		t.Errorf("%+v, %v, %d requests", got, err, r.controls())
	}
	// One that has no session free in the middle of a change: nothing was sent.
	r.mu.Lock()
	r.full = 1
	r.mu.Unlock()
	if got, err := c.SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOff}); err != nil || got.State != bmc.PowerOff || r.controls() != 2 {
		t.Errorf("%+v, %v, %d requests", got, err, r.controls())
	}
}

// A BMC forgets boot flags 60 s after they were set unless it is told not to:
// that is told first, and a BMC that does not know it is set all the same.
func TestBootFlagsAreKept(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]byte{"known": 0, "parameter not supported": 0x80, "invalid": 0xc1, "out of range": 0xc9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSim(t)
			r := startRelay(t, s)
			c := plain(t, r)
			if code != 0 {
				r.mu.Lock()
				r.codes = map[[2]byte][]byte{bootOptions: {code}}
				r.mu.Unlock()
			}
			if err := c.SetBoot(t.Context(), bmc.BootOverride{Target: bmc.BootPXE}); err != nil || s.boot() != bmc.BootPXE {
				t.Fatalf("boot from %s, %v", s.boot(), err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			// Parameter 3, bit 3: the valid bit is not cleared by the timeout; then
			// parameter 5 with the valid bit.
			if w := r.bootWrites; len(w) != 2 || !slices.Equal(w[0], []byte{3, 0x08}) || w[1][0] != 5 || w[1][1]&0x80 == 0 || w[1][2] != 0x04 {
				t.Errorf("written % x", w)
			}
		})
	}
}

// A BMC without a FRU, or with a GUID that proves nothing, is what is left.
func TestLittleIdentity(t *testing.T) {
	t.Parallel()
	s := startSimWith(t, ipmisim.Config{NoFRU: true})
	f, err := open(t, s.target(), bmc.Options{}).Identify(t.Context())
	if err != nil || f.Identity.Serial != "" || f.Identity.Model != "" || f.Identity.UUID == "" || !strings.HasPrefix(f.MachineKey, "uuid:") {
		t.Errorf("without FRU: %+v, %v", f, err)
	}
	inv, err := open(t, s.target(), bmc.Options{}).Inventory(t.Context())
	if err != nil || !slices.Contains(inv.Missing, "serial of the system") {
		t.Errorf("%+v, %v", inv, err)
	}
	zero := startSimWith(t, ipmisim.Config{GUID: strings.Repeat("0", 32)})
	f, err = open(t, zero.target(), bmc.Options{}).Identify(t.Context())
	if err != nil || f.Identity.UUID != "" || strings.HasPrefix(f.MachineKey, "uuid:") {
		t.Errorf("with GUID zero: %+v, %v", f, err)
	}
}

// The GUID is the machine's UUID in either order of its bytes: a record in the
// other order is the same machine, and any other is not.
func TestGUIDOrder(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	f, err := open(t, s.target(), bmc.Options{}).Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	target := s.target()
	for _, same := range []string{f.Identity.UUID, fleet.SwapUUID(f.Identity.UUID), strings.ToUpper(f.Identity.UUID)} {
		target.Identity = &fleet.BMCIdentity{UUID: same}
		if _, err := open(t, target, bmc.Options{}).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOff}); err != nil {
			t.Errorf("%s: %v", same, err)
		}
	}
	target.Identity = &fleet.BMCIdentity{UUID: "33221100-5544-7766-8899-aabbccddee00"}
	_, err = open(t, target, bmc.Options{}).SetPower(t.Context(), bmc.PowerChange{Aim: bmc.AimOn})
	wantKind(t, err, bmc.KindWrongMachine)
	if n := s.changes(); len(n) != 0 {
		t.Errorf("the machine was told %q", n)
	}
}

// What IPMI cannot do is UNSUPPORTED, says what to use in its place, and sends
// nothing.
func TestWhatIPMICannot(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	exchanges := 0
	c := open(t, s.target(), bmc.Options{Observe: func(bmc.Exchange) { exchanges++ }})
	exchanges = 0
	for name, call := range map[string]struct {
		do      func(ctx context.Context) error
		instead string
	}{
		"insert media": {func(ctx context.Context) error { return c.InsertMedia(ctx, "http://127.0.0.1:9/a.iso") }, "Redfish, or boot by PXE"},
		"eject media":  {func(ctx context.Context) error { return c.EjectMedia(ctx, nil) }, "none needed"},
		"erase":        {func(ctx context.Context) error { _, err := c.EraseDrives(ctx, []string{"S1"}); return err }, "our image"},
		"set password": {func(ctx context.Context) error { return c.SetPassword(ctx, "another") }, "setCredentials without rotate"},
		"boot by HTTP": {func(ctx context.Context) error {
			return c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootHTTP, HTTPURL: "http://127.0.0.1:9/"})
		}, "Redfish, or boot by PXE"},
	} {
		err := call.do(t.Context())
		wantKind(t, err, bmc.KindUnsupported)
		var e *bmc.Error
		if errors.As(err, &e) && (!strings.Contains(e.Remedy, call.instead) || !e.Unsent) {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if exchanges != 0 || len(s.changes()) != 0 {
		t.Errorf("%d exchanges for what is not supported", exchanges)
	}
}

// Each status with which a BMC refuses a session (IPMI 2.0, table 13-15) has its
// meaning: what is full or forgotten is waited for, what is about the suite is
// about the suite, and only what is about the account stops for good.
func TestSessionStatus(t *testing.T) {
	t.Parallel()
	s := startSim(t)
	for _, c := range []struct {
		opened, rakp2 byte
		kind          bmc.Kind
		says          string
	}{
		{opened: 0x01, kind: bmc.KindBusy, says: "no session free"},
		{opened: 0x04, kind: bmc.KindUnsupported, says: "suite 1"},
		{opened: 0x05, kind: bmc.KindUnsupported, says: "suite 1"},
		{opened: 0x10, kind: bmc.KindUnsupported, says: "suite 1"},
		{opened: 0x11, kind: bmc.KindUnsupported, says: "suite 1"},
		{rakp2: 0x01, kind: bmc.KindBusy, says: "no session free"},
		{rakp2: 0x0b, kind: bmc.KindBusy, says: "no session free"},
		{rakp2: 0x02, kind: bmc.KindBusy, says: "forgot the session"},
		{rakp2: 0x08, kind: bmc.KindBusy, says: "forgot the session"},
		{rakp2: 0x09, kind: bmc.KindAuth, says: "privilege"},
		{rakp2: 0x0a, kind: bmc.KindAuth, says: "privilege"},
		{rakp2: 0x0d, kind: bmc.KindAuth, says: "password"},
	} {
		t.Run(fmt.Sprintf("%02x/%02x", c.opened, c.rakp2), func(t *testing.T) {
			t.Parallel()
			r := startRelay(t, s)
			r.opened, r.rakp2 = c.opened, c.rakp2
			target := targetAt(t, r.port)
			target.CipherSuites = []int{1}
			_, err := ipmi.Open(t.Context(), target, bmc.Options{Waits: waits()})
			wantKind(t, err, c.kind)
			var e *bmc.Error
			if errors.As(err, &e) && (!strings.Contains(e.Cause, c.says) || e.Remedy == "") {
				t.Errorf("%+v", e)
			}
		})
	}
}
