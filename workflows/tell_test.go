package workflows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	sdkpb "go.temporal.io/api/sdk/v1"

	"github.com/bettercompute/compute/fleet"
)

// details are what Temporal's Web UI shows of the workflow beside its history,
// and the description of a signal.
func (b *bench) details(t *testing.T) (now, retry string) {
	t.Helper()
	v, err := b.env.QueryWorkflow("__temporal_workflow_metadata")
	if err != nil {
		t.Fatal(err)
	}
	var m sdkpb.WorkflowMetadata
	if err := v.Get(&m); err != nil {
		t.Fatal(err)
	}
	for _, s := range m.GetDefinition().GetSignalDefinitions() {
		if s.GetName() == fleet.SignalRetry {
			retry = s.GetDescription()
		}
	}
	return m.GetCurrentDetails(), retry
}

// Who looks at a workflow in the Web UI reads where it is, why it is parked and
// what to do, and at its end how it ended.
func TestTheWebUIIsTold(t *testing.T) {
	t.Parallel()
	b := releaseBench(t, fleet.VerbRelease, fleet.MetalReleaseIn{}, fleet.EraseMetadata)
	b.answers["erase"] = erases(`[{"serial":"D2","method":"metadata","result":"done"},{"serial":"D1","method":"metadata","result":"failed","detail":"I/O error"}]`)
	b.env.RegisterDelayedCallback(func() {
		now, retry := b.details(t)
		for _, part := range []string{"**release of node_", "is parked at `erase-in-band`", "disk D1 (I/O error)", "To do: ", "computectl metal retry node_"} {
			if !strings.Contains(now, part) {
				t.Errorf("parked, it says %q, without %q", now, part)
			}
		}
		if retry == "" {
			t.Error("the signal retry is not described")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.answers["erase"] = erases(`[{"serial":"D1","method":"metadata","result":"done"}]`)
		b.env.SignalWorkflow(fleet.SignalRetry, nil)
	}, time.Hour)
	b.succeeds(t)
	if now, _ := b.details(t); now != fmt.Sprintf("**release of %s succeeded**", b.work.NodeID) {
		t.Errorf("at its end it says %q", now)
	}
}
