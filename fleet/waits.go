package fleet

import "time"

// Waits are the bounds of an operation's waits.
type Waits struct {
	PowerChange time.Duration
	// CallIn is POST and boot until the machine calls in.
	CallIn time.Duration
	// Image bounds the write; ImageStall the time without progress, and the
	// commands to a machine that booted our medium which take no longer: its
	// inventory, the config drive, the rescue system.
	Image, ImageStall time.Duration
	BMCAway           time.Duration
	// Graceful is how long a system is asked to shut down before it is forced.
	Graceful time.Duration
	// SoftOff bounds power softOff, which never escalates.
	SoftOff time.Duration
	// Report bounds the installed system's report, or its agent's session.
	Report time.Duration
	// Session bounds how long an adopted host's agent is waited for.
	Session time.Duration
}

// DefaultWaits are the waits of spec metal.md, "Waiting times".
var DefaultWaits = Waits{
	PowerChange: 5 * time.Minute, CallIn: 45 * time.Minute, Image: 2 * time.Hour, ImageStall: 10 * time.Minute,
	BMCAway: 30 * time.Minute, Graceful: 2 * time.Minute, SoftOff: 5 * time.Minute, Report: 45 * time.Minute,
	Session: 24 * time.Hour,
}

// WaitsFor applies a site's settings, and those of a hardware model, to the
// defaults, and divides all by scale (1 in production; a simulated rack runs
// faster).
func WaitsFor(site SiteSpec, model string, scale float64) Waits {
	w := DefaultWaits
	if site.GracefulSeconds != nil {
		w.Graceful = time.Duration(*site.GracefulSeconds) * time.Second
	}
	if t := site.Timeouts; t != nil {
		w.apply(t.WaitsSpec)
		if m, ok := t.Models[model]; ok {
			w.apply(m)
		}
	}
	if scale > 0 && scale != 1 {
		for _, d := range []*time.Duration{&w.PowerChange, &w.CallIn, &w.Image, &w.ImageStall, &w.BMCAway, &w.Graceful, &w.SoftOff, &w.Report, &w.Session} {
			*d = time.Duration(float64(*d) / scale)
		}
	}
	return w
}

func (w *Waits) apply(t WaitsSpec) {
	set := func(d *time.Duration, seconds *int) {
		if seconds != nil {
			*d = time.Duration(*seconds) * time.Second
		}
	}
	set(&w.PowerChange, t.PowerChange)
	set(&w.CallIn, t.CallIn)
	set(&w.Image, t.Image)
	set(&w.ImageStall, t.ImageStall)
	set(&w.BMCAway, t.BMCAway)
	set(&w.Report, t.Report)
}
