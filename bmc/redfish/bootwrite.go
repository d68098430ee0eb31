package redfish

import (
	"context"
	"strings"

	"github.com/bettercompute/compute/bmc"
)

const (
	modeProperty    = "BootSourceOverrideMode"
	targetProperty  = "BootSourceOverrideTarget"
	maxTagRefusals  = 5
	confirmPolls    = 10
	maxConfirmTries = 2
)

// unquoted is a weak or quoted tag without what makes it so.
func unquoted(tag string) string {
	return strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
}

// write sends one PATCH and judges the answer. again says that the place is to
// be read and judged anew, with what was learned.
func (r *bootRun) write(ctx context.Context, p bootPlace) (again bool, err error) {
	a, v, err := r.patch(ctx, p)
	if err != nil {
		if bmc.KindOf(err) != bmc.KindUnreachable {
			return false, err
		}
		// Lost or never sent: what is read next decides.
		r.last = err
		return true, r.c.sleep(ctx, r.c.waits.Busy, r.doing())
	}
	if v.class == classDone {
		return false, r.c.follow(ctx, a, r.until, r.doing())
	}
	r.last = r.c.failure(r.doing(), a, v)
	switch v.class {
	case classPrecondition:
		r.tagTry++
		if r.tagTry > maxTagRefusals {
			return false, r.last
		}
		return true, nil
	case classLater, classConflict:
		return true, r.c.pause(ctx, v, r.doing())
	case classRefused, classUnsupported, classMissing:
		if r.learn(p, v) {
			return true, nil
		}
	default:
	}
	return false, r.last
}

// learn takes from a refusal what to send differently, each thing once. false
// says that there is nothing to learn.
func (r *bootRun) learn(p bootPlace, v verdict) bool {
	sentMode := r.modeToSend(p) != ""
	for _, m := range v.msgs {
		switch k := m.key(); {
		case elsewhere.has(k) && !p.settings:
			if !r.c.knows(quirkBootLive) {
				return false
			}
			r.c.learn(quirkBootSettings) // it was learned to be the place, and is so no more
			return true
		case omitted.has(k) && m.names(modeProperty) && !r.sendMode:
			r.sendMode, r.neverMode = true, false
			r.c.learn(quirkBootMode)
			return true
		case omitted.has(k) && m.names(targetProperty) && !r.sendTarget:
			r.sendTarget = true
			return true
		case sentMode && m.names(modeProperty) && !omitted.has(k):
			r.neverMode = true
			r.c.learn(quirkNoBootMode)
			return true
		}
	}
	// Refused where the settings resource is: the live one may take it.
	if p.settings {
		r.c.learn(quirkBootLive)
		return true
	}
	// Some refuse a mode without naming it.
	if sentMode && !r.neverMode {
		r.neverMode = true
		return true
	}
	return false
}

// confirm reads back what was accepted. A mode that the write changed is sent
// along the next time; what is not shown after a while is an error.
func (r *bootRun) confirm(ctx context.Context) error {
	var p bootPlace
	for try := range confirmPolls {
		if try > 0 {
			if err := r.c.sleep(ctx, r.c.waits.Poll, r.doing()); err != nil {
				return err
			}
		}
		s, err := r.c.mine(ctx)
		if err != nil {
			return err
		}
		if p, err = r.c.bootHome(ctx, s); err != nil {
			return err
		}
		if r.reached(p) {
			if p.settings {
				r.c.learn(quirkBootSettings)
			}
			return nil
		}
		if r.modeChanged(p) {
			break
		}
	}
	r.confirms++
	if r.modeChanged(p) && !r.sendMode && !r.neverMode {
		r.sendMode = true
		r.c.learn(quirkBootMode)
		return nil
	}
	if want := r.wantedMode(); want != "" && p.boot.Mode != nil && p.boot.mode() != want && r.confirms >= maxConfirmTries {
		return r.wrongMode(p)
	}
	r.last = &bmc.Error{Kind: bmc.KindTimeout, Doing: r.doing(), Cause: "it was accepted but is not shown", Remedy: "look at the boot settings in the BMC"}
	if r.confirms >= maxConfirmTries {
		return r.last
	}
	return nil
}

// modeChanged says that the mode is neither wanted nor that of before.
func (r *bootRun) modeChanged(p bootPlace) bool {
	if want := r.wantedMode(); want != "" {
		return p.boot.Mode != nil && p.boot.mode() != want
	}
	return p.boot.mode() != r.modeBefore
}
