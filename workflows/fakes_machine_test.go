package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

func (w *world) ArmBoot(_ context.Context, _ string, number int) (b activities.Boot, err error) {
	err = w.fenced(func() {
		w.boots = number
		url := fmt.Sprintf("http://boot/%d/compute.iso", number)
		b = activities.Boot{ID: fmt.Sprint(number), ISOURL: url, HTTPURL: url, Number: number}
	})
	return b, err
}

func (w *world) VoidBoots(context.Context, string) error {
	return w.fenced(func() { w.voided = w.boots })
}

func (w *world) Machine(context.Context, string) (activities.Machine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.calledIn[w.boots]
	return activities.Machine{CalledIn: in, Reused: w.reused[w.boots], Present: in && w.power == fleet.PowerOn}, nil
}

func (w *world) SendCommand(_ context.Context, _ string, in activities.CommandIn) (id string, err error) {
	err = w.fenced(func() {
		key := fmt.Sprintf("%d/%s", w.boots, in.Key)
		if i := slices.IndexFunc(w.commands, func(c *command) bool { return c.key == key }); i >= 0 {
			id = w.commands[i].ID
			return
		}
		c := &command{key: key, boot: w.boots, in: in}
		c.ID, c.Type, c.State = fmt.Sprintf("cmd_%d", len(w.commands)+1), in.Type, "delivered"
		w.commands = append(w.commands, c)
		id = c.ID
		if answer := w.answers[in.Type]; answer != nil {
			answer(w, c)
		} else {
			succeed(w, c)
		}
	})
	return id, err
}

func (w *world) SendNodeCommand(ctx context.Context, op string, in activities.CommandIn) (string, error) {
	return w.SendCommand(ctx, op, in)
}

func (w *world) JoinFile(context.Context, string) (fleet.JoinFile, error) {
	return fleet.JoinFile{GatewayURL: "https://gateway", CAFingerprint: "sha256:f", Token: "bcdeploy_secret=1"}, nil
}

func (w *world) InSession(context.Context, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.noAgent, nil
}

// acceptable are facts of a host that passes every check.
func (w *world) acceptable() fleet.AcceptanceFacts {
	off := 0.4
	return fleet.AcceptanceFacts{Inventory: w.inventory, DiskFreeBytes: 1 << 40, ClockOffsetSeconds: &off, Kernel: "6.12.0-amd64", Drivers: map[string]string{"": "nvidia 580.1"}}
}

// succeed is a machine that does what it is told.
func succeed(w *world, c *command) {
	c.State = "succeeded"
	switch c.Type {
	case activities.CommandWriteImage:
		c.Data = json.RawMessage(`{"disk":{"serial":"D1"},"sha256":"` + sum + `","bytes":4096}`)
	case activities.CommandInventory:
		c.Data = json.RawMessage(`{"disks":[{"serial":"D1"},{"serial":"D2"}]}`)
	case activities.CommandAccept:
		raw, err := json.Marshal(w.acceptable())
		if err != nil {
			panic(err)
		}
		c.Data = raw
	case activities.CommandErase:
		c.Data = json.RawMessage(`{"disks":[{"serial":"D1","method":"metadata","result":"done"},{"serial":"D2","method":"metadata","result":"done"}]}`)
	}
}

// say makes a machine that answers a command with a state and a message.
func say(state, message string) func(*world, *command) {
	return func(_ *world, c *command) { c.State, c.Error = state, message }
}

func (w *world) Command(_ context.Context, id string) (activities.Command, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.commands {
		if c.ID == id {
			return c.Command, nil
		}
	}
	return activities.Command{}, fleet.NotFound("command")
}

func (w *world) LastData(_ context.Context, _, kind string) (json.RawMessage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range slices.Backward(w.commands) {
		if c.Type == kind && c.State == "succeeded" {
			return c.Data, nil
		}
	}
	return nil, nil
}

func (w *world) CancelCommands(context.Context, string) error {
	return w.fenced(func() {
		for _, c := range w.commands {
			if c.State == "delivered" || c.State == "pending" {
				c.State = "cancelled"
			}
		}
	})
}

func (w *world) ImageURL(context.Context, string) (string, error) {
	return "http://images/os.iso?secret=1", nil
}

func (w *world) ReportURL(context.Context, string) (string, error) {
	return "http://boot/report/r1", nil
}

func (w *world) Reported(context.Context, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reported, nil
}

func (w *world) Open(_ context.Context, _, _ string, change bool) (bmc.Client, func(context.Context), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fault("Open"); err != nil {
		return nil, nil, err
	}
	if change {
		if err := w.fence(); err != nil {
			return nil, nil, err
		}
	}
	w.sessions = 1
	return fakeBMC{w}, func(context.Context) {}, nil
}

func (w *world) OpenWith(ctx context.Context, _, _ string, which activities.Credentials) (bmc.Client, func(context.Context), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if which == activities.StagedCredentials && w.password != "new" {
		return nil, nil, &bmc.Error{Kind: bmc.KindAuth, Doing: "log in", Cause: "401"}
	}
	return fakeBMC{w}, func(context.Context) {}, w.fault("OpenWith")
}

func (w *world) EndSessions(context.Context, string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fault("EndSessions"); err != nil {
		return err
	}
	w.sessions = 0
	return nil
}

func (w *world) Exchanges(string) []bmc.Exchange {
	return []bmc.Exchange{{Method: "GET", Path: "/redfish/v1"}}
}
