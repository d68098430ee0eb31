package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// systems says which system is the machine.
func (r *run) systems(s bmc.Survey, found bmc.Found) {
	f := Finding{Area: "system", Grade: Works, Says: found.System}
	if len(s.Candidates) > 1 {
		f.Grade, f.Says = Odd, fmt.Sprintf("%s, named by the address among %s", found.System, strings.Join(s.Candidates, ", "))
		f.Then = "only that one is ever touched"
	}
	if len(s.Parts) > 0 {
		f.Says += "; parts of it: " + strings.Join(s.Parts, ", ")
		f.Then = strings.TrimPrefix(f.Then+"; what the parts hold counts to the machine", "; ")
	}
	r.add(f)
}

// Identity judges who the machine says it is.
func Identity(found bmc.Found) []Finding {
	id := found.Identity
	name := strings.TrimSpace(id.Manufacturer + " " + id.Model)
	out := []Finding{{Area: "identity", Grade: Works, Says: fmt.Sprintf("%s, serial %s, UUID %s", orWord(name, "no name"), orWord(id.Serial, "none"), orWord(id.UUID, "none"))}}
	f := &out[0]
	_, proves := fleet.ProvingUUID(id.UUID)
	switch {
	case found.MachineKey == "":
		f.Grade, f.Says = Broken, f.Says+"; nothing here tells this machine from another"
		f.Then, f.Try = "the machine cannot be enrolled: it could be enrolled twice, or taken for another", "have the maker set the system's UUID"
	case !proves:
		kind, _, _ := strings.Cut(found.MachineKey, ":")
		f.Grade, f.Says = Odd, f.Says+"; the UUID identifies nothing (missing, or a maker's default)"
		f.Then = "the machine is told from others by its " + map[string]string{"manager": "manager's UUID", "mac": "MAC", "cert": "BMC's certificate"}[kind]
		f.Try = "have the maker set the system's UUID, or update the firmware"
	}
	if id.Serial == "" && proves {
		out = append(out, Finding{Area: "identity", Grade: Missing, Says: "no serial number", Then: "the UUID alone is compared before every change"})
	}
	if !proves && id.Serial == "" {
		out = append(out, Finding{Area: "identity", Grade: Odd, Says: "neither UUID nor serial to compare before a change",
			Then: "a board that is replaced is not noticed", Try: "have the maker set UUID and serial"})
	}
	return out
}

func (r *run) power(ctx context.Context, c bmc.Client) {
	p, err := c.Power(ctx)
	switch {
	case err != nil:
		r.failed("power", err)
	case p == bmc.PowerOn || p == bmc.PowerOff:
		f := Finding{Area: "power", Grade: Works, Says: "the machine is " + string(p)}
		if p == bmc.PowerOn {
			f.Then = "found on, it is presumed in use after enrolling: commission with inUse false once you know better"
		}
		r.add(f)
	case p == bmc.PowerUnknown:
		r.add(Finding{Area: "power", Grade: Broken, Says: "the BMC shows no power state",
			Then: "neither on nor off is ever assumed: a change ends in a timeout", Try: "try again when the machine is out of POST; restart the BMC"})
	default:
		r.add(Finding{Area: "power", Grade: Odd, Says: "the machine is " + string(p) + " at the moment", Then: "a change waits for on or off", Try: "check again later"})
	}
}

// aims are the power actions and the reset types that serve them, best first:
// as both drivers choose.
var aims = []struct {
	action string
	types  []string
	// without says what is done when none is offered.
	without string
	needed  bool
}{
	{"on", []string{"On", "ForceOn", "PushPowerButton"}, "the machine cannot be switched on", true},
	{"off", []string{"ForceOff", "GracefulShutdown", "PushPowerButton"}, "the machine cannot be switched off", true},
	{"softOff", []string{"GracefulShutdown", "PushPowerButton"}, "power softOff answers UNSUPPORTED; workflows switch off by force at once", false},
	{"cycle", []string{"ForceOff", "PowerCycle", "ForceRestart"}, "power cycle answers UNSUPPORTED", false},
	{"reset", []string{"ForceRestart", "PowerCycle", "ForceOff"}, "power reset answers UNSUPPORTED", false},
}

