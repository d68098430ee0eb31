package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// Services judges what a Redfish service offers beside the machine itself.
func Services(caps fleet.Capabilities, s bmc.Survey) []Finding {
	or := func(area, path, then string) Finding {
		if path == "" {
			return Finding{Area: area, Grade: Missing, Says: "the service has none", Then: then}
		}
		return Finding{Area: area, Grade: Works, Says: path}
	}
	tag := Finding{Area: "etags", Grade: Works, Says: "the system carries one", Then: "it is sent as If-Match, so that a change made meanwhile is not undone"}
	if !s.ETag {
		tag = Finding{Area: "etags", Grade: Missing, Says: "the system carries none", Then: "changes are sent without If-Match; each is read back all the same"}
	}
	firmware := or("firmware", s.Updates, "the firmware shown is what the system and its managers say")
	if caps.FirmwareVersion != "" {
		firmware.Says += "; the BMC's own is " + caps.FirmwareVersion
	}
	out := []Finding{
		or("tasks", s.Tasks, "an answer that is not final is followed by its own link, or by the state"), tag,
		or("accounts", s.Accounts, "the password cannot be rotated: change it at the BMC, then metal/setCredentials without rotate"), firmware,
		or("events", s.Events, "none is needed: states are polled"),
	}
	erase := Finding{Area: "erase", Grade: Works, Says: "drives offer SecureErase", Then: "it is used and proved by reading back"}
	if !caps.SecureErase {
		erase = Finding{Area: "erase", Grade: Missing, Says: "no drive offers SecureErase", Then: "disks are erased by our image"}
	}
	return append(out, erase)
}

func (r *run) inventory(ctx context.Context, c bmc.Client) {
	inv, err := c.Inventory(ctx)
	if err != nil {
		r.failed("inventory", err)
		return
	}
	r.Findings = append(r.Findings, Inventory(inv)...)
}

// Inventory sums up the hardware and says what was not shown of it.
func Inventory(inv fleet.Inventory) []Finding {
	models := map[string]int{}
	for _, g := range inv.GPUs {
		models[orWord(g.Model, "of no model")]++
	}
	var gpus []string
	for _, m := range slices.Sorted(maps.Keys(models)) {
		gpus = append(gpus, fmt.Sprintf("%d x %s", models[m], m))
	}
	f := Finding{Area: "inventory", Grade: Works, Says: fmt.Sprintf("%d processors, %d GiB memory, %d disks, %d network interfaces, GPUs: %s; %d firmware versions; health %s",
		len(inv.CPUs), inv.MemoryMiB>>10, len(inv.Disks), len(inv.NICs), orWord(strings.Join(gpus, ", "), "none"), len(inv.Firmware), orWord(inv.Health, "not shown"))}
	if len(inv.CPUs)+len(inv.Disks)+len(inv.NICs)+len(inv.GPUs) == 0 && inv.MemoryMiB == 0 {
		f.Grade, f.Says = Missing, fmt.Sprintf("none of the hardware is shown, only %d firmware versions", len(inv.Firmware))
		f.Then = "an in-band inspect reads it on the machine itself"
	}
	if inv.Health == "Warning" || inv.Health == "Critical" {
		f.Grade, f.Then, f.Try = Odd, "the node shows HardwareHealthy False", "see the BMC's log for what is wrong"
	}
	out := []Finding{f}
	if len(inv.Missing) > 0 {
		out = append(out, Finding{Area: "inventory", Grade: Missing, Says: strings.Join(inv.Missing, "; "),
			Then: "it is named as missing on the node and never invented; an in-band inspect reads it on the machine itself"})
	}
	return out
}

func (r *run) log(ctx context.Context, c bmc.Client, s bmc.Survey) {
	entries, err := c.Log(ctx, time.Now().Add(-lastDay))
	if err != nil {
		r.add(Finding{Area: "log", Grade: Missing, Says: err.Error(), Then: "failures are shown without the BMC's own log"})
		return
	}
	f := Finding{Area: "log", Grade: Works, Says: fmt.Sprintf("%d entries of the last day", len(entries))}
	if r.Driver == "redfish" {
		f.Says += " in " + orWord(strings.Join(s.Logs, ", "), "no log service")
		if len(s.Logs) == 0 {
			f.Grade, f.Then = Missing, "failures are shown without the BMC's own log"
		}
	}
	r.add(f)
}

// quirkTexts say what each learned quirk is.
var quirkTexts = map[string]string{
	"basic-auth":                         "it has no sessions: every request carries the password, inside TLS",
	"boot-in-settings-resource":          "the boot override is written and read back in the settings resource",
	"boot-not-in-settings-resource":      "the settings resource shows a boot override but does not take it: the live system does",
	"boot-mode-must-be-sent":             "the boot mode is sent along with every override",
	"boot-mode-not-writable":             "the boot mode is never sent",
	"media-needs-transfer-protocol-type": "TransferProtocolType is sent with every image",
	"ipmi-operator-privilege":            "the account is used as operator, which power and boot device need; administrator was refused",
	"ipmi-boot-valid-bit-not-shown":      "the boot flags' valid bit is not shown: the device alone is read back",
}

// QuirkText says in plain words what a stored quirk means; "" of an unknown one.
func QuirkText(quirk string) string {
	if suite, ok := strings.CutPrefix(quirk, "ipmi-cipher-suite-"); ok {
		return "cipher suite " + suite + " was found to work and is tried first"
	}
	return quirkTexts[quirk]
}

// Quirks explains what was learned of the BMC.
func Quirks(quirks []string) []Finding {
	var out []Finding
	for _, q := range slices.Sorted(slices.Values(quirks)) {
		out = append(out, Finding{Area: "quirks", Grade: Odd, Says: q, Then: QuirkText(q), Quirk: q})
	}
	return out
}

// unchecked names what only a change would show.
func (r *run) unchecked(caps fleet.Capabilities) {
	r.Unchecked = append(r.Unchecked, "whether a power change is acted upon, and how long the machine takes")
	if caps.BootOverride {
		r.Unchecked = append(r.Unchecked, "whether the boot override is taken, with or without its mode")
	}
	if caps.VirtualMedia {
		r.Unchecked = append(r.Unchecked, "whether the BMC fetches an image from the site's network, and what it wants beside the URL")
	}
	if caps.SetPassword {
		r.Unchecked = append(r.Unchecked, "whether the account may change its password")
	}
}
