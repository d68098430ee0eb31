package fleet

import "slices"

// BMCTLSIn is how a BMC's certificate is trusted.
type BMCTLSIn struct {
	Mode        string  `json:"mode,omitempty" validate:"omitempty,oneof=verify pin insecure" default:"verify" doc:"verify against a CA, pin one certificate (the first seen unless fingerprint is given), or insecure."`
	CA          *string `json:"ca,omitempty" validate:"omitempty,max=65536" doc:"PEM bundle for verify; the system's when absent."`
	Fingerprint *string `json:"fingerprint,omitempty" validate:"omitempty,pattern=fingerprint" doc:"SHA-256 of the certificate for pin."`
}

// BMCTLSUpdateIn changes how a BMC's certificate is trusted; absent members
// stay.
type BMCTLSUpdateIn struct {
	Mode        *string `json:"mode,omitempty" validate:"omitempty,oneof=verify pin insecure" doc:"verify against a CA, pin one certificate, or insecure."`
	CA          *string `json:"ca,omitempty" validate:"omitempty,max=65536" doc:"PEM bundle for verify."`
	Fingerprint *string `json:"fingerprint,omitempty" validate:"omitempty,pattern=fingerprint" doc:"SHA-256 of the certificate to trust from now on; makes the mode pin."`
}

// BMCIPMIIn are IPMI's own settings.
type BMCIPMIIn struct {
	CipherSuites []int `json:"cipherSuites,omitempty" validate:"omitempty,max=8,unique,dive,oneof=3 8 12 17" doc:"Allowed cipher suites in order of preference."`
}

// BMCIn is a BMC with its credentials.
type BMCIn struct {
	Address   string     `json:"address" validate:"required,min=1,max=1024" doc:"URL, host or address of the BMC: https://host[:port], redfish://host/redfish/v1/Systems/1, ipmi://host[:port], bare host or IPv6."`
	Username  string     `json:"username" validate:"required,min=1,max=256" doc:"The BMC's user name."`
	Password  string     `json:"password" validate:"required,min=1,max=1024" secret:"true" doc:"The BMC's password; stored sealed, never returned."`
	Driver    string     `json:"driver,omitempty" validate:"omitempty,oneof=auto redfish ipmi" default:"auto" doc:"How to talk to it."`
	TLS       *BMCTLSIn  `json:"tls,omitempty" doc:"Trust in its certificate."`
	IPMI      *BMCIPMIIn `json:"ipmi,omitempty" doc:"IPMI's own settings."`
	LegacyTLS bool       `json:"legacyTls,omitempty" doc:"Allow TLS versions and ciphers that old BMCs need."`
}

// BMCUpdateIn changes a BMC's settings; absent members stay.
type BMCUpdateIn struct {
	Address   *string         `json:"address,omitempty" validate:"omitempty,min=1,max=1024" doc:"New address."`
	Driver    *string         `json:"driver,omitempty" validate:"omitempty,oneof=auto redfish ipmi" doc:"New driver."`
	TLS       *BMCTLSUpdateIn `json:"tls,omitempty" doc:"New trust; with a fingerprint the new certificate is accepted."`
	IPMI      *BMCIPMIIn      `json:"ipmi,omitempty" doc:"New IPMI settings."`
	LegacyTLS *bool           `json:"legacyTls,omitempty" doc:"Allow old TLS."`
}

// MetalListIn is the input of metal/list.
type MetalListIn struct {
	NodesListIn
	Name       *string           `json:"name,omitempty" validate:"omitempty,max=63" doc:"Only the node of this name."`
	Serial     *string           `json:"serial,omitempty" validate:"omitempty,max=256" doc:"Only nodes whose system serial is this."`
	MAC        *string           `json:"mac,omitempty" validate:"omitempty,pattern=mac" doc:"Only nodes with a NIC of this MAC."`
	BMCAddress *string           `json:"bmcAddress,omitempty" validate:"omitempty,max=1024" doc:"Only the node whose BMC has this address."`
	Labels     map[string]string `json:"labels,omitempty" validate:"omitempty,max=64,dive,keys,pattern=labelKey,endkeys" doc:"Only nodes with all these labels."`
	FailedFrom *string           `json:"failedFrom,omitempty" validate:"omitempty,oneof=adopting enrolling inspecting commissioning deploying rescue releasing retiring" doc:"Only failed nodes that failed from this state."`
}

