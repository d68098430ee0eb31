package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/workflows"
)

// Dispatcher delivers what transactions asked of Temporal: it starts workflows
// and sends signals, in order for each workflow, at least once.
type Dispatcher struct {
	Store  *store.Store
	Client client.Client
	Log    *slog.Logger
	// TaskQueue is where workflows are started; workflows.TaskQueue in
	// production.
	TaskQueue string
}

const (
	// deliverLoops claim side by side, each deliverBatch rows at most.
	deliverLoops = 4
	deliverBatch = 16
	// deliverPoll is the guarantee behind the NOTIFY, which may be lost.
	deliverPoll = time.Second
	// deliverWithin bounds one call to Temporal. It is well under the database's
	// bound on an idle transaction.
	deliverWithin = 10 * time.Second
	// failPause follows a round that failed as a whole.
	failPause = 500 * time.Millisecond
)

// Run delivers until the context ends.
func (d *Dispatcher) Run(ctx context.Context) {
	// A token lets one loop look. A loop that found rows passes it on, so that
	// as many work as there is work for.
	tokens := make(chan struct{}, deliverLoops)
	poke := func() {
		select {
		case tokens <- struct{}{}:
		default:
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { d.listen(ctx, poke) })
	wg.Go(func() {
		for sleep(ctx, deliverPoll+rand.N(deliverPoll/4)) {
			poke()
		}
	})
	for range deliverLoops {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tokens:
				}
				d.look(ctx, poke)
			}
		})
	}
	poke()
	wg.Wait()
}

// look delivers until a round finds less than it could take.
func (d *Dispatcher) look(ctx context.Context, poke func()) {
	for ctx.Err() == nil {
		n, err := d.Store.Deliver(ctx, deliverBatch, d.deliver)
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "deliver to Temporal", "error", err)
			sleep(ctx, failPause)
			return
		}
		if n > 0 {
			poke()
		}
		if n < deliverBatch {
			return
		}
	}
}

// listen pokes for each NOTIFY and connects again when the connection breaks.
func (d *Dispatcher) listen(ctx context.Context, poke func()) {
	for {
		if err := d.Store.Listen(ctx, poke); err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "listen for rows to deliver", "error", err)
		}
		if !sleep(ctx, failPause) {
			return
		}
	}
}

// sleep waits and says whether the context is still going.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (d *Dispatcher) deliver(ctx context.Context, row store.Dispatch) error {
	ctx, cancel := context.WithTimeout(row.Traced(ctx), deliverWithin)
	defer cancel()
	if row.Kind == store.DispatchStart {
		return d.start(ctx, row)
	}
	return d.signal(ctx, row)
}

// start begins the operation's workflow by its registered name. A start that
// was delivered before finds the run of then and changes nothing.
func (d *Dispatcher) start(ctx context.Context, row store.Dispatch) error {
	attributes := make([]temporal.SearchAttributeUpdate, 0, len(row.Tags))
	for _, name := range slices.Sorted(maps.Keys(row.Tags)) {
		attributes = append(attributes, temporal.NewSearchAttributeKeyKeyword(name).ValueSet(row.Tags[name]))
	}
	_, err := d.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: row.WorkflowID, TaskQueue: d.TaskQueue,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		TypedSearchAttributes: temporal.NewSearchAttributes(attributes...),
	}, row.WorkflowType, workflows.Input{OperationID: row.OperationID})
	if err != nil {
		return fmt.Errorf("start workflow %s: %w", row.WorkflowID, err)
	}
	return nil
}

// signal sends a signal with the row's id, by which the workflow drops repeats.
// A workflow that is gone needs none: its operation has ended, or the sweep
// ends it.
func (d *Dispatcher) signal(ctx context.Context, row store.Dispatch) error {
	input := map[string]any{}
	if err := json.Unmarshal(row.Payload, &input); err != nil {
		return fmt.Errorf("read the payload of dispatch row %d: %w", row.ID, err)
	}
	input["dispatchId"] = row.ID
	err := d.Client.SignalWorkflow(ctx, row.WorkflowID, "", row.Signal, input)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		d.Log.InfoContext(ctx, "signal dropped: its workflow is closed", "workflow", row.WorkflowID, "signal", row.Signal)
		return nil
	}
	if err != nil {
		return fmt.Errorf("signal %s to workflow %s: %w", row.Signal, row.WorkflowID, err)
	}
	return nil
}
