package gateway_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

const sum = "sha256:0000000000000000000000000000000000000000000000000000000000000001"

// A machine boots, is let in, and runs the commands of a deploy to the end.
// Nothing secret is in a log.
func TestAgentDeploys(t *testing.T) {
	t.Parallel()
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "sig=hush-signature" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(strings.Repeat("x", 4096)))
	}))
	t.Cleanup(images.Close)
	r := newRig(t)
	boot := r.arm(1)
	h := &host{}
	ended := r.startAgent(boot, h)
	inv := r.send("inventory", agent.TypeInventory, struct{}{}, nil)
	write := r.send("write", agent.TypeWriteImage, map[string]any{"url": images.URL + "/a.raw?sig=hush-signature", "checksum": sum, "format": "raw"}, nil)
	config := r.send("config", agent.TypeConfigDrive, map[string]any{"metaData": "m"}, map[string]string{"userData": fleet.SecretUserData})
	finish := r.send("finish", agent.TypeFinish, struct{}{}, nil)
	if c := r.awaitCommand(finish); c.State != store.CommandSucceeded {
		t.Errorf("finish: %+v", c)
	}
	if err := <-ended; err != nil {
		t.Errorf("agent ended with %v, want nil after finish", err)
	}
	for _, id := range []string{inv, write, config} {
		if c := r.awaitCommand(id); c.State != store.CommandSucceeded || c.Error != "" {
			t.Errorf("command %s: %+v", c.Type, c)
		}
	}
	var got struct {
		Disk  struct{ Serial string }
		Bytes int64
	}
	if err := json.Unmarshal(r.awaitCommand(write).Data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Disk.Serial != "D2" || got.Bytes != 4096 {
		t.Errorf("written = %+v, want the smaller disk D2 and the size that the image's server told", got)
	}
	if h.docs.UserData != "hush-user-data" || h.docs.Disk != "D2" {
		t.Errorf("config drive = %+v, want the secret merged, on the disk that was written", h.docs)
	}
	token := r.config(boot).Token
	for _, secret := range []string{"hush", token, boot.ID} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
	m, err := r.Machine(t.Context(), r.Op)
	if err != nil {
		t.Fatal(err)
	}
	if m.ReadAt == nil {
		t.Error("nothing tells that the boot's files were read")
	}
	m.ReadAt = nil
	if diff := cmp.Diff(fleet.Machine{CalledIn: true, Present: true}, m); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
}

// A cancelled command stops the machine's work; the machine stays for the next.
func TestCancelStopsCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &host{blocked: make(chan struct{})}
	r.startAgent(r.arm(1), h)
	write := r.send("write", agent.TypeWriteImage, map[string]any{"url": "http://images.invalid", "checksum": sum, "format": "raw", "size": 1}, nil)
	<-h.blocked
	if err := r.CancelCommands(t.Context(), r.Op); err != nil {
		t.Fatal(err)
	}
	after := r.send("inventory", agent.TypeInventory, struct{}{}, nil)
	if c := r.awaitCommand(after); c.State != store.CommandSucceeded {
		t.Errorf("the next command: %+v", c)
	}
	if c := r.awaitCommand(write); c.State != store.CommandCancelled {
		t.Errorf("the cancelled command: %+v", c)
	}
}

// A command that was delivered and whose result was lost is run once: the agent
// tells the result again.
func TestRunAtMostOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := &host{}
	r.startAgent(r.arm(1), h)
	write := r.send("write", agent.TypeWriteImage, map[string]any{"url": "http://images.invalid", "checksum": sum, "format": "raw", "size": 1}, nil)
	r.awaitCommand(write)
	// As if the result had never arrived.
	if _, err := r.Pool().Exec(t.Context(), `UPDATE commands SET state = 'delivered', result = NULL WHERE id = $1`, write); err != nil {
		t.Fatal(err)
	}
	r.send("inventory", agent.TypeInventory, struct{}{}, nil) // wakes the machine, which is given the open one first
	if c := r.awaitCommand(write); c.State != store.CommandSucceeded {
		t.Errorf("told again: %+v", c)
	}
	if h.writes != 1 {
		t.Errorf("the image was written %d times, want once", h.writes)
	}
}

