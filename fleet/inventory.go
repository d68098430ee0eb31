package fleet

// BMCIdentity is who a machine says it is. Empty members were not given.
type BMCIdentity struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
	Serial       string `json:"serial,omitempty"`
	UUID         string `json:"uuid,omitempty"`
}

// Capabilities are what a BMC was learned to offer.
type Capabilities struct {
	// Driver is the driver that works: redfish or ipmi.
	Driver          string `json:"driver,omitempty"`
	FirmwareVersion string `json:"firmwareVersion,omitempty"`
	RedfishVersion  string `json:"redfishVersion,omitempty"`
	// ResetTypes are the power changes offered; empty when the BMC names none.
	ResetTypes []string `json:"resetTypes,omitempty"`
	// BootTargets are the boot sources offered; empty when the BMC names none.
	BootTargets []string `json:"bootTargets,omitempty"`
	// BootMode is UEFI or Legacy as shown; empty when it shows none.
	BootMode     string `json:"bootMode,omitempty"`
	BootOverride bool   `json:"bootOverride"`
	VirtualMedia bool   `json:"virtualMedia"`
	HTTPBoot     bool   `json:"httpBoot"`
	SecureErase  bool   `json:"secureErase"`
	SetPassword  bool   `json:"setPassword"`
}

// CPU is one processor package.
type CPU struct {
	Model   string `json:"model,omitempty"`
	Slot    string `json:"slot,omitempty"`
	Cores   int    `json:"cores,omitempty"`
	Threads int    `json:"threads,omitempty"`
	Arch    string `json:"arch,omitempty"`
}

// DIMM is one memory module that is there.
type DIMM struct {
	Slot    string `json:"slot,omitempty"`
	SizeMiB int64  `json:"sizeMiB"`
	Type    string `json:"type,omitempty"`
	Serial  string `json:"serial,omitempty"`
	Part    string `json:"part,omitempty"`
}

// Disk is one drive.
type Disk struct {
	Serial    string `json:"serial,omitempty"`
	Model     string `json:"model,omitempty"`
	SizeBytes int64  `json:"sizeBytes,omitempty"`
	// Type is nvme, ssd or hdd; empty when not said.
	Type string `json:"type,omitempty"`
	Slot string `json:"slot,omitempty"`
	// Path is the BMC's resource or the kernel's device.
	Path      string `json:"path,omitempty"`
	Removable bool   `json:"removable,omitempty"`
	Health    string `json:"health,omitempty"`
}

// NIC is one network interface.
type NIC struct {
	MAC       string `json:"mac,omitempty"`
	Name      string `json:"name,omitempty"`
	SpeedMbps int    `json:"speedMbps,omitempty"`
	LinkUp    *bool  `json:"linkUp,omitempty"`
}

// Device is a GPU, another accelerator or a PCIe device.
type Device struct {
	Vendor     string `json:"vendor,omitempty"`
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	PCIAddress string `json:"pciAddress,omitempty"`
	Slot       string `json:"slot,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Health     string `json:"health,omitempty"`
}

// Component is one piece of firmware.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// TPM is a trusted platform module.
type TPM struct {
	Present bool   `json:"present"`
	Version string `json:"version,omitempty"`
}

// BMCLAN is where a machine says that its own BMC is found.
type BMCLAN struct {
	// Address is an IPv4 or IPv6 address.
	Address string `json:"address"`
	MAC     string `json:"mac,omitempty"`
}

// Inventory is the hardware of a machine as it was read.
type Inventory struct {
	Vendor         string            `json:"vendor,omitempty"`
	Model          string            `json:"model,omitempty"`
	Serial         string            `json:"serial,omitempty"`
	UUID           string            `json:"uuid,omitempty"`
	CPUs           []CPU             `json:"cpus,omitempty"`
	MemoryMiB      int64             `json:"memoryMiB,omitempty"`
	DIMMs          []DIMM            `json:"dimms,omitempty"`
	Disks          []Disk            `json:"disks,omitempty"`
	NICs           []NIC             `json:"nics,omitempty"`
	GPUs           []Device          `json:"gpus,omitempty"`
	PCIDevices     []Device          `json:"pciDevices,omitempty"`
	Firmware       []Component       `json:"firmware,omitempty"`
	BIOSVersion    string            `json:"biosVersion,omitempty"`
	BIOSAttributes map[string]string `json:"biosAttributes,omitempty"`
	TPM            *TPM              `json:"tpm,omitempty"`
	// BMC is what the machine's agent read of its own BMC over the system
	// interface.
	BMC    *BMCLAN `json:"bmc,omitempty"`
	Health string  `json:"health,omitempty"`
	// Missing says in plain words what the source did not give.
	Missing []string `json:"missing,omitempty"`
	// InBand says that what the machine sees of itself is part of it, beside what
	// its BMC says.
	InBand bool `json:"inBand,omitempty"`
}

// DiskErase is what was done to one disk.
type DiskErase struct {
	Serial string `json:"serial"`
	// Method is metadata, full or skipped.
	Method string `json:"method"`
	// Result is done or failed.
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
}
