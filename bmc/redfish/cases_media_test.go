package redfish_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/sim"
)

const image = "http://127.0.0.1:9/boot/1/compute.iso"

func TestC11TransferProtocolType(t *testing.T) {
	t.Parallel()
	for fault, posts := range map[string]int{"": 1, "c11-protocol-required-a-listed": 1, "c11-protocol-required-a-unlisted": 2,
		"c11-protocol-required-b-listed": 1, "c11-protocol-required-b-unlisted": 2} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			c := b.open()
			if err := c.InsertMedia(b.ctx(), image); err != nil {
				t.Fatal(err)
			}
			if n := b.m.Counts().InsertMedia; !b.holds(image) || n > posts {
				t.Errorf("inserted %v with %d POSTs", b.holds(image), n)
			}
			// What was learned is known the next time.
			f, err := c.Identify(b.ctx())
			if err != nil {
				t.Fatal(err)
			}
			b.quirks = f.Quirks
			c = b.open()
			if err := c.EjectMedia(b.ctx(), nil); err != nil {
				t.Fatal(err)
			}
			before := b.m.Counts().InsertMedia
			if err := c.InsertMedia(b.ctx(), image); err != nil || b.m.Counts().InsertMedia != before+1 {
				t.Errorf("%v, %d more POSTs", err, b.m.Counts().InsertMedia-before)
			}
		})
	}
}

func TestC12InsertRunsOn(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c12-insert-task-location", "c12-insert-task-link", "c12-insert-task-body", "c12-insert-task-none",
		"c12-insert-hold-400", "c12-insert-hold-409", "c12-insert-hold-503"} {
		for _, profile := range []string{"generic", "lenovo-tsm"} {
			t.Run(fault+"/"+profile, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 3})
				if fault != "" {
					b.fault(fault)
				}
				iso := bootable(t)
				c := b.open()
				if err := c.InsertMedia(b.ctx(), iso); err != nil {
					t.Fatal(err)
				}
				if !b.holds(iso) {
					t.Fatalf("said to be inserted, and is not: %+v", b.m.View(false).Media)
				}
				if err := c.SetBoot(b.ctx(), wantCD); err != nil {
					t.Fatal(err)
				}
				if _, err := c.SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
					t.Fatal(err)
				}
				log := b.bootLog()
				if len(log) != 1 || log[0].Source != "cd" || log[0].URL != iso {
					t.Errorf("boot log is %+v", log)
				}
				if n := b.m.Counts().InsertMedia; n != 1 {
					t.Errorf("%d InsertMedia", n)
				}
			})
		}
	}
}

// TestC12HeldBeyondOurPatience: the request is held longer than it may take.
func TestC12HeldBeyondOurPatience(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"c12-insert-hold-400", "c12-insert-hold-409", "c12-insert-hold-503"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			const slow = 20
			b := newBenchAt(t, slow, found("Off"))
			b.fault(fault)
			b.opts.Waits = waits()
			b.opts.Waits.Request = 1200 * time.Millisecond // of the 2.5 s that it is held
			b.opts.Waits.Change = 20 * time.Second
			if err := b.open().InsertMedia(b.ctx(), image); err != nil {
				t.Fatal(err)
			}
			if n := b.m.Counts().InsertMedia; n != 1 || !b.holds(image) {
				t.Errorf("%d InsertMedia, holds it: %v", n, b.holds(image))
			}
		})
	}
}

// TestMediaSlots: a slot that shows the image is left alone, one with another
// image is emptied, and what is claimed stays.
func TestMediaSlots(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		for _, under := range []string{"manager", "system"} {
			t.Run(profile+"/"+under, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 9, MediaUnder: under})
				c := b.open()
				if err := c.InsertMedia(b.ctx(), image); err != nil {
					t.Fatal(err)
				}
				if err := c.InsertMedia(b.ctx(), image); err != nil || b.m.Counts().InsertMedia != 1 {
					t.Fatalf("%v, %d InsertMedia", err, b.m.Counts().InsertMedia)
				}
				const other = "https://127.0.0.1:9/other.iso?signature=s3cr3t-part"
				if err := c.EjectMedia(b.ctx(), func(url string) bool { return url == image }); err != nil || !b.holds(image) {
					t.Fatalf("%v; what was claimed is gone", err)
				}
				for range 2 { // the second fills a slot that must be emptied first, where there is one slot only
					if err := c.InsertMedia(b.ctx(), other); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.EjectMedia(b.ctx(), nil); err != nil {
					t.Fatal(err)
				}
				for _, m := range b.m.View(false).Media {
					if m.Inserted {
						t.Errorf("%s still holds %s", m.ID, m.Image)
					}
				}
			})
		}
	}
}

// TestImageQueryIsSecret: a signature in an image's URL reaches no error.
func TestImageQueryIsSecret(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.rules(`faults:
  - name: repeats-what-it-refuses
    match: {method: POST, path: "**/VirtualMedia.InsertMedia"}
    apply: false
    reply: {status: 400, body: {error: {"@Message.ExtendedInfo": [{MessageId: Base.1.8.ActionParameterValueFormatError, Message: "The value http://127.0.0.1:9/x.iso?token=s3cr3t-part is wrong.", MessageArgs: [Image]}]}}}`)
	err := b.open().InsertMedia(b.ctx(), "http://127.0.0.1:9/x.iso?token=s3cr3t-part")
	wantKind(t, err, bmc.KindRefused)
	if strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("%v", err)
	}
}

// TestWordsOfABMC: what a BMC says in an error is text that can be stored, is
// bounded, and holds no part of a secret that stands where it is cut.
func TestWordsOfABMC(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	session := &kept{keep: true}
	b.opts.Session = session
	b.open() // makes the session that the others take over
	for name, words := range map[string]string{
		"NUL":                 `a\u0000b`,
		"cut in a character":  strings.Repeat("\u00e9", 400),
		"odd length":          "x" + strings.Repeat("\u00e9", 400),
		"secret at the cut":   strings.Repeat("x", 494) + "s3cr3t=part",
		"the session's token": session.token + " is no number",
	} {
		b.rules(`faults:
  - name: talks
    match: {method: POST, path: "**/VirtualMedia.InsertMedia"}
    apply: false
    reply: {status: 400, raw: '{"error":{"@Message.ExtendedInfo":[{"MessageId":"Base.1.8.ActionParameterValueFormatError\u0000","Message":"` + words + `"}]}}'}`)
		err := b.open().InsertMedia(b.ctx(), "http://127.0.0.1:9/x.iso?s3cr3t=part")
		wantKind(t, err, bmc.KindRefused)
		said := err.Error()
		if strings.Contains(said, "\x00") || !utf8.ValidString(said) || len(said) > 800 || strings.Contains(said, "s3cr3t") || strings.Contains(said, session.token) {
			t.Errorf("%s: %d bytes, %q", name, len(said), said)
		}
	}
}

// bootable serves something that a simulated machine boots.
func bootable(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) }))
	t.Cleanup(srv.Close)
	return srv.URL + "/boot/1/compute.iso"
}

// bootLog is the machine's boot log once it holds a boot.
func (b *bench) bootLog() []sim.Boot {
	ctx := b.ctx()
	for ctx.Err() == nil {
		if log := b.m.BootLog(); len(log) > 0 {
			return log
		}
		b.rack.Advance(time.Second)
	}
	return nil
}
