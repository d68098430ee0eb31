package sim

import (
	"net/url"
	"strings"
	"time"
)

// Sources of a boot.
const (
	sourceDisk = "disk"
	sourceCD   = "cd"
	sourcePXE  = "pxe"
	sourceHTTP = "http"
	sourceNone = "none"
)

// boot ends the POST of a system: it takes the boot settings over, uses up a
// one-time override, and starts what the chosen source holds.
func (m *Machine) boot(i int, at time.Time) {
	s := &m.st.Systems[i]
	s.PostUntil = time.Time{}
	if s.Pending != nil {
		s.Override, s.Pending = *s.Pending, nil
	}
	source, from := m.chooseSource(i)
	entry := Boot{At: at, System: s.ID, Cause: s.Cause, Source: source, URL: from, Mode: s.Override.Mode}
	if s.Override.Enabled == "Once" {
		s.Override.Enabled, s.Override.Target = "Disabled", "None"
	}
	s.Running = &Running{Source: source, URL: from, Since: at}
	switch source {
	case sourceCD, sourceHTTP:
		if base, id, ok := bootImage(from); ok {
			s.Running.BootID = id
			m.startImage(i, base, id)
		}
	case sourceDisk:
		if reportURL(s.bootDisk()) != "" {
			s.Running.ReportAt = at.Add(osBootTime)
		}
		m.startInstalled(i, osBootTime)
	}
	m.logBoot(entry)
}

// chooseSource is what the firmware does: the override's source if it is there,
// else the first bootable disk, else a medium that is inserted.
func (m *Machine) chooseSource(i int) (source, from string) {
	s := &m.st.Systems[i]
	if s.Override.Enabled == "Once" || s.Override.Enabled == "Continuous" {
		switch s.Override.Target {
		case "Cd", "Usb", "UsbCd":
			if image := m.insertedImage(i); image != "" {
				return sourceCD, image
			}
		case "UefiHttp":
			if s.Override.HTTPBootURI != "" && s.Override.Mode != "Legacy" {
				return sourceHTTP, s.Override.HTTPBootURI
			}
		case "Pxe":
			return sourcePXE, ""
		case "BiosSetup", "Diags", "Utilities", "UefiShell":
			return sourceNone, ""
		}
	}
	if s.bootDisk() != nil {
		return sourceDisk, ""
	}
	if image := m.insertedImage(i); image != "" {
		return sourceCD, image
	}
	return sourceNone, ""
}

// insertedImage is the image of the first medium that the system sees.
func (m *Machine) insertedImage(i int) string {
	for _, md := range m.st.Systems[m.mediaOwner(i)].Media {
		if md.Inserted {
			return md.Image
		}
	}
	return ""
}

// mediaOwner is the system whose slots a system sees: its own, or, where the
// slots belong to the manager, the first one's.
func (m *Machine) mediaOwner(i int) int {
	if m.spec.MediaUnder == "manager" {
		return 0
	}
	return i
}

// bootDisk is the disk that the firmware boots: the one that was installed to
// last, as installing makes an entry in the boot order, else the first with
// something of unknown origin; nil = none.
func (s *System) bootDisk() *Disk {
	var found *Disk
	for i := range s.Disks {
		d := &s.Disks[i]
		switch {
		case d.Dead:
		case d.Content == ContentImage && (found == nil || found.Image == nil || d.Image.At.After(found.Image.At)):
			found = d
		case d.Content == ContentData && found == nil:
			found = d
		}
	}
	return found
}

// bootImage recognises a URL of a boot server, <base>/boot/<id>/<file>.
func bootImage(from string) (base, id string, ok bool) {
	u, err := url.Parse(from)
	if err != nil {
		return "", "", false
	}
	before, rest, found := strings.Cut(u.Path, "/boot/")
	if !found {
		return "", "", false
	}
	id, _, found = strings.Cut(rest, "/")
	if !found || id == "" {
		return "", "", false
	}
	u.Path, u.RawPath, u.RawQuery = before, "", ""
	return u.String(), id, true
}

// logBoot adds to the boot log, which only grows.
func (m *Machine) logBoot(b Boot) {
	m.bootLog = append(m.bootLog, b)
	m.rack.journal.writeBoot(m.id, len(m.bootLog)-1, b)
	m.rack.log.Debug("boot", "machine", m.id, "source", b.Source, "cause", b.Cause, "url", b.URL)
}

// BootLog is every boot of the machine so far, oldest first.
func (m *Machine) BootLog() []Boot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Boot{}, m.bootLog...)
}
