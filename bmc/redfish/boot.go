package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// targetNames are the names of a target, the usual one first.
var targetNames = map[bmc.BootTarget][]string{
	bmc.BootDisk: {string(redfish.HddBootSourceOverrideTarget)},
	bmc.BootCD:   {string(redfish.CdBootSourceOverrideTarget), "UsbCd"},
	bmc.BootPXE:  {string(redfish.PxeBootSourceOverrideTarget)},
	bmc.BootHTTP: {string(redfish.UefiHTTPBootSourceOverrideTarget)},
}

// bootObject is the Boot object with absent told from empty.
type bootObject struct {
	Enabled *string  `json:"BootSourceOverrideEnabled"`
	Target  *string  `json:"BootSourceOverrideTarget"`
	Mode    *string  `json:"BootSourceOverrideMode"`
	HTTPURI *string  `json:"HttpBootUri"`
	Targets []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
	// Enables are the allowed values of Enabled, where they are given.
	Enables []string `json:"BootSourceOverrideEnabled@Redfish.AllowableValues"`
}

func (b bootObject) mode() string {
	if b.Mode == nil {
		return ""
	}
	return *b.Mode
}

// override is the object in our words.
func (b bootObject) override() bmc.BootOverride {
	o := bmc.BootOverride{Target: bmc.BootNone}
	o.UEFI, o.Legacy = b.mode() == string(redfish.UEFIBootSourceOverrideMode), b.mode() == string(redfish.LegacyBootSourceOverrideMode)
	if b.Enabled == nil || b.Target == nil || *b.Enabled == "Disabled" || *b.Enabled == "" || *b.Target == "None" || *b.Target == "" {
		return o
	}
	o.Target = bmc.BootTarget(*b.Target)
	for t, names := range targetNames {
		if slices.Contains(names, *b.Target) {
			o.Target = t
		}
	}
	o.Persistent = *b.Enabled == string(redfish.ContinuousBootSourceOverrideEnabled)
	if o.Target == bmc.BootHTTP && b.HTTPURI != nil {
		o.HTTPURL = *b.HTTPURI
	}
	return o
}

// bootPlace is a resource that holds a boot override.
type bootPlace struct {
	resource
	boot bootObject
	// settings is true for the settings resource of the system.
	settings bool
}

func readPlace(r resource, settings bool) (bootPlace, bool) {
	p := bootPlace{resource: r, settings: settings}
	var m struct{ Boot *bootObject }
	if json.Unmarshal(r.raw, &m) != nil || m.Boot == nil {
		return p, false
	}
	p.boot = *m.Boot
	return p, p.boot.Target != nil || p.boot.Enabled != nil
}

// bootHome is where the override is written and read back: the settings
// resource where it holds one, else the live system. One that was learned to
// refuse it is left aside.
func (c *Client) bootHome(ctx context.Context, s system) (bootPlace, error) {
	if l := string(s.more.Settings.Object); l != "" && !c.knows(quirkBootLive) {
		r, err := c.get(ctx, l, "read the boot settings of "+c.name())
		if err != nil && !missing(err) {
			return bootPlace{}, err
		}
		if p, ok := readPlace(r, true); err == nil && ok {
			return p, nil
		}
	}
	if p, ok := readPlace(s.resource, false); ok {
		return p, nil
	}
	return bootPlace{}, &bmc.Error{Kind: bmc.KindUnsupported, Doing: "read the boot override of " + c.name(),
		Cause: "the BMC shows no boot override", Remedy: "set the boot order in the machine's own setup"}
}

// Boot reads the boot override: the one that is pending, else the live one.
func (c *Client) Boot(ctx context.Context) (bmc.BootOverride, error) {
	s, err := c.findSystem(ctx)
	if err != nil {
		return bmc.BootOverride{}, err
	}
	home, err := c.bootHome(ctx, s)
	if err != nil {
		return bmc.BootOverride{}, err
	}
	o := home.boot.override()
	o.Progress = s.more.BootProgress.LastState
	return o, nil
}

