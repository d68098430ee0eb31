// Package check reads everything of a BMC that the control plane will lean on
// and says of each in plain words whether it works, what is odd or missing, and
// what the control plane will do about it. It changes nothing: of what it sends
// only login and logout are no reads. `computectl bmc check` shows its report;
// bmc/bmctest asks it of every driver.
package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// Grade says how well one thing serves.
type Grade string

// The grades. Odd works, in a way of its own; missing is not offered, and the
// control plane does without; broken stops it.
const (
	Works   Grade = "works"
	Odd     Grade = "odd"
	Missing Grade = "missing"
	Broken  Grade = "broken"
)

// Finding is one thing that was looked at.
type Finding struct {
	// Area is what was looked at, such as "power".
	Area  string `json:"area"`
	Grade Grade  `json:"grade"`
	// Says is what was found.
	Says string `json:"says"`
	// Then is what the control plane does about it, Try what a person can.
	Then string `json:"then,omitempty"`
	Try  string `json:"try,omitempty"`
	// Quirk is the name under which it is stored and shown on the node.
	Quirk string `json:"quirk,omitempty"`
}

// Report is everything that was found.
type Report struct {
	Address  string    `json:"address"`
	Driver   string    `json:"driver,omitempty"`
	Findings []Finding `json:"findings"`
	// Unchecked are the things that only a change would show.
	Unchecked []string `json:"unchecked,omitempty"`
	// Requests counts what was sent, by method; over IPMI by ipmitool's command.
	Requests map[string]int `json:"requests"`
	// Reached is false when nothing behind the login could be looked at.
	Reached bool `json:"reached"`
	// Usable says that nothing is broken.
	Usable bool `json:"usable"`
	// Identity and Capabilities are what enrolling would record.
	Identity     *fleet.BMCIdentity  `json:"identity,omitempty"`
	Capabilities *fleet.Capabilities `json:"capabilities,omitempty"`
	Quirks       []string            `json:"quirks,omitempty"`
}

// Way is how a BMC is reached: package open's functions, or a driver's own.
type Way struct {
	Open func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error)
	// Certificate looks at the certificate; nil where there is no TLS.
	Certificate func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Certificate, error)
}

// run is one check under way.
type run struct {
	Report
	mu sync.Mutex
	// sessions are the logins that opened a session, less those closed.
	sessions int
}

// Run checks one BMC. Whatever goes wrong is a finding.
func Run(ctx context.Context, way Way, target bmc.Target, opts bmc.Options) Report {
	r := &run{Report: Report{Address: target.Address.String() + target.Address.System, Requests: map[string]int{}}}
	observe := opts.Observe
	opts.Observe = func(e bmc.Exchange) {
		r.note(e)
		if observe != nil {
			observe(e)
		}
	}
	if way.Certificate != nil && !r.certificate(ctx, way, target, opts) {
		return r.end()
	}
	c, err := way.Open(ctx, target, opts)
	if err != nil {
		r.failed("login", err)
		return r.end()
	}
	r.Reached = true
	r.look(ctx, c, target)
	r.logOut(ctx, c)
	return r.end()
}

func (r *run) note(e bmc.Exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := e.Method
	session := strings.Contains(strings.ToLower(e.Path), "/sessions")
	switch {
	case e.Method == "IPMI":
		command, _, _ := strings.Cut(e.Path, " ")
		name = "ipmitool " + command
	case e.Method != "GET" && session:
		name += " session"
		if e.Status/100 == 2 {
			r.sessions += map[string]int{"POST": 1, "DELETE": -1}[e.Method]
		}
	}
	r.Requests[name]++
}

func (r *run) add(f Finding) { r.Findings = append(r.Findings, f) }

// end judges the whole.
func (r *run) end() Report {
	r.Usable = r.Reached && !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Grade == Broken })
	return r.Report
}

// thenOf is what the control plane does about each kind of error.
var thenOf = map[bmc.Kind]string{
	bmc.KindBusy:         "an operation waits and tries again",
	bmc.KindUnreachable:  "an operation tries for 30 minutes, then is parked; at rest the node shows BmcReachable False",
	bmc.KindTimeout:      "an operation tries again, then is parked",
	bmc.KindUnsupported:  "what needs it answers UNSUPPORTED",
	bmc.KindAuth:         "the operation stops at once, so that no account is locked; the node shows BmcAuthenticated False",
	bmc.KindTrust:        "no password is sent; the node shows BmcTrusted False",
	bmc.KindWrongMachine: "nothing is changed; the operation is parked and names the candidates",
	bmc.KindNotAllowed:   "no packet is sent",
	bmc.KindRefused:      "the operation is parked with the BMC's own words",
	bmc.KindProtocol:     "an operation reads again, then is parked",
}

// failed adds what an error says.
func (r *run) failed(area string, err error) {
	f := Finding{Area: area, Grade: Broken, Says: err.Error()}
	var e *bmc.Error
	if errors.As(err, &e) {
		f.Says, f.Try, f.Then = e.Doing+": "+e.Cause, e.Remedy, thenOf[e.Kind]
	}
	r.add(f)
}

// look reads everything behind the login.
func (r *run) look(ctx context.Context, c bmc.Client, target bmc.Target) {
	var survey bmc.Survey
	var err error
	if s, ok := c.(bmc.Surveyor); ok {
		survey, err = s.Survey(ctx)
		r.login(survey, target)
		if err != nil {
			r.failed("system", err)
			return
		}
	}
	found, err := c.Identify(ctx)
	if err != nil {
		r.failed("system", err)
		return
	}
	r.Driver, r.Identity, r.Capabilities, r.Quirks = found.Capabilities.Driver, &found.Identity, &found.Capabilities, found.Quirks
	redfish := r.Driver == "redfish"
	if redfish {
		r.systems(survey, found)
	}
	r.Findings = append(r.Findings, Identity(found)...)
	r.power(ctx, c)
	r.Findings = append(r.Findings, Reset(found.Capabilities, survey)...)
	r.boot(ctx, c, found.Capabilities, survey)
	r.Findings = append(r.Findings, Media(found.Capabilities, survey))
	if redfish {
		r.Findings = append(r.Findings, Services(found.Capabilities, survey)...)
	}
	r.inventory(ctx, c)
	r.log(ctx, c, survey)
	r.Findings = append(r.Findings, Quirks(found.Quirks)...)
	r.unchecked(found.Capabilities)
}

// logOut closes the conversation and says whether a session was left behind.
func (r *run) logOut(ctx context.Context, c bmc.Client) {
	opened := r.Requests["POST session"] > 0
	if err := c.Close(ctx); err != nil {
		r.failed("sessions", err)
		return
	}
	switch {
	case !opened:
	case r.sessions > 0:
		r.add(Finding{Area: "sessions", Grade: Odd, Says: "our session could not be deleted, it ends by itself",
			Then: "one session per BMC is kept and shared, so that the table does not fill", Try: "see how many sessions the BMC allows and when it ends idle ones"})
	default:
		r.add(Finding{Area: "sessions", Grade: Works, Says: "our session was deleted again"})
	}
}

// lastDay bounds how far back the log is read.
const lastDay = 24 * time.Hour
