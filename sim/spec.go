package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"gopkg.in/yaml.v3"
)

// MachineSpec says what machine to simulate: the member "machine" of a fault
// file and the body of POST /sim/machines. What is left out comes from the
// profile, and what that leaves open from the seed.
type MachineSpec struct {
	// Profile names the vendor profile; default generic.
	Profile string `yaml:"profile,omitempty" json:"profile,omitempty"`
	// Seed decides what varies; default the machine's number in the rack.
	Seed uint64 `yaml:"seed,omitempty" json:"seed,omitempty"`
	// Model picks one of the profile's hardware models by name.
	Model string `yaml:"model,omitempty" json:"model,omitempty"`
	// Systems is the number of independent systems behind the BMC; default 1.
	Systems int `yaml:"systems,omitempty" json:"systems,omitempty"`
	// BootHome says where the boot override is written: live, settings, or
	// liveWithDecoy (a settings resource exists but holds no Boot).
	BootHome string `yaml:"bootHome,omitempty" json:"bootHome,omitempty"`
	// BootMode is the boot mode the machine is found in: UEFI or Legacy.
	BootMode string `yaml:"bootMode,omitempty" json:"bootMode,omitempty"`
	// ETag says where ETags are shown: header, body, both or none.
	ETag string `yaml:"etag,omitempty" json:"etag,omitempty"`
	// TaskRef says where a 202 names its task: location, link, body or none.
	TaskRef string `yaml:"taskRef,omitempty" json:"taskRef,omitempty"`
	// MediaUnder says where virtual media are: manager or system.
	MediaUnder string `yaml:"mediaUnder,omitempty" json:"mediaUnder,omitempty"`
	// ResetTypes is what the Reset action takes.
	ResetTypes []string `yaml:"resetTypes,omitempty" json:"resetTypes,omitempty"`
	// ResetTypesFrom says where it is said: inline, actionInfo or none.
	ResetTypesFrom string `yaml:"resetTypesFrom,omitempty" json:"resetTypesFrom,omitempty"`
	// SessionLimit is the number of sessions that may be open.
	SessionLimit int `yaml:"sessionLimit,omitempty" json:"sessionLimit,omitempty"`
	// SessionTimeout is the idle time that ends a session; default 30 min.
	SessionTimeout Duration `yaml:"sessionTimeout,omitempty" json:"sessionTimeout,omitempty"`
	// Post is the length of the power-on self test; default 120 s.
	Post *Duration `yaml:"post,omitempty" json:"post,omitempty"`
	// PowerSettle is how long a power change takes to be done and seen; default 20 s.
	PowerSettle *Duration `yaml:"powerSettle,omitempty" json:"powerSettle,omitempty"`
	// GracefulShutdown is obey or ignore.
	GracefulShutdown string `yaml:"gracefulShutdown,omitempty" json:"gracefulShutdown,omitempty"`
	// Power is the power state the machine is found in; default Off.
	Power string `yaml:"power,omitempty" json:"power,omitempty"`
	// DiskContent is what the disks are found with; default empty.
	DiskContent string `yaml:"diskContent,omitempty" json:"diskContent,omitempty"`
	// Username and Password are the administrator's; made from the seed when empty.
	Username string `yaml:"username,omitempty" json:"username,omitempty"`
	Password string `yaml:"password,omitempty" json:"password,omitempty"`
	// MustChangePassword makes the service refuse everything but a change of
	// the administrator's password.
	MustChangePassword bool    `yaml:"mustChangePassword,omitempty" json:"mustChangePassword,omitempty"`
	TLS                TLSSpec `yaml:"tls,omitempty" json:"tls,omitzero"`
}

// TLSSpec says what certificate the service shows.
type TLSSpec struct {
	// Mode is selfSigned (default), ownCA, wrongName or expired.
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
	// Rotate gives the service another certificate: at once when set on a
	// machine that exists, and at every restart of its BMC.
	Rotate bool `yaml:"rotate,omitempty" json:"rotate,omitempty"`
}

// Duration is a simulated duration; in YAML and JSON "90s" or a number of seconds.
type Duration time.Duration

// UnmarshalYAML reads "90s" or a number of seconds.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	var seconds float64
	if n.Decode(&seconds) == nil {
		*d = Duration(seconds * float64(time.Second))
		return nil
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is no duration", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalYAML reads.
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

var resetTypesKnown = []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart",
	"Nmi", "ForceOn", "PushPowerButton", "PowerCycle"}

// check refuses a value that means nothing.
func (s *MachineSpec) check() error {
	oneOf := func(member, v string, allowed ...string) error {
		if v == "" || slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("%s: %q is none of %v", member, v, allowed)
	}
	var errs []error
	errs = append(errs,
		oneOf("bootHome", s.BootHome, "live", "settings", "liveWithDecoy"),
		oneOf("bootMode", s.BootMode, "UEFI", "Legacy"),
		oneOf("etag", s.ETag, "header", "body", "both", "none"),
		oneOf("taskRef", s.TaskRef, "location", "link", "body", "none"),
		oneOf("mediaUnder", s.MediaUnder, "manager", "system"),
		oneOf("resetTypesFrom", s.ResetTypesFrom, "inline", "actionInfo", "none"),
		oneOf("gracefulShutdown", s.GracefulShutdown, "obey", "ignore"),
		oneOf("power", s.Power, powerOn, powerOff),
		oneOf("diskContent", s.DiskContent, ContentEmpty, ContentData),
		oneOf("tls.mode", s.TLS.Mode, tlsSelfSigned, tlsOwnCA, tlsWrongName, tlsExpired))
	for _, t := range s.ResetTypes {
		errs = append(errs, oneOf("resetTypes", t, resetTypesKnown...))
	}
	if s.Systems < 0 || s.Systems > 16 {
		errs = append(errs, fmt.Errorf("systems: %d is not between 1 and 16", s.Systems))
	}
	if s.SessionLimit < 0 {
		errs = append(errs, errors.New("sessionLimit: must not be negative"))
	}
	return errors.Join(errs...)
}

// decodeYAML reads one YAML or JSON document into v and refuses unknown members.
func decodeYAML(b []byte, v any) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
