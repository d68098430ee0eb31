package fleet

// The names of steps, as operations and plans show them.
const (
	StepClearLeft      = "clear-left-behind"
	StepIdentify       = "identify"
	StepReadInventory  = "read-inventory"
	StepCheckPlan      = "check-plan"
	StepRevokeIdentity = "revoke-identity"
	StepSwitchOff      = "switch-off"
	StepProveOverride  = "prove-boot-override"
	StepPrepareBoot    = "prepare-boot"
	StepSwitchOn       = "switch-on"
	StepAwaitCallIn    = "await-call-in"
	StepReadInBand     = "read-inventory-in-band"
	StepRunTests       = "run-tests"
	StepCheckHardware  = "check-hardware"
	StepWriteImage     = "write-image"
	StepWriteConfig    = "write-config-drive"
	StepFinish         = "finish"
	StepStartRescue    = "start-rescue"
	StepBootDisk       = "boot-disk"
	StepConfirm        = "confirm"
	StepEraseByBMC     = "erase-by-bmc"
	StepEraseInBand    = "erase-in-band"
	StepClearBoot      = "clear-boot"
	StepStayOff        = "stay-off"
	StepCheckReleased  = "check-released"
	StepRotate         = "rotate-credentials"
	StepProve          = "prove-credentials"
	StepPower          = "power"
	StepAwaitFree      = "await-allocations"
	StepProveBMC       = "prove-bmc"
	StepAwaitSession   = "await-session"
	StepAcceptHost     = "accept-host"
)

// destructiveSteps may lose what runs on the machine or lies on its disks.
var destructiveSteps = map[string]bool{
	StepSwitchOff: true, StepWriteImage: true, StepEraseByBMC: true, StepEraseInBand: true, StepBootDisk: true,
	StepStayOff: true, StepPower: true,
}

// The names of an operation's sealed secrets.
const (
	// SecretUserData and SecretNetworkData are deploy's cloud-init documents.
	SecretUserData    = "userData"
	SecretNetworkData = "networkData"
	// SecretImageURL is the whole URL of the image, with its query.
	SecretImageURL = "imageURL"
	// SecretPassword is a BMC password on its way to be recorded or set.
	SecretPassword = "password"
)

// StepsAsk is what the steps of an operation depend on.
type StepsAsk struct {
	Verb Verb
	// Identify says that an inspect must do enroll's checks first.
	Identify bool
	// LeftBehind says that an operation before left something to clean.
	LeftBehind bool
	// Mode is inspect's.
	Mode string
	// Tests says that commission runs in-band tests, ISO that deploy boots its
	// image instead of writing it.
	Tests, ISO bool
	// Erase is the effective erase of release and retire.
	Erase EraseMethod
	// Rotate says that the BMC gets a new password.
	Rotate bool
	// LeavePower says that a retire leaves the machine as it is, because it may
	// be in use.
	LeavePower bool
}

// CleaningSteps are those that, done, leave nothing on the machine of what an
// operation before set there: media and boot override.
var CleaningSteps = []string{StepClearLeft, StepPrepareBoot, StepBootDisk, StepClearBoot}

// bootSteps bring a machine into our image; each begins with the machine off.
var bootSteps = []string{StepPrepareBoot, StepSwitchOn, StepAwaitCallIn}

// StepsOf are the steps of an operation in order. Steps that turn out to be
// needless are skipped when they are reached.
func StepsOf(a StepsAsk) []PlanStep {
	var names []string
	add := func(more ...string) { names = append(names, more...) }
	// A drain touches no machine, so it has nothing to clean.
	if a.LeftBehind && a.Verb != VerbDrain {
		add(StepClearLeft)
	}
	switch a.Verb {
	case VerbEnroll:
		add(StepIdentify)
	case VerbInspect:
		if a.Identify {
			add(StepIdentify)
		}
		if a.Mode != "inBand" {
			add(StepReadInventory)
		}
		if a.Mode == "inBand" || a.Mode == "both" {
			add(StepSwitchOff)
			add(bootSteps...)
			add(StepReadInBand, StepFinish, StepStayOff, StepClearBoot)
		}
	case VerbCommission:
		add(StepSwitchOff, StepProveOverride)
		if a.Tests {
			add(bootSteps...)
			add(StepRunTests, StepFinish)
		} else {
			add(StepSwitchOn)
		}
		add(StepCheckHardware, StepStayOff, StepClearBoot)
	case VerbDeploy:
		add(StepCheckPlan, StepRevokeIdentity, StepSwitchOff)
		if a.ISO {
			add(StepPrepareBoot, StepSwitchOn, StepConfirm)
			break
		}
		add(bootSteps...)
		add(StepWriteImage, StepWriteConfig, StepFinish, StepBootDisk, StepConfirm)
	case VerbRescue:
		add(StepSwitchOff)
		add(bootSteps...)
		add(StepStartRescue, StepClearBoot)
	case VerbUnrescue:
		add(StepBootDisk)
	case VerbRelease, VerbRetire:
		add(leaveSteps(a)...)
	case VerbAdopt:
		add(StepAwaitSession, StepAcceptHost)
	case VerbManage:
		add(StepProveBMC)
	case VerbPower:
		add(StepPower)
	case VerbDrain:
		add(StepAwaitFree)
	case VerbSetCredentials:
		add(map[bool]string{true: StepRotate, false: StepProve}[a.Rotate])
	default: // no workflow, no steps
	}
	steps := make([]PlanStep, len(names))
	for i, n := range names {
		steps[i] = PlanStep{Name: n, Destructive: destructiveSteps[n]}
	}
	return steps
}

// leaveSteps are the steps of release and retire.
func leaveSteps(a StepsAsk) []string {
	names := []string{StepRevokeIdentity}
	if a.Verb == VerbRetire && a.LeavePower && a.Erase.Rank() == 0 {
		return append(names, StepCheckReleased)
	}
	names = append(names, StepSwitchOff)
	if a.Erase.Rank() > 0 {
		names = append(names, StepEraseByBMC)
		names = append(names, bootSteps...)
		names = append(names, StepEraseInBand, StepFinish, StepStayOff)
	}
	names = append(names, StepClearBoot)
	if a.Rotate {
		names = append(names, StepRotate)
	}
	return append(names, StepCheckReleased)
}
