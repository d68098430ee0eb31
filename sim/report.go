package sim

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// The tries and spacing of an installed system's report. The spacing has a floor
// in wall time: a gateway that restarts does not do so faster in a fast rack.
const (
	reportTries        = 30
	reportSpacing      = 10 * time.Second
	reportSpacingFloor = time.Second
)

// phoneHomeLine finds the URL where the document cannot be read as cloud-config,
// such as in a multi-part archive.
var phoneHomeLine = regexp.MustCompile(`(?s)phone_home:.*?url:\s*["']?([^\s"'}]+)`)

// reportURL is where the system installed on the disk reports to; empty = nowhere.
func reportURL(d *Disk) string {
	if d == nil || d.Image == nil || d.Image.ConfigDrive == nil {
		return ""
	}
	// User data wins over vendor data, as in cloud-init.
	for _, doc := range []string{d.Image.ConfigDrive.UserData, d.Image.ConfigDrive.VendorData} {
		var c struct {
			PhoneHome struct {
				URL string `yaml:"url"`
			} `yaml:"phone_home"`
		}
		if yaml.Unmarshal([]byte(doc), &c) == nil && c.PhoneHome.URL != "" {
			return c.PhoneHome.URL
		}
		if found := phoneHomeLine.FindStringSubmatch(doc); found != nil {
			return found[1]
		}
	}
	return ""
}

// instance is what the installed system knows of itself from its meta data.
type instance struct {
	ID       string   `yaml:"instance-id"`
	Hostname string   `yaml:"local-hostname"`
	Keys     []string `yaml:"public-keys"`
}

// report has the installed system say that it is up, in the form of cloud-init's
// phone_home. It tries again until the try that is answered.
func (m *Machine) report(i int, at time.Time) {
	s := &m.st.Systems[i]
	run := s.Running
	disk := s.bootDisk()
	to := reportURL(disk)
	run.ReportAt = time.Time{}
	if to == "" || run.ReportTry >= reportTries || m.removed {
		return
	}
	run.ReportTry++
	run.ReportAt = at.Add(max(reportSpacing, m.rack.clock.simulated(reportSpacingFloor)))
	var inst instance
	// Meta data that cannot be read leaves a system without a name.
	_ = yaml.Unmarshal([]byte(disk.Image.ConfigDrive.MetaData), &inst)
	form := url.Values{
		"instance_id": {inst.ID}, "hostname": {inst.Hostname}, "fqdn": {inst.Hostname},
		"pub_key_ed25519": {"ssh-ed25519 " + m.ident(i).serial("hostkey", 0, 68) + " root@" + inst.Hostname},
		"pub_key_rsa":     {""}, "pub_key_ecdsa": {""},
	}
	since := run.Since
	m.rack.running.Go(func() {
		if m.rack.postForm(to, form) {
			m.reported(i, since)
		}
	})
}

// reported ends the tries of the run that was answered.
func (m *Machine) reported(i int, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if run := m.st.Systems[i].Running; run != nil && run.Since.Equal(since) {
		run.ReportAt = time.Time{}
		m.record()
	}
}

func (r *Rack) postForm(to string, form url.Values) bool {
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		r.log.Info("report not sent", "error", err)
		return false
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", "Cloud-Init/23.4")
	resp, err := r.http.Do(req)
	if err != nil {
		r.log.Info("report not delivered", "error", err)
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode < 300
}
