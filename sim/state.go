package sim

import "time"

// Power states of a system as Redfish names them.
const (
	powerOn  = "On"
	powerOff = "Off"
)

// Values of Disk.Content.
const (
	// ContentEmpty is a disk never written, or erased whole.
	ContentEmpty = "empty"
	// ContentData is a disk with data of unknown origin, such as a former owner's.
	ContentData = "data"
	// ContentPartial is a disk on which writing an image began and did not end well.
	ContentPartial = "partial"
	// ContentImage is a disk that holds one whole image.
	ContentImage = "image"
	// ContentRemnants is a disk whose metadata alone was erased: it does not
	// boot, but the former data could be read back.
	ContentRemnants = "remnants"
)

// Methods of Disk.Erased.
const (
	eraseNone     = "none"
	eraseMetadata = "metadata"
	eraseFull     = "full"
)

// State is the true state of a machine: everything that survives a kill of the
// simulator, and what an effect of a fault rule changes. It is what
// /sim/machines/{id} shows under "state".
type State struct {
	Systems  []System  `json:"systems"`
	Manager  Manager   `json:"manager"`
	Accounts []Account `json:"accounts"`
	Sessions []Session `json:"sessions"`
	Tasks    []Task    `json:"tasks"`
	Deferred []Act     `json:"deferred,omitempty"`
	TLS      TLSState  `json:"tls"`
	// LastChange is when the machine last accepted a change; zero = never.
	LastChange time.Time `json:"lastChange,omitzero"`
	// Serial numbers the things made so far: sessions, tasks, accounts.
	Serial int    `json:"serial"`
	Counts Counts `json:"counts"`
}

// System is the true state of one ComputerSystem.
type System struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Serial   string `json:"serial"`
	Model    string `json:"model"`
	Health   string `json:"health"`
	AssetTag string `json:"assetTag,omitempty"`
	// Baseboard is set on a part of the machine that has no power of its own,
	// such as an HGX baseboard.
	Baseboard bool   `json:"baseboard,omitempty"`
	Power     string `json:"power"`
	// Transition is the power change under way.
	Transition *Transition `json:"transition,omitempty"`
	// PostUntil is when the POST under way ends; zero = none.
	PostUntil time.Time `json:"postUntil,omitzero"`
	// Cause is the reset type that began the boot under way or the last one.
	Cause    string   `json:"cause,omitempty"`
	Override Override `json:"override"`
	// Pending is the override that takes effect at the next boot, where the
	// machine keeps its boot settings on a resource of their own.
	Pending *Override `json:"pending,omitempty"`
	Media   []Medium  `json:"media"`
	Disks   []Disk    `json:"disks"`
	Running *Running  `json:"running,omitempty"`
}

// Transition is a power change that has been accepted and is not yet seen.
type Transition struct {
	To    string    `json:"to"`
	At    time.Time `json:"at"`
	Then  string    `json:"then,omitempty"`
	Cause string    `json:"cause"`
}

// Override is a system's boot source override.
type Override struct {
	Enabled     string `json:"enabled"`
	Target      string `json:"target"`
	Mode        string `json:"mode,omitempty"`
	HTTPBootURI string `json:"httpBootUri,omitempty"`
}

// Medium is a virtual media slot.
type Medium struct {
	ID             string   `json:"id"`
	Types          []string `json:"types"`
	Inserted       bool     `json:"inserted"`
	Image          string   `json:"image,omitempty"`
	WriteProtected bool     `json:"writeProtected"`
}

// Disk is the true state of a disk of the machine.
type Disk struct {
	Serial    string `json:"serial"`
	SizeBytes int64  `json:"sizeBytes"`
	Type      string `json:"type"` // nvme, ssd or hdd
	Model     string `json:"model"`
	// Content is one of the Content constants.
	Content string `json:"content"`
	// Erased is the erase made since the last write: none, metadata or full.
	Erased string        `json:"erased"`
	Image  *WrittenImage `json:"image,omitempty"`
	// Dead makes every access to the disk fail.
	Dead bool `json:"dead,omitempty"`
}

// WrittenImage is what an image deployment left on a disk.
type WrittenImage struct {
	URL         string       `json:"url"`
	SHA256      string       `json:"sha256"`
	Bytes       int64        `json:"bytes"`
	At          time.Time    `json:"at"`
	ConfigDrive *ConfigDrive `json:"configDrive,omitempty"`
}

