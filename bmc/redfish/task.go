package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// taskBody is what of a task, or of a vendor's job, decides.
type taskBody struct {
	ODataID     string `json:"@odata.id"`
	ODataType   string `json:"@odata.type"`
	TaskState   redfish.TaskState
	TaskStatus  common.Health
	TaskMonitor string
	JobState    redfish.TaskState
	Messages    messages
	Message     string
}

func (t taskBody) state() redfish.TaskState {
	if t.TaskState != "" {
		return t.TaskState
	}
	return t.JobState
}

// badEnds are the states in which a task has ended without success. A state
// that is in neither set, known or never heard of, is unfinished.
var badEnds = map[redfish.TaskState]bool{
	redfish.CancelledTaskState: true, redfish.ExceptionTaskState: true, redfish.KilledTaskState: true,
	"Failed": true, "CompletedWithErrors": true, "RebootFailed": true,
}

// taskLinks are the places where an answer names its task: Location, a Link
// header, the body.
func taskLinks(a *answer) []string {
	var out []string
	if a.status == http.StatusAccepted {
		if l := a.header.Get("Location"); l != "" {
			out = append(out, l)
		}
		for _, h := range a.header.Values("Link") {
			if start, end := strings.IndexByte(h, '<'), strings.IndexByte(h, '>'); start >= 0 && end > start {
				out = append(out, h[start+1:end])
			}
		}
	}
	var t taskBody
	if json.Unmarshal(a.body, &t) == nil && (t.state() != "" || strings.HasPrefix(t.ODataType, "#Task.")) {
		if t.ODataID != "" {
			out = append(out, t.ODataID)
		}
		if t.TaskMonitor != "" {
			out = append(out, t.TaskMonitor)
		}
	}
	return out
}

// follow waits for the end of the task that an answer names, if it names one.
// It is a success only when the task completed and its status is not Warning
// or Critical; whoever asked still reads the state.
func (c *Client) follow(ctx context.Context, a *answer, until time.Time, doing string) error {
	links := taskLinks(a)
	for i, l := range links {
		path, err := c.local(l)
		if err != nil {
			return err
		}
		links[i] = path
	}
	for len(links) > 0 {
		rq := request{method: http.MethodGet, path: links[0], doing: doing + ": follow its task"}
		got, err := c.read(ctx, rq, false)
		if missing(err) {
			// A task that is gone says nothing; the state will.
			links = links[1:]
			continue
		}
		if err != nil {
			return err
		}
		t, done, err := c.judgeTask(got, doing)
		if done || err != nil {
			return err
		}
		if time.Now().After(until) {
			return &bmc.Error{Kind: bmc.KindTimeout, Doing: doing, Cause: fmt.Sprintf("its task did not end in time; last state was %q", t.state()),
				Remedy: "look at the BMC's tasks and log"}
		}
		if err := c.sleep(ctx, max(c.waits.Poll, c.scaled(hintOf(got, nil))), doing); err != nil {
			return err
		}
	}
	return nil
}

// judgeTask says whether a task, or the answer of a task monitor, has ended.
func (c *Client) judgeTask(a *answer, doing string) (taskBody, bool, error) {
	var t taskBody
	if err := json.Unmarshal(a.body, &t); err != nil {
		kept, _, pruneErr := decode[taskBody](a.body)
		if pruneErr != nil {
			//lint:ignore nilerr a monitor that is done may answer without any body
			return t, a.status != http.StatusAccepted, nil
		}
		t = *kept
	}
	state := t.state()
	bad := t.TaskStatus == common.WarningHealth || t.TaskStatus == common.CriticalHealth
	switch {
	case state == "":
		return t, a.status != http.StatusAccepted, nil
	case state == redfish.CompletedTaskState && !bad:
		return t, true, nil
	case state != redfish.CompletedTaskState && !badEnds[state]:
		return t, false, nil
	}
	cause := fmt.Sprintf("its task ended %s", state)
	if t.TaskStatus != "" {
		cause += fmt.Sprintf(", status %s", t.TaskStatus)
	}
	if text := t.Messages.text(); text != "" {
		cause += ": " + c.said(text)
	} else if t.Message != "" {
		cause += ": " + c.said(t.Message)
	}
	return t, true, &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: cause, Remedy: "look at the BMC's log for why, then try again",
		MessageID: t.Messages.first()}
}
