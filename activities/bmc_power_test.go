package activities

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/bettercompute/compute/bmc"
)

// journalOps keeps one step's journal as the store does.
type journalOps struct {
	Operations
	kept json.RawMessage
}

func (o *journalOps) Journal(context.Context, string, string) (json.RawMessage, error) {
	return o.kept, nil
}

func (o *journalOps) SaveJournal(_ context.Context, _, _ string, entry any) (err error) {
	o.kept, err = json.Marshal(entry)
	return err
}

// failingPower calls Acting, as a driver does before it sends, and fails, with
// what it says was perhaps sent.
type failingPower struct {
	bmc.Client
	sent  []string
	err   error
	spent []bool
}

func (c *failingPower) SetPower(ctx context.Context, p bmc.PowerChange) (bmc.PowerResult, error) {
	c.spent = append(c.spent, p.Spent)
	if err := p.Acting(ctx, "Reset ForceRestart"); err != nil {
		return bmc.PowerResult{}, err
	}
	return bmc.PowerResult{Sent: c.sent}, c.err
}

// A reset that certainly never left is sent by the next attempt; one that may
// have left is not, although the error is one of a later read of which no byte
// was sent.
func TestUnsentChangeIsSentByTheNextAttempt(t *testing.T) {
	t.Parallel()
	away := &bmc.Error{Kind: bmc.KindUnreachable, Doing: "read the power", Cause: "no answer", Unsent: true}
	for name, c := range map[string]struct {
		sent []string
		want []bool
	}{
		"never left":         {nil, []bool{false, false, false}},
		"may have been sent": {[]string{"Reset ForceRestart"}, []bool{false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &failingPower{sent: c.sent, err: away}
			a := &BMC{Ops: &journalOps{}}
			for range c.want {
				if _, err := a.setPower(t.Context(), client, Act{OperationID: "op", Step: "power"}, bmc.AimReset); bmc.KindOf(err) != bmc.KindUnreachable {
					t.Fatalf("err = %v, want the driver's", err)
				}
			}
			for i := range c.want {
				if client.spent[i] != c.want[i] {
					t.Errorf("attempts are told spent = %v, want %v", client.spent, c.want)
					break
				}
			}
		})
	}
}

// What an earlier attempt may have sent stays spent, whatever a later attempt
// certainly did not send.
func TestSpentStaysSpent(t *testing.T) {
	t.Parallel()
	away := &bmc.Error{Kind: bmc.KindUnreachable, Doing: "reset", Cause: "no answer", Unsent: true}
	client := &failingPower{sent: []string{"Reset ForceRestart"}, err: away}
	a := &BMC{Ops: &journalOps{}}
	for range 3 {
		if _, err := a.setPower(t.Context(), client, Act{OperationID: "op", Step: "power"}, bmc.AimReset); err == nil {
			t.Fatal("no error")
		}
		client.sent = nil
	}
	if !client.spent[1] || !client.spent[2] {
		t.Errorf("attempts are told spent = %v, want false, true, true", client.spent)
	}
}