// Reset judges the reset types that are offered.
func Reset(caps fleet.Capabilities, s bmc.Survey) []Finding {
	types := slices.Sorted(slices.Values(caps.ResetTypes))
	if len(types) == 0 {
		return []Finding{{Area: "reset", Grade: Odd, Says: "the BMC names no reset types",
			Then: "each action is tried once with the usual type; a refusal ends it", Try: "see whether a newer firmware names them"}}
	}
	from := map[string]string{"inline": "named in the action", "actionInfo": "named in its ActionInfo"}[s.ResetTypesFrom]
	f := Finding{Area: "reset", Grade: Works, Says: strings.Join(types, ", ")}
	if from != "" {
		f.Says += " (" + from + ")"
	}
	var uses []string
	out := []Finding{}
	for _, a := range aims {
		i := slices.IndexFunc(a.types, func(t string) bool { return slices.Contains(types, t) })
		if i < 0 {
			grade := Missing
			if a.needed {
				grade = Broken
			}
			out = append(out, Finding{Area: "reset", Grade: grade, Says: "nothing offered serves " + a.action, Then: a.without})
			continue
		}
		if i > 0 {
			out = append(out, Finding{Area: "reset", Grade: Odd, Says: a.types[0] + " is not offered", Then: "power " + a.action + " uses " + a.types[i]})
		}
		uses = append(uses, a.action+" "+a.types[i])
	}
	f.Then = "uses " + strings.Join(uses, ", ")
	return append([]Finding{f}, out...)
}

func (r *run) boot(ctx context.Context, c bmc.Client, caps fleet.Capabilities, s bmc.Survey) {
	if !caps.BootOverride {
		r.add(Finding{Area: "boot", Grade: Broken, Says: "the BMC shows no boot override",
			Then: "commission and deploy fail: the machine cannot be told what to boot", Try: "set the boot order in the machine's own setup, or update the firmware"})
		return
	}
	now, err := c.Boot(ctx)
	if err != nil {
		r.failed("boot", err)
		return
	}
	r.Findings = append(r.Findings, Boot(caps, s, now)...)
}

// Boot judges the boot override.
func Boot(caps fleet.Capabilities, s bmc.Survey, now bmc.BootOverride) []Finding {
	f := Finding{Area: "boot", Grade: Works, Says: "override " + string(now.Target)}
	if s.BootHome != "" {
		f.Says += ", written at " + s.BootHome
	}
	f.Says += ", mode " + orWord(caps.BootMode, "not shown") + ", targets " + orWord(strings.Join(slices.Sorted(slices.Values(caps.BootTargets)), " "), "not named")
	out := []Finding{f}
	if s.BootInSettings {
		out = append(out, Finding{Area: "boot", Grade: Odd, Says: "it is written in a settings resource and acts at the next boot",
			Then: "it is written and read back there", Quirk: "boot-in-settings-resource"})
	}
	if caps.BootMode == "Legacy" {
		out = append(out, Finding{Area: "boot", Grade: Odd, Says: "the machine boots in legacy mode",
			Then: "virtual media and PXE boot in that mode; HTTP boot asks for UEFI, and fails before anything is switched where it is refused", Try: "set UEFI in the machine's own setup"})
	}
	if now.Target != bmc.BootNone && now.Persistent {
		out = append(out, Finding{Area: "boot", Grade: Odd, Says: "an override for every boot is set to " + string(now.Target),
			Then: "it is replaced by a one-time one, and cleared at release", Try: "clear it if nobody needs it"})
	}
	return out
}

// Media judges the ways to boot our image.
func Media(caps fleet.Capabilities, s bmc.Survey) Finding {
	f := Finding{Area: "media", Grade: Works}
	var paths []string
	for _, m := range s.Media {
		text := m.Path + " under the " + m.Under
		if m.Holds {
			text += ", holding an image"
		}
		if len(m.Protocols) > 0 {
			text += ", takes " + strings.Join(m.Protocols, " ")
		}
		paths = append(paths, text)
	}
	f.Says = "virtual CD " + strings.Join(paths, "; ")
	if slices.ContainsFunc(s.Media, func(m bmc.MediaSlot) bool { return m.Holds }) {
		f.Grade, f.Then = Odd, "an image that is not ours is taken out before ours is inserted"
	}
	if !caps.VirtualMedia {
		f.Grade, f.Says = Missing, "no virtual CD that takes an image by URL"
		f.Try = "a licence or a newer firmware may add virtual media"
		if caps.Driver == "ipmi" {
			f.Says, f.Try = "IPMI has no virtual media", "use Redfish where the BMC has it"
		}
		switch {
		case caps.HTTPBoot:
			f.Then, f.Try = "our image is booted over HTTP (bootVia httpBoot)", ""
		case slices.Contains(caps.BootTargets, "Pxe") || len(caps.BootTargets) == 0 && caps.BootOverride:
			f.Then = "our image is booted by PXE where the site offers it, else deploy answers UNSUPPORTED"
		default:
			f.Grade, f.Then = Broken, "deploy answers UNSUPPORTED: nothing here boots our image"
		}
	}
	return f
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}
