package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// commandLife is how long a command may wait to be fetched and run; the
// workflow's own waits end sooner.
const commandLife = 24 * time.Hour

// The command types of the machine protocol.
const (
	CommandInventory   = "inventory"
	CommandTest        = "test"
	CommandWriteImage  = "writeImage"
	CommandConfigDrive = "configDrive"
	CommandErase       = "erase"
	CommandRescue      = "rescue"
	CommandFinish      = "finish"
	CommandAccept      = "accept"
)

// SendIn asks for a command to the machine.
type SendIn struct {
	OperationID, Key, Type string
	// Serials are the disks of an erase.
	Serials []string
}

// Send queues a command to the machine, whose arguments are made here from the
// operation's input; secrets are merged when it is delivered.
func (a *Record) Send(ctx context.Context, in SendIn) (string, error) {
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return "", toTemporal(err)
	}
	c := CommandIn{Key: in.Key, Type: in.Type, Expires: commandLife}
	switch in.Type {
	case CommandInventory, CommandFinish:
		c.Args = struct{}{}
	case CommandTest:
		ask, err := askOf(w)
		if err != nil {
			return "", final(err)
		}
		c.Args = map[string]any{"tests": ask.Tests}
	case CommandWriteImage:
		c.Args, c.Secrets, err = writeArgs(w)
	case CommandConfigDrive:
		err = a.configArgs(ctx, w, &c)
	case CommandErase:
		ask, err := askOf(w)
		if err != nil {
			return "", final(err)
		}
		c.Args = map[string]any{"method": w.Erase, "disks": orEmpty(in.Serials), "skip": orEmpty(ask.SkipDisks)}
	case CommandRescue:
		var r fleet.MetalRescueIn
		err = json.Unmarshal(w.Input, &r)
		c.Args = map[string]any{"sshKeys": orEmpty(r.SSHKeys)}
	default:
		err = fmt.Errorf("no command of type %q", in.Type)
	}
	if err != nil {
		return "", toTemporal(err)
	}
	id, err := a.Machines.SendCommand(ctx, in.OperationID, c)
	return id, toTemporal(err)
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func writeArgs(w Work) (any, map[string]string, error) {
	var in fleet.MetalDeployIn
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return nil, nil, fmt.Errorf("read the image of operation %s: %w", w.OperationID, err)
	}
	args := map[string]any{"url": in.Image.URL, "checksum": in.Image.Checksum, "format": in.Image.Format}
	if in.Image.Size != nil {
		args["size"] = *in.Image.Size
	}
	if in.RootDevice != nil {
		args["rootDevice"] = in.RootDevice
	}
	return args, map[string]string{"url": fleet.SecretImageURL}, nil
}

// configArgs makes the NoCloud documents. JSON is YAML, so that nothing needs
// escaping by hand. The vendor data is sealed: it can hold a one-time token.
func (a *Record) configArgs(ctx context.Context, w Work, c *CommandIn) error {
	var in fleet.MetalDeployIn
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return fmt.Errorf("read the input of operation %s: %w", w.OperationID, err)
	}
	hostname := strings.ReplaceAll(w.NodeID, "_", "-")
	switch {
	case in.Hostname != nil:
		hostname = *in.Hostname
	case w.NodeName != "":
		hostname = w.NodeName
	}
	// A new instance id makes cloud-init run anew on a disk that was kept.
	meta, err := json.Marshal(map[string]any{
		"instance-id": w.NodeID + "." + w.OperationID, "local-hostname": hostname, "public-keys": orEmpty(in.SSHKeys),
	})
	if err != nil {
		return fmt.Errorf("write the meta data: %w", err)
	}
	// The disk is named: a machine that was started anew since the image was
	// written knows of none.
	data, err := a.Machines.LastData(ctx, w.OperationID, CommandWriteImage)
	if err != nil {
		return err
	}
	var done written
	if data != nil {
		if done, err = writtenOf(data); err != nil {
			return err
		}
	}
	c.Args = map[string]any{"metaData": string(meta) + "\n", "disk": done.Disk.Serial}
	c.Secrets = map[string]string{"userData": fleet.SecretUserData, "networkData": fleet.SecretNetworkData}
	vendor, err := a.vendorData(ctx, w, in)
	if err != nil || vendor == "" {
		return err
	}
	c.Sealed = map[string]string{"vendorData": vendor}
	return nil
}

// What Watch can look for.
const (
	WatchCallIn  = "call-in"
	WatchCommand = "command"
	WatchReport  = "report"
	WatchSession = "session"
)

// WatchIn is one look at something waited for.
type WatchIn struct {
	OperationID, Step string
	// What is one of the Watch constants; CommandID belongs to WatchCommand.
	What, CommandID string
	// Show, when not nil, is stored as what the operation waits for.
	Show *fleet.WaitingFor
}

// WatchOut is what was seen.
type WatchOut struct {
	// Done says that it came.
	Done bool
	// Held says that somebody keeps changes away, so that limits stand still.
	Held    bool
	Machine Machine
	// Command is the command's state without its data.
	Command Command
}

