package workflows_test

import (
	"context"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// fakeBMC is the BMC of a world. Each call is logged and can be made to fail.
type fakeBMC struct{ w *world }

func (b fakeBMC) do(method string, fn func()) error {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if err := b.w.fault(method); err != nil {
		return err
	}
	if fn != nil {
		fn()
	}
	return nil
}

func (b fakeBMC) Identify(context.Context) (f bmc.Found, err error) {
	err = b.do("Identify", func() {
		f = bmc.Found{Identity: fleet.BMCIdentity{Manufacturer: "Acme", Model: "X1", Serial: "S1", UUID: machineUUID}, System: "/redfish/v1/Systems/a",
			MachineKey: "uuid:1", Power: b.w.power, Capabilities: fleet.Capabilities{Driver: "redfish", BootOverride: true, VirtualMedia: true}}
	})
	return f, err
}

func (b fakeBMC) Power(context.Context) (s bmc.PowerState, err error) {
	err = b.do("Power", func() { s = b.w.power })
	return s, err
}

// SetPower keeps the interface's promises: an aim that is reached sends
// nothing, a spent cycle or reset is not sent again.
func (b fakeBMC) SetPower(ctx context.Context, p bmc.PowerChange) (bmc.PowerResult, error) {
	if err := b.do("SetPower "+string(p.Aim), nil); err != nil {
		return bmc.PowerResult{}, err
	}
	b.w.mu.Lock()
	state := b.w.power
	b.w.mu.Unlock()
	want := bmc.PowerOn
	if p.Aim == bmc.AimOff || p.Aim == bmc.AimSoftOff {
		want = bmc.PowerOff
	}
	again := p.Aim == bmc.AimCycle || p.Aim == bmc.AimReset
	if state == want && (!again || p.Spent) {
		return bmc.PowerResult{State: state, AlreadySo: true}, nil
	}
	if err := p.Acting(ctx, "Reset "+string(p.Aim)); err != nil {
		return bmc.PowerResult{}, err
	}
	if p.Progress != nil {
		p.Progress("waiting for " + string(want))
	}
	err := b.do("Reset "+string(p.Aim), func() {
		b.w.resets[string(p.Aim)]++
		b.w.power = want
		if want == bmc.PowerOn {
			b.w.boot()
		}
	})
	return bmc.PowerResult{State: want, Sent: []string{"Reset " + string(p.Aim)}}, err
}

// boot is the machine coming up: with our medium and the override it calls in.
func (w *world) boot() {
	ours := w.override.Target == bmc.BootCD && w.media != "" || w.override.Target == bmc.BootHTTP || w.override.Target == bmc.BootPXE
	if ours && !w.deaf {
		w.calledIn[w.boots] = true
	}
	if !w.override.Persistent {
		w.override = bmc.BootOverride{Target: bmc.BootNone}
	}
}

func (b fakeBMC) Boot(context.Context) (o bmc.BootOverride, err error) {
	err = b.do("Boot", func() {
		o = b.w.override
		if o.Target == "" {
			o.Target = bmc.BootNone
		}
	})
	return o, err
}

func (b fakeBMC) SetBoot(_ context.Context, want bmc.BootOverride) error {
	return b.do("SetBoot "+string(want.Target), func() { b.w.override = want })
}

func (b fakeBMC) InsertMedia(_ context.Context, url string) error {
	return b.do("InsertMedia", func() { b.w.media = url })
}

func (b fakeBMC) EjectMedia(_ context.Context, keep func(string) bool) error {
	return b.do("EjectMedia", func() {
		if keep == nil || !keep(b.w.media) {
			b.w.media = ""
		}
	})
}

func (b fakeBMC) Inventory(context.Context) (inv fleet.Inventory, err error) {
	err = b.do("Inventory", func() { inv = b.w.inventory })
	return inv, err
}

func (b fakeBMC) EraseDrives(_ context.Context, serials []string) (out []fleet.DiskErase, err error) {
	err = b.do("EraseDrives", func() {
		for _, s := range serials {
			out = append(out, fleet.DiskErase{Serial: s, Method: "full", Result: "done"})
		}
	})
	return out, err
}

func (b fakeBMC) SetPassword(_ context.Context, password string) error {
	return b.do("SetPassword", func() { b.w.password = password })
}

func (b fakeBMC) Log(context.Context, time.Time) ([]bmc.LogEntry, error) { return nil, nil }
func (b fakeBMC) Close(context.Context) error                            { return nil }
