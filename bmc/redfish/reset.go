package redfish

import (
	"context"
	"net/http"
	"time"

	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// reaction is what follows an answer that is no success.
type reaction int

const (
	reactFail  reaction = iota // no repetition mends it
	reactAgain                 // certainly not acted upon: send again
	reactRead                  // perhaps acted upon: the state decides
)

// react judges one Reset that did not simply succeed.
func react(v verdict, err error) reaction {
	if err != nil {
		switch {
		case bmc.KindOf(err) != bmc.KindUnreachable:
			return reactFail
		case notSent(err):
			return reactAgain
		default:
			return reactRead
		}
	}
	switch v.class {
	case classLater, classPrecondition, classConflict:
		return reactRead
	default:
		return reactFail
	}
}

// send sends one Reset and waits for its state. Whatever is answered, the
// state is read before anything is sent again.
func (r *powerRun) send(ctx context.Context, s system, t redfish.ResetType, target bmc.PowerState) error {
	for sent := 0; ; {
		a, v, err := r.post(ctx, s, t)
		if err == nil && v.class == classDone {
			if err := r.c.follow(ctx, a, r.until, r.doing()); err != nil {
				return err
			}
			return r.await(ctx, target)
		}
		failed := r.failed(a, v, err)
		if err == nil && !outcomeUnknown(a, v) {
			r.unsend()
		}
		switch react(v, err) {
		case reactAgain:
			r.unsend()
			if err := r.wait(ctx, string(target)); err != nil {
				return failed
			}
			continue
		case reactFail:
			if err == nil && v.class == classRefused && r.alreadyThere(ctx, v, target) {
				return nil
			}
			return failed
		case reactRead:
		}
		sent++
		reached, err := r.settle(ctx, v, target)
		if err != nil || reached {
			return err
		}
		if sent >= maxSends || time.Now().After(r.until) {
			return failed
		}
		if s, err = r.settled(ctx); err != nil {
			return err
		}
	}
}

// failed is the error of a Reset that did not succeed.
func (r *powerRun) failed(a *answer, v verdict, err error) error {
	if err != nil {
		return err
	}
	return r.c.failure(r.doing(), a, v)
}

// outcomeUnknown says that an answer is an error that leaves open whether the
// request was acted upon: the service failed, and does not say that it was not
// ready.
func outcomeUnknown(a *answer, v verdict) bool {
	if a.status < http.StatusInternalServerError || a.status == http.StatusNotImplemented {
		return false
	}
	_, waits := v.msgs.has(notReady)
	return !waits && !v.post && (a.status != http.StatusServiceUnavailable || len(v.msgs) == 0 && v.hint == 0)
}

// unsend forgets the last request, which never left or was refused.
func (r *powerRun) unsend() { r.result.Sent = r.result.Sent[:len(r.result.Sent)-1] }

// alreadyThere says whether the goal is reached although a Reset was refused. A
// refusal that is not about the value sent may be about a state that is not
// shown yet.
func (r *powerRun) alreadyThere(ctx context.Context, v verdict, target bmc.PowerState) bool {
	if _, ok := v.msgs.has(badValue); ok {
		s, err := r.look(ctx)
		return err == nil && s.power() == target
	}
	reached, err := r.watch(ctx, target)
	return err == nil && reached
}

// settle waits before a Reset is sent again: as long as the BMC asked when it
// was not ready, else for as long as an old value may be shown.
func (r *powerRun) settle(ctx context.Context, v verdict, target bmc.PowerState) (bool, error) {
	if v.class == classLater || v.class == classPrecondition {
		r.ifMatch = v.class == classPrecondition
		if err := r.c.pause(ctx, v, r.doing()); err != nil {
			return false, err
		}
		s, err := r.settled(ctx)
		return err == nil && s.power() == target, err
	}
	return r.watch(ctx, target)
}

// sendRestart sends a type that leaves the machine on. That it restarted shows
// in what changes; one that may have been sent is never sent again.
func (r *powerRun) sendRestart(ctx context.Context, s system, t redfish.ResetType) error {
	before := s
	for sent := 0; ; {
		a, v, err := r.post(ctx, s, t)
		if err == nil && v.class == classDone {
			if err := r.c.follow(ctx, a, r.until, r.doing()); err != nil {
				return err
			}
			return r.awaitRestart(ctx, before)
		}
		failed := r.failed(a, v, err)
		switch react(v, err) {
		case reactAgain:
			r.unsend()
			if err := r.wait(ctx, "on"); err != nil {
				return failed
			}
			continue
		case reactFail:
			if err == nil {
				r.unsend()
			}
			return failed
		case reactRead:
		}
		if err != nil || outcomeUnknown(a, v) {
			if seen, lookErr := r.sawRestart(ctx, before); lookErr != nil || seen {
				return lookErr
			}
			return r.notSeen(failed)
		}
		r.unsend()
		sent++
		if err := r.c.pause(ctx, v, r.doing()); err != nil {
			return err
		}
		r.ifMatch = v.class == classPrecondition
		if s, err = r.settled(ctx); err != nil {
			return err
		}
		if restarted(before, s) {
			return r.awaitRestart(ctx, before)
		}
		if sent >= maxSends || time.Now().After(r.until) {
			return failed
		}
	}
}

// notSeen is the end of a restart whose answer says nothing of what was done,
// and that nothing shows. It may have been made, so it is not sent again.
func (r *powerRun) notSeen(cause error) error {
	return &bmc.Error{Kind: bmc.KindTimeout, Doing: r.doing(), Err: cause,
		Cause:  "it was sent once, the answer does not say what was done, and no restart was seen; it is not sent again",
		Remedy: "look at the machine's console; call it again if the machine did not restart"}
}

// restarted says whether something shows that the machine was restarted since.
func restarted(before, now system) bool {
	return now.power() != bmc.PowerOn || now.more.LastResetTime != before.more.LastResetTime ||
		now.more.BootProgress.LastState != before.more.BootProgress.LastState
}

// steadyPolls is how many reads of "on" are taken for the end of a restart of
// which the service shows nothing else.
const steadyPolls = settlePolls / 2

// awaitRestart reads until the machine is on after its restart.
func (r *powerRun) awaitRestart(ctx context.Context, before system) error {
	seen := false
	for steady := 0; steady < steadyPolls; {
		s, err := r.look(ctx)
		if err != nil {
			return err
		}
		on := s.power() == bmc.PowerOn
		seen = seen || restarted(before, s)
		if on && seen {
			return nil
		}
		steady++
		if !on {
			steady = 0
		}
		if err := r.wait(ctx, "on"); err != nil {
			return err
		}
	}
	return nil
}

// sawRestart watches for signs of a restart whose answer was lost.
func (r *powerRun) sawRestart(ctx context.Context, before system) (bool, error) {
	for range settlePolls {
		s, err := r.look(ctx)
		if err != nil {
			return false, err
		}
		if restarted(before, s) {
			return true, r.await(ctx, bmc.PowerOn)
		}
		if err := r.wait(ctx, "on"); err != nil {
			return false, err
		}
	}
	return false, nil
}
