package ipmi

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

func unsupported(doing, cause, remedy string) error {
	return &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: cause, Remedy: remedy, Unsent: true}
}

// InsertMedia is UNSUPPORTED: IPMI has no virtual media.
func (c *Client) InsertMedia(context.Context, string) error {
	return unsupported("insert an image into "+c.tool.name(), "IPMI has no virtual media", "use Redfish, or boot by PXE (bootVia pxe)")
}

// EjectMedia is UNSUPPORTED: there are no slots.
func (c *Client) EjectMedia(context.Context, func(string) bool) error {
	return unsupported("empty the virtual media of "+c.tool.name(), "IPMI has no virtual media", "none needed")
}

// EraseDrives is UNSUPPORTED: IPMI does not know drives.
func (c *Client) EraseDrives(context.Context, []string) ([]fleet.DiskErase, error) {
	return nil, unsupported("erase the drives of "+c.tool.name(), "IPMI does not know drives", "erase with our image")
}

// SetPassword is UNSUPPORTED: it would put the password on a command line.
func (c *Client) SetPassword(context.Context, string) error {
	return unsupported("set the password of "+c.tool.name(), "over IPMI the password would stand on a command line",
		"change it at the BMC or over Redfish, then metal/setCredentials without rotate")
}

// Log returns the System Event Log since a time, through bmclib.
func (c *Client) Log(ctx context.Context, since time.Time) ([]bmc.LogEntry, error) {
	doing := "read the event log of " + c.tool.name()
	rows, err := c.eventLog(ctx, doing)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx, doing)
		}
		// bmclib's error does not say why; a harmless read does.
		if _, probe := c.tool.raw(ctx, false, doing, 0x06, 0x01); probe != nil {
			return nil, explain(doing, probe)
		}
		return nil, &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: "the event log cannot be read", Remedy: "look at it in the BMC", Err: errors.Unwrap(err)}
	}
	var out []bmc.LogEntry
	for _, row := range rows {
		e, ok := entry(row)
		if ok && (e.At.IsZero() || !e.At.Before(since)) {
			out = append(out, e)
		}
	}
	return out, nil
}

// eventLog reads the rows as bmclib gives them. Its sessions are always the
// administrator's; an operator's are ours.
func (c *Client) eventLog(ctx context.Context, doing string) ([][]string, error) {
	if c.tool.role == roleAdministrator {
		return c.lib.GetSystemEventLog(ctx)
	}
	out, err := c.ask(ctx, doing, "sel", "list")
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		if cells := strings.Split(line, "|"); len(cells) > 4 {
			rows = append(rows, []string{cells[0], strings.TrimSpace(cells[1]) + " " + strings.TrimSpace(cells[2]), cells[3], strings.Join(cells[4:], ":")})
		}
	}
	return rows, nil
}

// entry makes one of bmclib's row: id, time, sensor, event.
func entry(row []string) (bmc.LogEntry, bool) {
	if len(row) < 4 {
		return bmc.LogEntry{}, false
	}
	e := bmc.LogEntry{Message: strings.Join(strings.Fields(strings.Join(row[2:], " ")), " ")}
	for _, layout := range []string{"01/02/2006 15:04:05", "01/02/06 15:04:05", "2006-01-02 15:04:05"} {
		if at, err := time.ParseInLocation(layout, strings.TrimSpace(strings.TrimSuffix(row[1], "UTC")), time.UTC); err == nil {
			e.At = at
			break
		}
	}
	return e, e.Message != ""
}
