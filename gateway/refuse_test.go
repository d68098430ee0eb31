package gateway_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/store"
)

func itoa(n int) string { return strconv.Itoa(n) }

// session calls in on a boot.
func (r *rig) session(c agent.BootConfig) string {
	r.t.Helper()
	status, out := r.post("/node/v1/call-in", "", map[string]any{"bootId": c.BootID, "token": c.Token})
	if status != http.StatusOK {
		r.t.Fatalf("call-in: %d %v", status, out)
	}
	s, _ := out["session"].(string)
	return s
}

// What is not to be served is refused with the status that the protocol names.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	boot := r.arm(1)
	c := r.config(boot)
	session := r.session(c)
	cancelled := r.send("a", agent.TypeInventory, struct{}{}, nil)
	if err := r.CancelCommands(t.Context(), r.Op); err != nil {
		t.Fatal(err)
	}
	open := r.send("b", agent.TypeInventory, struct{}{}, nil)
	for name, q := range map[string]struct {
		path, session string
		body          any
		status        int
		reason        string
	}{
		"used token":             {"/node/v1/call-in", "", map[string]any{"bootId": c.BootID, "token": c.Token}, 409, store.ReasonTokenUsed},
		"another's token":        {"/node/v1/call-in", "", map[string]any{"bootId": c.BootID, "token": "x"}, 403, store.ReasonBadToken},
		"no such boot":           {"/node/v1/call-in", "", map[string]any{"bootId": "x", "token": c.Token}, 404, ""},
		"call-in is no JSON":     {"/node/v1/call-in", "", `{"bootId":`, 400, ""},
		"a member twice":         {"/node/v1/call-in", "", `{"bootId":"a","bootId":"b"}`, 400, ""},
		"call-in too large":      {"/node/v1/call-in", "", `{"bootId":"` + strings.Repeat("x", 65<<10) + `"}`, 400, "too-large"},
		"no session":             {"/node/v1/commands/next", "", map[string]any{}, 401, ""},
		"a made-up session":      {"/node/v1/commands/next", "x", map[string]any{}, 401, "session-ended"},
		"the token as session":   {"/node/v1/commands/next", c.Token, map[string]any{}, 401, "session-ended"},
		"progress of cancelled":  {"/node/v1/commands/" + cancelled + "/progress", session, map[string]any{}, 410, store.ReasonCommandEnded},
		"result of cancelled":    {"/node/v1/commands/" + cancelled + "/result", session, map[string]any{"ok": true}, 410, store.ReasonCommandEnded},
		"no such command":        {"/node/v1/commands/cmd_x/result", session, map[string]any{"ok": true}, 404, ""},
		"result without session": {"/node/v1/commands/" + open + "/result", "", map[string]any{"ok": true}, 401, ""},
		"no such route":          {"/node/v1/secrets", session, map[string]any{}, 404, ""},
	} {
		status, out := r.post(q.path, q.session, q.body)
		reason, _ := out["reason"].(string)
		if status != q.status || reason != q.reason {
			t.Errorf("%s: %d %q, want %d %q", name, status, reason, q.status, q.reason)
		}
	}
	if status, _ := r.post("/node/v1/commands/"+open+"/progress", session, map[string]any{"percent": 900, "detail": "x\x00y"}); status != http.StatusNoContent {
		t.Errorf("odd progress: %d, want it taken as 100 percent", status)
	}
	if got, err := r.Command(t.Context(), open); err != nil || got.Percent == nil || *got.Percent != 100 || got.Detail != "xy" {
		t.Errorf("progress = %+v, %v", got, err)
	}
}

// A waiting machine hears of its command without asking again, though it holds
// no connection meanwhile: by notice, and, where none comes, by the common look.
func TestWaitingMachines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	session := r.session(r.config(r.arm(1)))
	type answer struct {
		status int
		out    map[string]any
	}
	ask := func() <-chan answer {
		got := make(chan answer, 1)
		go func() {
			status, out := r.post("/node/v1/commands/next", session, map[string]any{"waitSeconds": 30})
			got <- answer{status, out}
		}()
		return got
	}
	got := ask()
	id := r.send("a", agent.TypeInventory, struct{}{}, nil)
	if a := <-got; a.status != http.StatusOK || a.out["command"].(map[string]any)["id"] != id {
		t.Errorf("woken with %+v, want command %s", a, id)
	}
	if status, _ := r.post("/node/v1/commands/"+id+"/result", session, map[string]any{"ok": true}); status != http.StatusNoContent {
		t.Fatalf("result: %d", status)
	}
	if status, _ := r.post("/node/v1/commands/next", session, map[string]any{"waitSeconds": 0}); status != http.StatusNoContent {
		t.Errorf("nothing to do: %d, want 204", status)
	}
	got = ask()
	// A row that nobody told of is found by the common look.
	if _, err := r.Pool().Exec(t.Context(), `INSERT INTO commands (id, node_id, operation_id, boot_id, type, expires_at)
		SELECT 'cmd_silent', node_id, operation_id, boot_id, 'inventory', now() + interval '1 hour' FROM commands LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.status != http.StatusOK {
		t.Errorf("woken with %+v, want the silent command", a)
	}
	if _, err := r.Pool().Exec(t.Context(), `DELETE FROM commands`); err != nil {
		t.Fatal(err)
	}
	got = ask()
	if err := r.VoidBoots(t.Context(), r.Op); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.status != http.StatusUnauthorized {
		t.Errorf("the boot ended under a waiting machine: %+v, want 401", a)
	}
}

// A flood of guesses is slowed; machines of the same address that have their
// session go on.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.config(r.arm(1))
	session := r.session(c)
	if status, _ := r.post("/node/v1/commands/next", session, map[string]any{}); status != http.StatusNoContent {
		t.Fatalf("a good session: %d", status)
	}
	slowed := false
	deadline := time.Now().Add(30 * time.Second)
	for !slowed && time.Now().Before(deadline) {
		status, _ := r.post("/node/v1/call-in", "", map[string]any{"bootId": "guess", "token": "guess"})
		slowed = status == http.StatusTooManyRequests
	}
	if !slowed {
		t.Fatal("a flood of guesses is never refused")
	}
	if status, _ := r.post("/node/v1/commands/next", session, map[string]any{}); status != http.StatusNoContent {
		t.Errorf("a good session in a flood: %d, want 204", status)
	}
}
