package bmc

import (
	"context"
	"time"
)

// Survey is how a BMC does things, as far as reading shows it. Empty members
// were not shown. It is for a person who brings new hardware, and decides
// nothing: a driver reads what it needs when it needs it.
type Survey struct {
	// Protocol names protocol and version, Product what the BMC calls itself.
	Protocol, Product string
	// Login is how the client logged in, such as "session" or "basic".
	Login string
	// Privilege is the privilege the account has on this channel.
	Privilege string
	// Sessions are open now, ours included; -1 is not shown.
	Sessions int
	// SessionTimeout is after how long without a request the BMC ends one.
	SessionTimeout time.Duration
	// Candidates are the systems that can be switched, Parts those that are
	// parts of one, such as a GPU baseboard.
	Candidates, Parts []string
	// ResetTypesFrom is inline, actionInfo or none.
	ResetTypesFrom string
	// BootHome is the resource in which the boot override is written.
	BootHome string
	// BootInSettings says that it is not the live system.
	BootInSettings bool
	Media          []MediaSlot
	// ETag says whether the system's resource carries one.
	ETag bool
	// Tasks, Events, Accounts and Updates are the paths of those services.
	Tasks, Events, Accounts, Updates string
	// Logs are the log services of the machine and its managers.
	Logs []string
}

// MediaSlot is one virtual CD slot.
type MediaSlot struct {
	Path string
	// Under is "system" or "manager".
	Under string
	// Holds says that an image is in it now.
	Holds bool
	// Protocols are the transfer protocols it says it takes.
	Protocols []string
}

// Surveyor is a Client that can tell how its BMC does things. Nothing is
// changed.
type Surveyor interface {
	Survey(ctx context.Context) (Survey, error)
}

// Certificate is what a BMC shows in the TLS handshake, looked at without
// sending a request.
type Certificate struct {
	// Fingerprint is as in TLS.Fingerprint.
	Fingerprint     string
	Subject, Issuer string
	// Names are the DNS names and addresses it is for.
	Names               []string
	NotBefore, NotAfter time.Time
	// Distrust says why it does not pass the check of mode verify; "" when it
	// does.
	Distrust string
	// Version is the TLS version that was agreed on.
	Version string
	// NeedsLegacy says that the handshake succeeds only with TLS.Legacy.
	NeedsLegacy bool
}