// ConfigDrive is a NoCloud config drive as the installed system reads it.
type ConfigDrive struct {
	MetaData    string `json:"metaData"`
	UserData    string `json:"userData"`
	NetworkData string `json:"networkData"`
	VendorData  string `json:"vendorData"`
}

// Running is what a system that ended its POST runs.
type Running struct {
	Source string    `json:"source"`
	URL    string    `json:"url,omitempty"`
	Since  time.Time `json:"since"`
	// BootID is set when the system runs our boot image: the id in its URL.
	BootID string `json:"bootId,omitempty"`
	// ReportAt is when the installed system reports next; zero = not any more.
	ReportAt  time.Time `json:"reportAt,omitzero"`
	ReportTry int       `json:"reportTry,omitempty"`
	// RescueKeys are the SSH keys that a rescue system accepts.
	RescueKeys []string `json:"rescueKeys,omitempty"`
}

// Manager is the true state of the BMC itself.
type Manager struct {
	UUID string `json:"uuid"`
	// DownUntil is when a restart of the BMC ends; zero = up.
	DownUntil time.Time `json:"downUntil,omitzero"`
}

// TLSState says which certificate the service shows.
type TLSState struct {
	// Mode is selfSigned, ownCA, wrongName or expired.
	Mode string `json:"mode"`
	// Generation numbers the certificates; another number is another key.
	Generation int `json:"generation"`
}

// Account is a user account of the BMC.
type Account struct {
	ID          string    `json:"id"`
	Username    string    `json:"username"`
	Password    string    `json:"password"`
	Role        string    `json:"role"`
	Enabled     bool      `json:"enabled"`
	MustChange  bool      `json:"mustChange"`
	Failures    int       `json:"failures,omitempty"`
	LockedUntil time.Time `json:"lockedUntil,omitzero"`
}

// Session is an open Redfish session.
type Session struct {
	ID       string    `json:"id"`
	Token    string    `json:"token"`
	Username string    `json:"username"`
	LastUse  time.Time `json:"lastUse"`
}

// Task is a Redfish task that runs, or ran, on the machine.
type Task struct {
	ID      string        `json:"id"`
	Name    string        `json:"name"`
	Start   time.Time     `json:"start"`
	For     time.Duration `json:"for"`
	States  []string      `json:"states"`
	Status  string        `json:"status"`
	Message string        `json:"message,omitempty"`
	// Act is what the task does at its end.
	Act *Act `json:"act,omitempty"`
	// Done is set once Act was done.
	Done bool `json:"done,omitempty"`
}

// Act is a change that was accepted and is made later: the request is judged
// and carried out again at that time, against the state of that time.
type Act struct {
	At       time.Time      `json:"at,omitzero"`
	Method   string         `json:"method"`
	Path     string         `json:"path"`
	Body     map[string]any `json:"body,omitempty"`
	Username string         `json:"username,omitempty"`
}

// Counts is what the machine was asked to do, and what it saw.
type Counts struct {
	// Requests counts by "METHOD path".
	Requests map[string]int `json:"requests"`
	// Resets counts the requested resets by ResetType, done or not.
	Resets map[string]int `json:"resets"`
	// InsertMedia counts the InsertMedia requests, done or not.
	InsertMedia int `json:"insertMedia"`
	// ChangesInFlightMax is the largest number of changing requests that were
	// open at once, log-ins and log-outs apart.
	ChangesInFlightMax int `json:"changesInFlightMax"`
	SessionsOpen       int `json:"sessionsOpen"`
	SessionsOpenMax    int `json:"sessionsOpenMax"`
	// Logins counts sessions opened.
	Logins int `json:"logins"`
	// LoginsFailed counts wrong credentials, in a log-in or in Basic auth.
	LoginsFailed int `json:"loginsFailed"`
}

// Boot is one entry of a machine's boot log.
type Boot struct {
	At time.Time `json:"at"`
	// System is the id of the system that booted.
	System string `json:"system"`
	// Cause is the ResetType that led to it, or self when no client asked for it.
	Cause string `json:"cause"`
	// Source is disk, cd, pxe, http or none.
	Source string `json:"source"`
	URL    string `json:"url,omitempty"`
	// Mode is UEFI or Legacy.
	Mode string `json:"mode"`
	// Error says why a chosen source did not boot.
	Error string `json:"error,omitempty"`
}