// What fails is told with what it made, and leaves the agent up.
func TestFailuresAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startAgent(r.arm(1), &host{})
	tests := r.awaitCommand(r.send("tests", agent.TypeTest, map[string]any{"tests": []string{"cpu", "nic"}}, nil))
	if tests.State != store.CommandFailed || !strings.Contains(tests.Error, "nic (link down)") || !strings.Contains(string(tests.Data), `"cpu"`) {
		t.Errorf("tests: %+v", tests)
	}
	erase := r.awaitCommand(r.send("erase", agent.TypeErase, map[string]any{"method": "full", "disks": []string{"D1", "D9"}, "skip": []string{}}, nil))
	if erase.State != store.CommandFailed || !strings.Contains(erase.Error, "D9") {
		t.Errorf("erase: %+v", erase)
	}
	var data struct{ Disks []fleet.DiskErase }
	if err := json.Unmarshal(erase.Data, &data); err != nil {
		t.Fatal(err)
	}
	if len(data.Disks) != 2 || data.Disks[0] != (fleet.DiskErase{Serial: "D1", Method: "full", Result: "done"}) || data.Disks[1].Result != "failed" {
		t.Errorf("records: %+v", data.Disks)
	}
	skip := r.awaitCommand(r.send("erase-2", agent.TypeErase, map[string]any{"method": "full", "disks": []string{"D1", "D9"}, "skip": []string{"D1", "D9"}}, nil))
	if err := json.Unmarshal(skip.Data, &data); err != nil {
		t.Fatal(err)
	}
	if skip.State != store.CommandSucceeded || data.Disks[0].Method != "full" || data.Disks[1].Method != "skipped" {
		t.Errorf("with skip, the disk that answers is erased: %+v %+v", skip, data.Disks)
	}
	unknown := r.awaitCommand(r.send("odd", "reflash", struct{}{}, nil))
	if unknown.State != store.CommandFailed || !strings.Contains(unknown.Error, "not supported") {
		t.Errorf("unknown command: %+v", unknown)
	}
}

// The machine's run ends with its boot, and a used token lets nobody in.
func TestBootEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	boot := r.arm(1)
	config := r.config(boot)
	ended := r.startAgent(boot, &host{})
	await(t, "the call-in", func() bool {
		m, err := r.Machine(t.Context(), r.Op)
		if err != nil {
			t.Fatal(err)
		}
		return m.CalledIn
	})
	cfg := r.agentConfig(boot)
	cfg.Boot = &config
	if err := agent.Run(t.Context(), cfg, &host{}); !errors.Is(err, agent.ErrTokenUsed) {
		t.Errorf("second start of the machine: %v, want %v", err, agent.ErrTokenUsed)
	}
	if err := r.VoidBoots(t.Context(), r.Op); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, agent.ErrBootEnded) {
		t.Errorf("agent ended with %v, want %v", err, agent.ErrBootEnded)
	}
	if err := agent.Run(t.Context(), cfg, &host{}); !errors.Is(err, agent.ErrBootEnded) {
		t.Errorf("start after the end: %v, want %v", err, agent.ErrBootEnded)
	}
}

// A gateway with another CA gets no token.
func TestPin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, err := identity.NewCA("other CA")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pin, host string
		want      bool
	}{
		"the CA":       {r.ca.Fingerprint(), "127.0.0.1", true},
		"another CA":   {other.Fingerprint(), "127.0.0.1", false},
		"another name": {r.ca.Fingerprint(), "gateway.example", false},
		"no pin":       {"", "127.0.0.1", false},
	} {
		tr := &http.Transport{TLSClientConfig: identity.PinnedTLS(c.pin, c.host)}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.GatewayURL+"/node/v1/call-in", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if got := err == nil; got != c.want {
			t.Errorf("%s: connected = %v (%v), want %v", name, got, err, c.want)
		}
		if !c.want && !errors.Is(err, identity.ErrNotPinned) {
			t.Errorf("%s: %v, want %v", name, err, identity.ErrNotPinned)
		}
		tr.CloseIdleConnections()
	}
}
