package workflows_test

import (
	"context"

	"github.com/bettercompute/compute/fleet"
)

func (w *world) FinishDrain(context.Context, string) (*fleet.WaitingFor, error) {
	free, err := w.lookFree()
	if err != nil || free {
		return nil, err
	}
	if w.onHeld != nil {
		w.onHeld()
	}
	return &fleet.WaitingFor{Actor: "allocation holders", What: "1 live allocation(s) to end"}, nil
}

// lookFree is one look of a drain, which ends the one of a free node.
func (w *world) lookFree() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == fleet.OpSucceeded {
		return true, nil
	}
	if err := w.fence(); err != nil {
		return false, err
	}
	w.looks++
	w.state = fleet.OpSucceeded
	if w.held {
		w.state = fleet.OpWaiting
	} else {
		w.step(fleet.StepAwaitFree).State = fleet.StepDone
	}
	return !w.held, nil
}

// release takes away what holds the node.
func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
}
