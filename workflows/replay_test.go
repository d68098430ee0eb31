package workflows_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

func replayer() worker.WorkflowReplayer {
	r := worker.NewWorkflowReplayer()
	workflows.RegisterWorkflows(r)
	return r
}

// TestRecordedHistoriesReplay: the code as it is now takes the same decisions
// as the code that each history was recorded with.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			t.Parallel()
			if err := replayer().ReplayWorkflowHistoryFromJSONFile(nil, f); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEveryWorkflowHasAHistory of the present release.
func TestEveryWorkflowHasAHistory(t *testing.T) {
	t.Parallel()
	for verb, name := range fleet.WorkflowTypes {
		if !workflows.Has(verb) {
			continue
		}
		if _, err := os.Stat(historyFile(name)); err != nil {
			t.Errorf("workflow %s has no recorded history (make histories): %v", name, err)
		}
	}
	for _, s := range workflows.Schedules {
		if _, err := os.Stat(historyFile(s.Workflow)); err != nil {
			t.Errorf("workflow %s has no recorded history (make histories): %v", s.Workflow, err)
		}
	}
}

// TestReorderedHistoryFails shows that the replay notices a change: two
// activities of a recorded deploy change places.
func TestReorderedHistoryFails(t *testing.T) {
	t.Parallel()
	f, err := os.Open(historyFile("Deploy"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := client.HistoryFromJSON(f, client.HistoryJSONOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var scheduled []*historypb.ActivityTaskScheduledEventAttributes
	for _, e := range h.Events {
		if a := e.GetActivityTaskScheduledEventAttributes(); a != nil {
			scheduled = append(scheduled, a)
		}
	}
	scheduled[0].ActivityType, scheduled[1].ActivityType = scheduled[1].ActivityType, scheduled[0].ActivityType
	if err := replayer().ReplayWorkflowHistory(nil, h); err == nil {
		t.Error("a history whose activities changed places was replayed without an error")
	}
}

// TestHistoriesHoldNoSecret: what is sealed never enters Temporal.
func TestHistoriesHoldNoSecret(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		h, err := client.HistoryFromJSON(strings.NewReader(string(b)), client.HistoryJSONOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"secret=1", "http://boot/", "ssh-ed25519"} {
			if strings.Contains(h.String(), secret) {
				t.Errorf("%s holds %q", f, secret)
			}
		}
	}
}