// Watch reads the fact that a workflow waits for, and whether limits stand
// still meanwhile.
func (a *Record) Watch(ctx context.Context, in WatchIn) (WatchOut, error) {
	out, err := a.look(ctx, in)
	if err != nil {
		return WatchOut{}, toTemporal(err)
	}
	if out.Done {
		return out, toTemporal(a.Ops.SetWaiting(ctx, in.OperationID, nil))
	}
	if out.Command.Percent != nil {
		if err := a.Ops.NoteStep(ctx, in.OperationID, in.Step, describeProgress(out.Command)); err != nil {
			return WatchOut{}, toTemporal(err)
		}
	}
	if in.Show != nil {
		if err := a.Ops.SetWaiting(ctx, in.OperationID, in.Show); err != nil {
			return WatchOut{}, toTemporal(err)
		}
	}
	p, err := a.Ops.CheckSafePoint(ctx, in.OperationID, "")
	out.Held = !p.Go
	return out, toTemporal(err)
}

func describeProgress(c Command) string {
	s := fmt.Sprintf("%d %%", *c.Percent)
	if c.Detail != "" {
		s += ", " + c.Detail
	}
	return s
}

func (a *Record) look(ctx context.Context, in WatchIn) (out WatchOut, err error) {
	switch in.What {
	case WatchCallIn:
		out.Machine, err = a.Machines.Machine(ctx, in.OperationID)
		out.Done = out.Machine.CalledIn
	case WatchReport:
		out.Done, err = a.Machines.Reported(ctx, in.OperationID)
	case WatchSession:
		out.Done, err = a.Machines.InSession(ctx, in.OperationID)
	case WatchCommand:
		if out.Machine, err = a.Machines.Machine(ctx, in.OperationID); err != nil {
			return out, err
		}
		out.Command, err = a.Machines.Command(ctx, in.CommandID)
		out.Command.Data = nil
		switch out.Command.State {
		case "succeeded", "failed", "cancelled", "expired":
			out.Done = true
		}
	default:
		err = fmt.Errorf("nothing called %q can be waited for", in.What)
	}
	return out, err
}

// Present says whether the machine is up in our image on the last boot.
func (a *Record) Present(ctx context.Context, in OperationIn) (bool, error) {
	m, err := a.Machines.Machine(ctx, in.OperationID)
	return m.CalledIn && m.Present && !m.Reused, toTemporal(err)
}

// StopMachine cancels the operation's commands and, with the boots, voids what
// could still call in.
func (a *Record) StopMachine(ctx context.Context, in StopIn) error {
	if err := a.Machines.CancelCommands(ctx, in.OperationID); err != nil {
		return toTemporal(err)
	}
	if !in.Boots {
		return nil
	}
	return toTemporal(a.Machines.VoidBoots(ctx, in.OperationID))
}

// StopIn says what to end.
type StopIn struct {
	OperationID string
	// Boots voids the boots too.
	Boots bool
}

// DataIn names a command whose data is taken over.
type DataIn struct{ OperationID, CommandID string }

// TakeInventory stores what the machine read of itself.
func (a *Record) TakeInventory(ctx context.Context, in DataIn) (string, error) {
	c, err := a.Machines.Command(ctx, in.CommandID)
	if err != nil {
		return "", toTemporal(err)
	}
	var inv fleet.Inventory
	if err := json.Unmarshal(c.Data, &inv); err != nil {
		return "", final(NewReason(CodeMachine, "the machine's inventory cannot be read: %s", err))
	}
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return "", toTemporal(err)
	}
	inv.InBand = true
	if w.Inventory != nil {
		inv = mergeInventories(*w.Inventory, inv)
	}
	return describeInventory(inv), toTemporal(a.Nodes.RecordInventory(ctx, in.OperationID, inv))
}

// TakeErased reads the records of an erase command.
func (a *Record) TakeErased(ctx context.Context, in DataIn) ([]fleet.DiskErase, error) {
	c, err := a.Machines.Command(ctx, in.CommandID)
	if err != nil {
		return nil, toTemporal(err)
	}
	var data struct{ Disks []fleet.DiskErase }
	if err := json.Unmarshal(c.Data, &data); err != nil {
		return nil, final(NewReason(CodeMachine, "the machine's erase records cannot be read: %s", err))
	}
	return data.Disks, nil
}

// written is what a machine says of the image that it wrote.
type written struct {
	Disk   struct{ Serial string }
	SHA256 string `json:"sha256"`
	Bytes  int64
}

func writtenOf(data json.RawMessage) (w written, err error) {
	if err := json.Unmarshal(data, &w); err != nil {
		return w, final(NewReason(CodeMachine, "the machine's result cannot be read: %s", err))
	}
	return w, nil
}

// CheckWritten compares what the machine says it wrote with what was asked.
func (a *Record) CheckWritten(ctx context.Context, in DataIn) (string, error) {
	c, err := a.Machines.Command(ctx, in.CommandID)
	if err != nil {
		return "", toTemporal(err)
	}
	data, err := writtenOf(c.Data)
	if err != nil {
		return "", toTemporal(err)
	}
	w, err := a.Ops.LoadWork(ctx, in.OperationID)
	if err != nil {
		return "", toTemporal(err)
	}
	img, err := imageOf(w)
	if err != nil {
		return "", final(err)
	}
	if got := strings.TrimPrefix(data.SHA256, "sha256:"); got != strings.TrimPrefix(img.Checksum, "sha256:") {
		return "", final(NewReason(CodeMachine, "the machine read an image with sha256 %s, asked was %s", got, img.Checksum))
	}
	return fmt.Sprintf("%d bytes on disk %s, checksum verified", data.Bytes, data.Disk.Serial), nil
}
