package redfish

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// EraseDrives erases drives by Drive.SecureErase and proves each by what is
// read afterwards. A drive that cannot be proved erased has result "failed".
func (c *Client) EraseDrives(ctx context.Context, serials []string) ([]fleet.DiskErase, error) {
	s, err := c.mine(ctx)
	if err != nil {
		return nil, err
	}
	drives, err := c.drives(ctx, s)
	if err != nil {
		return nil, err
	}
	doing := "erase the drives of " + c.name()
	var chosen []drive
	for _, serial := range serials {
		i := slices.IndexFunc(drives, func(d drive) bool { return cleanSerial(d.SerialNumber) == serial })
		if i < 0 || drives[i].eraseTarget() == "" {
			continue
		}
		chosen = append(chosen, drives[i])
	}
	if len(chosen) == 0 {
		return nil, &bmc.Error{Kind: bmc.KindUnsupported, Doing: doing, Cause: "the BMC offers secure erase for none of the drives", Remedy: "erase with our image"}
	}
	var out []fleet.DiskErase
	for _, d := range chosen {
		rec := fleet.DiskErase{Serial: cleanSerial(d.SerialNumber), Method: string(fleet.EraseFull), Result: "done"}
		detail, err := c.eraseDrive(ctx, d, doing)
		rec.Detail = detail
		if err != nil {
			if bmc.Retryable(err) && bmc.KindOf(err) != bmc.KindTimeout || bmc.KindOf(err) == "" || bmc.KindOf(err) == bmc.KindAuth || bmc.KindOf(err) == bmc.KindWrongMachine {
				return out, err
			}
			rec.Result, rec.Detail = "failed", err.Error()
		}
		out = append(out, rec)
	}
	return out, nil
}

// eraseDrive erases one drive. An erase that is running, by whomever it was
// asked, is waited for and not asked for again.
func (c *Client) eraseDrive(ctx context.Context, d drive, doing string) (string, error) {
	until := time.Now().Add(c.eraseBound(ctx))
	if !d.erasing() {
		if err := c.postErase(ctx, d, doing, until); err != nil {
			return "", err
		}
	}
	for {
		now, err := c.sameDrive(ctx, d, doing)
		if err != nil {
			return "", err
		}
		if !now.erasing() {
			return now.proof(doing)
		}
		if time.Now().After(until) {
			return "", &bmc.Error{Kind: bmc.KindTimeout, Doing: doing, Cause: "the erase of " + d.SerialNumber + " did not end in time", Remedy: "wait for its end and release again"}
		}
		if err := c.sleep(ctx, c.waits.Poll, doing); err != nil {
			return "", err
		}
	}
}

// eraseBound is the time for one drive: the caller's, since a large disk takes
// hours.
func (c *Client) eraseBound(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return c.waits.Change
}

func (c *Client) postErase(ctx context.Context, d drive, doing string, until time.Time) error {
	path, err := c.local(d.eraseTarget())
	if err != nil {
		return err
	}
	body := map[string]any{}
	if t, err := c.sanitization(ctx, d); err != nil {
		return err
	} else if t != "" {
		body["SanitizationType"] = t
	}
	for {
		a, v, err := c.change(ctx, request{method: http.MethodPost, path: path, body: body, doing: doing})
		switch {
		case bmc.KindOf(err) == bmc.KindUnreachable && !notSent(err):
			return nil // the drive will tell
		case err != nil:
			return err
		case v.class == classDone:
			return c.follow(ctx, a, until, doing)
		case v.class != classLater && v.class != classConflict || time.Now().After(until):
			return c.failure(doing, a, v)
		}
		if err := c.pause(ctx, v, doing); err != nil {
			return err
		}
		if now, err := c.sameDrive(ctx, d, doing); err != nil || now.erasing() {
			return err
		}
	}
}

// sanitization is the strongest kind of erase that the drive is said to take.
func (c *Client) sanitization(ctx context.Context, d drive) (string, error) {
	link := d.more.Actions.Erase.ActionInfo
	if link == "" {
		return "", nil
	}
	offered, err := c.actionInfo(ctx, link, "SanitizationType")
	for _, t := range []string{"CryptographicErase", "BlockErase", "Overwrite"} {
		if slices.Contains(offered, t) {
			return t, err
		}
	}
	return "", err
}

// sameDrive reads a drive again and checks that it is still the same one.
func (c *Client) sameDrive(ctx context.Context, d drive, doing string) (drive, error) {
	r, err := c.get(ctx, d.path, doing)
	if err != nil {
		return d, err
	}
	now, err := readDrive(r)
	if err != nil {
		return d, c.nonsense(doing, err)
	}
	if cleanSerial(now.SerialNumber) != cleanSerial(d.SerialNumber) {
		return d, &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Cause: fmt.Sprintf("the slot of %s shows %q now", d.SerialNumber, now.SerialNumber), Remedy: "see what became of the disk"}
	}
	return now, nil
}

// erasing says that the drive is at work.
func (d drive) erasing() bool {
	for _, o := range d.more.Operations {
		name := strings.ToLower(o.OperationName)
		if strings.Contains(name, "erase") || strings.Contains(name, "sanitize") || strings.Contains(name, "format") {
			return true
		}
	}
	return d.Status.State == common.UpdatingState
}

// proof says what shows the erase: no volume is left on a drive that is well.
func (d drive) proof(doing string) (string, error) {
	bad := &bmc.Error{Kind: bmc.KindRefused, Doing: doing, Remedy: "erase with our image"}
	switch {
	case len(d.more.Links.Volumes) > 0:
		bad.Cause = fmt.Sprintf("%s still holds %d volumes after its erase", d.SerialNumber, len(d.more.Links.Volumes))
	case d.Status.Health == common.CriticalHealth:
		bad.Cause = fmt.Sprintf("%s is Critical after its erase", d.SerialNumber)
	default:
		return "SecureErase of the drive ended well; no volume and no operation is read on it", nil
	}
	return "", bad
}