// biosMode is the boot mode that the BIOS attributes name, "" where they name
// none we know.
func (c *Client) biosMode(ctx context.Context, s system) (string, error) {
	if s.more.Bios == "" {
		return "", nil
	}
	r, err := c.get(ctx, string(s.more.Bios), "read the boot mode of "+c.name())
	if missing(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var b struct {
		Attributes struct{ BootMode string }
	}
	_ = json.Unmarshal(r.raw, &b) // attributes of another shape name no mode
	switch strings.ToLower(b.Attributes.BootMode) {
	case "uefi":
		return string(redfish.UEFIBootSourceOverrideMode), nil
	case "legacy", "bios", "legacybios":
		return string(redfish.LegacyBootSourceOverrideMode), nil
	default:
		return "", nil
	}
}

// bootRun is one SetBoot under way.
type bootRun struct {
	c     *Client
	want  bmc.BootOverride
	until time.Time
	// sendMode says to send a mode even where it does not differ; neverMode that
	// the BMC refused it; sendTarget that Target is wanted for clearing.
	sendMode, neverMode, sendTarget bool
	// modeBefore is the mode that modePath showed before anything was sent there.
	modeBefore, modePath string
	// biosMode is the mode that the BIOS attributes say, where Boot shows none.
	biosMode string
	// tagTry counts the refusals of a current ETag.
	tagTry int
	// confirms counts writes that were accepted but not read back as wanted.
	confirms int
	// wrote says that this run has sent something.
	wrote bool
	last  error
}

// SetBoot sets or clears the override and reads it back where it was written.
func (c *Client) SetBoot(ctx context.Context, want bmc.BootOverride) error {
	r := &bootRun{c: c, want: want, until: time.Now().Add(max(c.waits.Post, c.waits.Change)), sendMode: c.knows(quirkBootMode), neverMode: c.knows(quirkNoBootMode)}
	for {
		s, err := c.mine(ctx)
		if err != nil {
			return err
		}
		p, err := c.bootHome(ctx, s)
		if err != nil {
			return err
		}
		if p.path != r.modePath {
			if err := r.noteMode(ctx, s, p); err != nil {
				return err
			}
		}
		if err := r.possible(p); err != nil {
			return err
		}
		if r.reached(p) {
			return nil
		}
		if wait := r.spacing(); wait > 0 {
			// What is shown may change meanwhile, and with it what is to be sent.
			if err := c.sleep(ctx, wait, r.doing()); err != nil {
				return err
			}
			continue
		}
		again, err := r.write(ctx, p)
		if err != nil {
			return err
		}
		if !again {
			if err := r.confirm(ctx); err != nil {
				return err
			}
		}
		if time.Now().After(r.until) {
			return r.last
		}
	}
}

// spacing is how long to wait before the first write of this run: some services
// take boot settings over in the background and refuse or lose what comes right
// after. A write that corrects the one before comes at once.
func (r *bootRun) spacing() time.Duration {
	if r.wrote || r.c.bootWritten.IsZero() {
		return 0
	}
	return r.c.waits.Busy - time.Since(r.c.bootWritten)
}

func (r *bootRun) doing() string {
	if r.want.Target == bmc.BootNone {
		return "clear the boot override of " + r.c.name()
	}
	return fmt.Sprintf("set the boot override of %s to %s", r.c.name(), r.want.Target)
}

// noteMode remembers the mode of a place before it is written.
func (r *bootRun) noteMode(ctx context.Context, s system, p bootPlace) (err error) {
	r.modePath, r.modeBefore = p.path, p.boot.mode()
	if r.wantedMode() != "" && p.boot.Mode == nil {
		r.biosMode, err = r.c.biosMode(ctx, s)
	}
	return err
}

// possible fails before anything is sent for what the BMC does not offer.
func (r *bootRun) possible(p bootPlace) error {
	if r.want.Target == bmc.BootNone {
		return nil
	}
	if _, ok := r.target(p); !ok {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: r.doing(), Cause: fmt.Sprintf("the BMC offers only %v", p.boot.Targets), Remedy: "boot by another way"}
	}
	if r.want.Target == bmc.BootHTTP && r.want.HTTPURL != "" && p.boot.HTTPURI == nil {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: r.doing(), Cause: "the BMC takes no boot URL", Remedy: "boot by virtual media"}
	}
	want := r.wantedMode()
	hidden := p.boot.Mode == nil && r.biosMode != "" && r.biosMode != want
	if want != "" && (hidden || r.neverMode && p.boot.mode() != want) {
		return r.wrongMode(p)
	}
	return nil
}