// MetalPage is a page of metal views.
type MetalPage struct {
	Items      []MetalNode `json:"items"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

// MetalOut is one metal view.
type MetalOut struct {
	Node MetalNode `json:"node"`
}

// MetalOperationOut is the answer of a metal verb. A dry run answers Plan and
// no operation.
type MetalOperationOut struct {
	Node      *MetalNode `json:"node,omitempty"`
	Operation *Operation `json:"operation,omitempty"`
	Plan      *Plan      `json:"plan,omitempty"`
}

// MetalChangeOut is the answer of a change that starts no operation. A dry run
// answers Plan too, and the node as it is.
type MetalChangeOut struct {
	Node MetalNode `json:"node"`
	Plan *Plan     `json:"plan,omitempty"`
}

// TableOut is the provision state table.
type TableOut struct {
	Items []Row `json:"items"`
}

// VerbIn is the input all metal mutations on a node share.
type VerbIn struct {
	NodeIn
	VersionIn
	ReasonIn
	DryRunIn
}

// MetalEnrollIn is the input of metal/enroll.
type MetalEnrollIn struct {
	TenantIn
	ReasonIn
	DryRunIn
	SiteID         string            `json:"siteId" validate:"required,max=64,pattern=siteId" doc:"The site the machine stands in."`
	PoolID         *string           `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"The pool it is meant for; not placeable before commission checked it."`
	Name           *string           `json:"name,omitempty" validate:"omitempty,max=63,pattern=dnsLabel" doc:"A DNS label, unique in the site."`
	Labels         map[string]string `json:"labels,omitempty" validate:"omitempty,max=64,dive,keys,pattern=labelKey,endkeys" doc:"Operator labels."`
	BootMACAddress *string           `json:"bootMacAddress,omitempty" validate:"omitempty,pattern=mac" doc:"The NIC the machine boots from."`
	BMC            BMCIn             `json:"bmc" validate:"required" doc:"The machine's BMC."`
	InUse          *bool             `json:"inUse,omitempty" doc:"Whether the machine runs somebody's work; a machine found on is presumed to until false is said."`
	Advance        string            `json:"advance,omitempty" validate:"omitempty,oneof=enrolling ready" default:"enrolling" doc:"How far to go: ready chains inspect and commission."`
}

// AcceptIdentityIn names the new identity of a repaired machine.
type AcceptIdentityIn struct {
	UUID   *string `json:"uuid,omitempty" validate:"omitempty,pattern=uuid" doc:"The new system UUID."`
	Serial *string `json:"serial,omitempty" validate:"omitempty,min=1,max=256" doc:"The new system serial."`
}

// MetalUpdateIn is the input of metal/update.
type MetalUpdateIn struct {
	VerbIn
	Name           *string           `json:"name,omitempty" validate:"omitempty,max=63,pattern=dnsLabel" doc:"New name."`
	PoolID         *string           `json:"poolId,omitempty" validate:"omitempty,max=128,pattern=poolRef" doc:"New pool."`
	BootMACAddress *string           `json:"bootMacAddress,omitempty" validate:"omitempty,pattern=mac" doc:"New boot NIC."`
	BMC            *BMCUpdateIn      `json:"bmc,omitempty" doc:"New BMC settings; absent members stay."`
	AcceptIdentity *AcceptIdentityIn `json:"acceptIdentity,omitempty" doc:"Accept the identity of a repaired machine."`
}

// MetalSetCredentialsIn is the input of metal/setCredentials.
type MetalSetCredentialsIn struct {
	VerbIn
	Username string `json:"username" validate:"required,min=1,max=256" doc:"The BMC's user name."`
	Password string `json:"password" validate:"required,min=1,max=1024" secret:"true" doc:"The password, stored sealed."`
	Rotate   bool   `json:"rotate,omitempty" doc:"Change the password on the BMC too; else only what is recorded, after proving it."`
}

// MetalInspectIn is the input of metal/inspect.
type MetalInspectIn struct {
	VerbIn
	Mode  string `json:"mode,omitempty" validate:"omitempty,oneof=outOfBand inBand both" default:"outOfBand" doc:"Where the inventory comes from: the BMC, our image booted on the machine, or both."`
	InUse *bool  `json:"inUse,omitempty" doc:"false says that the machine is known to be free."`
}

// MetalCommissionIn is the input of metal/commission.
type MetalCommissionIn struct {
	VerbIn
	InUse            *bool    `json:"inUse,omitempty" doc:"false says that the machine is known to be free."`
	Tests            []string `json:"tests,omitempty" validate:"omitempty,max=5,unique,dive,oneof=memory disk cpu nic clock" doc:"In-band tests to run."`
	FirmwareBaseline string   `json:"firmwareBaseline,omitempty" validate:"omitempty,oneof=report ignore" default:"report" doc:"Whether to report firmware that differs from the site's baseline."`
}

// ImageIn is what to deploy.
type ImageIn struct {
	URL      string `json:"url" validate:"required,max=2048,pattern=httpURL" doc:"Where the machine fetches the image; its query is kept sealed."`
	Checksum string `json:"checksum" validate:"required,pattern=checksum" doc:"sha256: and the hex digest of the file at url."`
	Format   string `json:"format" validate:"required,oneof=raw qcow2 iso" doc:"The image's format."`
	Size     *int64 `json:"size,omitempty" validate:"omitempty,min=1" doc:"Bytes the image needs on disk."`
}

// RootDeviceIn hints at the disk to install to.
type RootDeviceIn struct {
	Serial     *string `json:"serial,omitempty" validate:"omitempty,min=1,max=256" doc:"The disk's serial."`
	MinSizeGiB *int64  `json:"minSizeGiB,omitempty" validate:"omitempty,min=1" doc:"At least this large."`
	Type       *string `json:"type,omitempty" validate:"omitempty,oneof=nvme ssd hdd" doc:"The disk's type."`
}

// MetalDeployIn is the input of metal/deploy.
type MetalDeployIn struct {
	VerbIn
	Image       ImageIn       `json:"image" validate:"required" doc:"What to install."`
	Hostname    *string       `json:"hostname,omitempty" validate:"omitempty,max=253,pattern=hostname" doc:"The installed system's hostname."`
	SSHKeys     []string      `json:"sshKeys,omitempty" validate:"omitempty,max=64,dive,max=4096,pattern=sshKey" doc:"Keys for the installed system's default account."`
	UserData    *string       `json:"userData,omitempty" validate:"omitempty,max=524288" secret:"true" doc:"cloud-init user data; kept sealed and removed when the deploy ends."`
	NetworkData *string       `json:"networkData,omitempty" validate:"omitempty,max=262144" secret:"true" doc:"cloud-init network configuration; kept sealed."`
	RootDevice  *RootDeviceIn `json:"rootDevice,omitempty" doc:"Which disk; the smallest that holds the image when absent."`
	BootVia     string        `json:"bootVia,omitempty" validate:"omitempty,oneof=virtualMedia httpBoot pxe" doc:"How the machine is booted; the first that it offers when absent."`
	Expect      string        `json:"expect,omitempty" validate:"omitempty,oneof=report session boot" doc:"What confirms the deploy: the system's own report (default), its agent's session, or only the boot order restored (the only one for iso)."`
}

// MetalRescueIn is the input of metal/rescue.
type MetalRescueIn struct {
	VerbIn
	SSHKeys []string `json:"sshKeys" validate:"required,min=1,max=64,dive,max=4096,pattern=sshKey" doc:"Keys that may log in to the rescue system."`
}

// MetalVerbIn is the input of unrescue, retry and abort.
type MetalVerbIn struct{ VerbIn }

// MetalReleaseIn is the input of metal/release.
type MetalReleaseIn struct {
	VerbIn
	Erase             *string  `json:"erase,omitempty" validate:"omitempty,oneof=none metadata full" doc:"How to erase; at least the pool's policy."`
	RotateCredentials bool     `json:"rotateCredentials,omitempty" doc:"Give the BMC a new password."`
	SkipDisks         []string `json:"skipDisks,omitempty" validate:"omitempty,max=256,unique,dive,min=1,max=256" doc:"Serials of disks that may be left out if they do not answer; needs a reason."`
}

// MetalRetireIn is the input of metal/retire.
type MetalRetireIn struct {
	VerbIn
	Erase     *string  `json:"erase,omitempty" validate:"omitempty,oneof=none metadata full" doc:"How to erase."`
	Force     bool     `json:"force,omitempty" doc:"Try each step once and reach retired whatever the machine does; needs a reason."`
	SkipDisks []string `json:"skipDisks,omitempty" validate:"omitempty,max=256,unique,dive,min=1,max=256" doc:"Serials of disks that may be left out if they do not answer; needs a reason."`
}

// MetalPowerIn is the input of metal/power.
type MetalPowerIn struct {
	VerbIn
	Action string `json:"action" validate:"required,oneof=on off softOff cycle reset" doc:"What to do; off forces, softOff asks the operating system and never escalates."`
	Force  bool   `json:"force,omitempty" doc:"Act although the machine may be in use or holds allocations; needs a reason."`
}

// MetalHoldIn is the input of metal/hold.
type MetalHoldIn struct {
	NodeIn
	VersionIn
	DryRunIn
	Reason string `json:"reason" validate:"required,min=1,max=256,pattern=reason" doc:"Why the node is held."`
	Until  *Time  `json:"until,omitempty" doc:"When the hold ends by itself."`
}

// MetalUnholdIn is the input of metal/unhold.
type MetalUnholdIn struct {
	NodeIn
	VersionIn
	ReasonIn
	DryRunIn
}

var verbErrors = []Code{CodeNotFound, CodeConflict, CodeInvalidState}

// orUnsupported is a verb that can also ask for what a machine, a driver or
// this release does not offer.
func orUnsupported(m Method) Method {
	m.Errors = append(slices.Clone(m.Errors), CodeUnsupported)
	return m
}

// verb makes the row of a metal verb on a node.
func verb(name string, v Verb, p Permission, in any, summary string) Method {
	return Method{Group: "metal", Name: name, Kind: KindMutation, Permission: p, Resource: OnNode, Verb: v, DryRun: true,
		Module: "server", Phase: "v0.1", In: in, Out: MetalOperationOut{}, Summary: summary, Errors: verbErrors}
}

// updateMethod answers the node alone: an update starts no operation.
var updateMethod = Method{Group: "metal", Name: "update", Kind: KindMutation, Permission: PermMetalUpdate, Resource: OnNode, Verb: VerbUpdate,
	DryRun: true, Module: "server", Phase: "v0.1", In: MetalUpdateIn{}, Out: MetalChangeOut{}, Errors: verbErrors,
	Summary: "Change a machine's name, pool, boot NIC or BMC settings, or accept a repaired machine's identity."}

var metalMethods = []Method{
	{Group: "metal", Name: "list", Kind: KindRead, Permission: PermMetalRead, Resource: OnTenant, Items: true,
		Module: "server", Phase: "v0.1", In: MetalListIn{}, Out: MetalPage{}, Summary: "List machines with their hardware, in id order."},
	{Group: "metal", Name: "get", Kind: KindRead, Permission: PermMetalRead, Resource: OnNode,
		Module: "server", Phase: "v0.1", In: NodesGetIn{}, Out: MetalOut{}, Errors: []Code{CodeNotFound}, Summary: "Show one machine with its hardware."},
	{Group: "metal", Name: "table", Kind: KindRead, Permission: PermMetalRead, Resource: OnTenant,
		Module: "server", Phase: "v0.1", In: TenantIn{}, Out: TableOut{}, Summary: "Show the provision state table."},
	{Group: "metal", Name: "enroll", Kind: KindMutation, Permission: PermMetalEnroll, Resource: OnTenant, Verb: VerbEnroll, DryRun: true,
		Module: "server", Phase: "v0.1", In: MetalEnrollIn{}, Out: MetalOperationOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Enroll a machine by its BMC."},
	updateMethod,
	orUnsupported(verb("setCredentials", VerbSetCredentials, PermMetalSetCredentials, MetalSetCredentialsIn{}, "Record, or rotate, the BMC's credentials.")),
	verb("inspect", VerbInspect, PermMetalInspect, MetalInspectIn{}, "Read a machine's inventory."),
	verb("commission", VerbCommission, PermMetalCommission, MetalCommissionIn{}, "Prove that a machine can be controlled and matches its pool; it ends ready."),
	orUnsupported(verb("deploy", VerbDeploy, PermMetalDeploy, MetalDeployIn{}, "Install an image and boot it.")),
	verb("rescue", VerbRescue, PermMetalRescue, MetalRescueIn{}, "Boot our rescue system with the given keys."),
	verb("unrescue", VerbUnrescue, PermMetalRescue, MetalVerbIn{}, "Boot a rescued machine from its disk again."),
	orUnsupported(verb("release", VerbRelease, PermMetalRelease, MetalReleaseIn{}, "Take a machine back: off, erased, ready.")),
	verb("retire", VerbRetire, PermMetalRetire, MetalRetireIn{}, "Take a machine out of service for good."),
	verb("retry", VerbRetry, "", MetalVerbIn{}, "Go on with a parked operation from the step that failed; decided as the operation's verb."),
	verb("abort", VerbAbort, "", MetalVerbIn{}, "End the present operation after cleaning up; decided as the operation's verb."),
	verb("power", VerbPower, PermMetalPower, MetalPowerIn{}, "Switch a machine's power."),
	verb("manage", VerbManage, PermMetalManage, MetalManageIn{}, "Give an adopted host its BMC, after proof that it is that host's."),
	{Group: "metal", Name: "hold", Kind: KindMutation, Permission: PermMetalHold, Resource: OnNode,
		DryRun: true, Module: "server", Phase: "v0.1", In: MetalHoldIn{}, Out: MetalChangeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Keep every change of power, boot or disk away from a node."},
	{Group: "metal", Name: "unhold", Kind: KindMutation, Permission: PermMetalHold, Resource: OnNode,
		DryRun: true, Module: "server", Phase: "v0.1", In: MetalUnholdIn{}, Out: MetalChangeOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Lift a hold; a waiting operation goes on."},
}

// MetalManageIn is the input of metal/manage.
type MetalManageIn struct {
	VerbIn
	BMC BMCIn `json:"bmc" validate:"required" doc:"The BMC of the adopted host."`
}
