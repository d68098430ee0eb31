package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
)

// InventorySweep reads the hardware of machines in use by their BMCs, which
// nobody inspects for long. What changed becomes events, what vanished
// conditions; no verb depends on it. It gives way to operations.
type InventorySweep struct {
	Store *store.Store
	Gate  *gate.Gate
	Log   *slog.Logger
	// Every is the spacing of looks at one machine.
	Every time.Duration
	// RestEvery is how often it is looked whether an operation began meanwhile.
	RestEvery time.Duration
}

const (
	// An inventory is many requests: few are read at once, and few are claimed, so
	// that no lease waits for its turn.
	inventoryBatch  = 16
	inventoryAtOnce = 8
	// inventoryWithin bounds one reading.
	inventoryWithin = 5 * time.Minute
)

// Round reads the inventories that are due.
func (s *InventorySweep) Round(ctx context.Context) error {
	for ctx.Err() == nil {
		life, grace := s.Gate.Life()
		until := time.Now().Add(life)
		due, err := s.Store.ClaimDueInventories(ctx, s.Gate.Holder, inventoryBatch, life, grace, s.Every)
		if err != nil || len(due) == 0 {
			return err
		}
		slots := make(chan struct{}, inventoryAtOnce)
		var wg sync.WaitGroup
		for _, d := range due {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if err := s.look(ctx, d, until); err != nil && ctx.Err() == nil {
					s.Log.InfoContext(ctx, "inventory not refreshed", "node", d.NodeID, "error", err)
				}
			})
		}
		wg.Wait()
		if len(due) < inventoryBatch {
			return nil
		}
	}
	return nil
}

// errOperation is why a reading ends that an operation began beside.
var errOperation = errors.New("an operation of the machine began")

func (s *InventorySweep) look(ctx context.Context, d store.DueBMC, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, inventoryWithin)
	defer cancel()
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() { s.giveWay(ctx, d.NodeID, done, stop) })
	power, seen, err := s.read(reading, d, until)
	if err == nil { // not every driver has compared the machine
		is := fleet.BMCIdentity{Manufacturer: seen.Vendor, Model: seen.Model, Serial: seen.Serial, UUID: seen.UUID}
		err = bmc.CompareIdentity("read the hardware", &d.Identity, is)
	}
	var other *bmc.Error
	if errors.As(err, &other) && other.ShownIdentity != nil {
		return errors.Join(err, s.Store.MachineChanged(ctx, d.NodeID, *other.ShownIdentity, other.Cause))
	}
	if err != nil {
		return errors.Join(err, context.Cause(reading))
	}
	recorded, err := s.Store.RefreshInventory(ctx, d.NodeID, power, seen)
	if err == nil && !recorded {
		err = errOperation
	}
	return err
}

// read reads power and hardware under the lease that the claim took.
func (s *InventorySweep) read(ctx context.Context, d store.DueBMC, until time.Time) (bmc.PowerState, fleet.Inventory, error) {
	client, release, err := openDue(ctx, s.Gate, d, until)
	if err != nil {
		return "", fleet.Inventory{}, err
	}
	defer release(context.WithoutCancel(ctx))
	power, err := client.Power(ctx)
	if err != nil {
		return "", fleet.Inventory{}, err
	}
	seen, err := client.Inventory(ctx)
	return power, seen, err
}

// giveWay ends a reading once an operation of the machine begins: it would wait
// for the lease, and what is read beside it says little.
func (s *InventorySweep) giveWay(ctx context.Context, nodeID string, done <-chan struct{}, stop context.CancelCauseFunc) {
	tick := time.NewTicker(s.RestEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if rests, err := s.Store.AtRest(ctx, nodeID); err == nil && !rests {
			stop(errOperation)
			return
		}
	}
}