func (r *bootRun) wrongMode(p bootPlace) error {
	is := firstOf(p.boot.mode(), r.biosMode, "not shown")
	return &bmc.Error{Kind: bmc.KindRefused, Doing: r.doing(), Cause: fmt.Sprintf("the boot mode is %s, wanted is %s, and the BMC does not let it be changed", is, r.wantedMode()),
		Remedy: "change the boot mode in the machine's own setup"}
}

// target is the BMC's name for the wanted target.
func (r *bootRun) target(p bootPlace) (string, bool) {
	names := targetNames[r.want.Target]
	if len(names) == 0 {
		return "", false
	}
	if len(p.boot.Targets) == 0 {
		return names[0], true
	}
	for _, n := range names {
		if slices.Contains(p.boot.Targets, n) {
			return n, true
		}
	}
	return "", false
}

func (r *bootRun) wantedMode() string {
	switch {
	case r.want.UEFI:
		return string(redfish.UEFIBootSourceOverrideMode)
	case r.want.Legacy:
		return string(redfish.LegacyBootSourceOverrideMode)
	default:
		return ""
	}
}

// reached says whether the place shows what is wanted. The mode counts where
// it is wanted, and where what we sent changed it.
func (r *bootRun) reached(p bootPlace) bool {
	o := p.boot.override()
	if o.Target != r.want.Target || o.Target != bmc.BootNone && o.Persistent != r.want.Persistent {
		return false
	}
	if r.want.Target == bmc.BootHTTP && o.HTTPURL != r.want.HTTPURL {
		return false
	}
	if want := r.wantedMode(); want != "" {
		return p.boot.mode() == want || p.boot.Mode == nil
	}
	return p.boot.mode() == r.modeBefore
}

// body is what to send, made anew from what is shown now.
func (r *bootRun) body(p bootPlace) map[string]any {
	b := map[string]any{}
	if r.want.Target == bmc.BootNone {
		b["BootSourceOverrideEnabled"] = "Disabled"
		if r.sendTarget || p.boot.Enabled == nil {
			b["BootSourceOverrideTarget"] = "None"
		}
		if p.boot.Enabled == nil {
			delete(b, "BootSourceOverrideEnabled")
		}
	} else {
		name, _ := r.target(p) // judged by possible
		b["BootSourceOverrideTarget"] = name
		b["BootSourceOverrideEnabled"] = "Once"
		if r.want.Persistent {
			b["BootSourceOverrideEnabled"] = "Continuous"
		}
		if r.want.Target == bmc.BootHTTP && r.want.HTTPURL != "" {
			b["HttpBootUri"] = r.want.HTTPURL
		}
	}
	if mode := r.modeToSend(p); mode != "" {
		b["BootSourceOverrideMode"] = mode
	}
	return map[string]any{"Boot": b}
}

// modeToSend is the mode to send: the wanted one where the BMC shows another,
// and, where it demands one, the wanted one or that of before.
func (r *bootRun) modeToSend(p bootPlace) string {
	if r.neverMode {
		return ""
	}
	want := r.wantedMode()
	if want != "" && p.boot.Mode != nil && p.boot.mode() != want {
		return want
	}
	if !r.sendMode {
		return ""
	}
	for _, m := range []string{want, r.modeBefore, p.boot.mode()} {
		if m != "" {
			return m
		}
	}
	return string(redfish.UEFIBootSourceOverrideMode)
}

func (r *bootRun) patch(ctx context.Context, p bootPlace) (*answer, verdict, error) {
	rq := request{method: http.MethodPatch, path: p.path, body: r.body(p), ifMatch: ifMatch(p.resource, r.tagTry), doing: r.doing()}
	a, v, err := r.c.change(ctx, rq)
	r.wrote, r.c.bootWritten = true, time.Now()
	return a, v, err
}

// ifMatch is the tag to send: the one just read, and after it was refused
// although current, the forms that odd services compare.
func ifMatch(r resource, refused int) string {
	forms := []string{r.tag, r.tag, r.bodyTag, unquoted(r.tag), "*", ""}
	if r.tag == "" {
		return ""
	}
	return forms[min(refused, len(forms)-1)]
}
