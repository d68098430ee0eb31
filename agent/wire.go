package agent

import (
	"encoding/json"

	"github.com/bettercompute/compute/fleet"
)

// The types of commands.
const (
	TypeInventory   = "inventory"
	TypeTest        = "test"
	TypeWriteImage  = "writeImage"
	TypeConfigDrive = "configDrive"
	TypeErase       = "erase"
	TypeRescue      = "rescue"
	TypeFinish      = "finish"
)

// command is a command as the gateway hands it out.
type command struct {
	ID   string          `json:"id"`
	Type string          `json:"type"`
	Args json.RawMessage `json:"args"`
}

// outcome is how a command ended.
type outcome struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	Data  any    `json:"data,omitempty"`
}

// WriteImage is what to write. URL may carry a secret in its query.
type WriteImage struct {
	URL string `json:"url"`
	// Checksum is "sha256:" and the digest of the file at URL.
	Checksum string `json:"checksum"`
	// Format is raw or qcow2.
	Format string `json:"format"`
	// Size is what the image needs on the disk, in bytes; 0 is not said.
	Size       int64       `json:"size,omitempty"`
	RootDevice *RootDevice `json:"rootDevice,omitempty"`
}

// RootDevice is a hint at the disk to install to; empty members say nothing.
type RootDevice struct {
	Serial     string `json:"serial,omitempty"`
	MinSizeGiB int64  `json:"minSizeGiB,omitempty"`
	Type       string `json:"type,omitempty"`
}

// Written is what WriteImage put on a disk.
type Written struct {
	// SHA256 is the digest, in hex, of the file that was read.
	SHA256 string
	Bytes  int64
}

// writtenData is the data of a writeImage command's result.
type writtenData struct {
	Disk   writtenDisk `json:"disk"`
	SHA256 string      `json:"sha256"`
	Bytes  int64       `json:"bytes"`
}

type writtenDisk struct {
	Serial    string `json:"serial"`
	SizeBytes int64  `json:"sizeBytes"`
}

// ConfigDrive holds the documents of a NoCloud config drive; an empty one is
// left out. They can hold secrets.
type ConfigDrive struct {
	// Disk is the serial of the disk; empty is the one that this run wrote.
	Disk        string `json:"disk,omitempty"`
	MetaData    string `json:"metaData"`
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`
	VendorData  string `json:"vendorData,omitempty"`
}

type testArgs struct {
	Tests []string `json:"tests"`
}

// TestResult is what a test found.
type TestResult struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says in words what was found.
	Detail string `json:"detail,omitempty"`
	// Values are what was measured, each named with its unit, such as
	// "readMBps".
	Values map[string]float64 `json:"values,omitempty"`
}

type testData struct {
	Tests []TestResult `json:"tests"`
}

type eraseArgs struct {
	Method string   `json:"method"`
	Disks  []string `json:"disks"`
	Skip   []string `json:"skip"`
}

type eraseData struct {
	Disks []fleet.DiskErase `json:"disks"`
}

type rescueArgs struct {
	SSHKeys []string `json:"sshKeys"`
}
