package store_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// machineBundle is a node with a running deploy.
type machineBundle struct {
	*store.Store
	t    *testing.T
	Node string
	Op   string
}

func newMachine(t *testing.T, secrets map[string]string) *machineBundle {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(storetest.New(t), store.Options{Seal: keys, BootKey: []byte(strings.Repeat("k", 32)), BootURL: "http://boot.example/", GatewayURL: "https://gw.example"})
	b := &machineBundle{Store: s, t: t, Node: store.NewID(fleet.KindNode), Op: store.NewID(fleet.KindOperation)}
	site := store.NewID(fleet.KindSite)
	err = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		for _, q := range []struct {
			sql  string
			args []any
		}{
			{`INSERT INTO tenants (id) VALUES ('acme')`, nil},
			{`INSERT INTO sites (id, tenant_id, name, spec) VALUES ($1, 'acme', 'lab', '{}')`, []any{site}},
			{`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ($1, 'acme', $2, 'deploying')`, []any{b.Node, site}},
			{`INSERT INTO bmcs (node_id, site_id, address, driver, username, tls_mode, identity) VALUES ($1, $2, 'https://127.0.0.1', 'auto', 'admin', 'verify',
				'{"uuid": "4c4c4544-0051-3910-8053-b4c04f4e3933", "serial": "S1"}')`, []any{b.Node, site}},
		} {
			if _, err := tx.Exec(ctx, q.sql, q.args...); err != nil {
				return err
			}
		}
		return s.InsertOperation(ctx, tx, store.NewOperation{ID: b.Op, NodeID: b.Node, TenantID: "acme", Verb: fleet.VerbDeploy, Lane: store.LaneProvision,
			Input: map[string]any{"image": map[string]any{"url": "http://images.example/a.raw"}}, Secrets: secrets, RequestedBy: "dev:owner"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginOperation(t.Context(), b.Op, "run-1"); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *machineBundle) arm(number int) fleet.Boot {
	b.t.Helper()
	boot, err := b.ArmBoot(b.t.Context(), b.Op, number)
	if err != nil {
		b.t.Fatal(err)
	}
	return boot
}

func (b *machineBundle) token(bootID string) string {
	b.t.Helper()
	c, err := b.BootConfig(b.t.Context(), bootID)
	if err != nil {
		b.t.Fatal(err)
	}
	return c.Token
}

// signals are the names of the undelivered signals, in order.
func (b *machineBundle) signals() []string {
	b.t.Helper()
	rows, err := b.Pool().Query(b.t.Context(), `SELECT signal FROM dispatch WHERE kind = 'signal' AND operation_id = $1 ORDER BY id`, b.Op)
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// end closes the operation well.
func (b *machineBundle) end() {
	b.t.Helper()
	if err := b.SucceedOperation(b.t.Context(), b.Op, fleet.OperationResult{}); err != nil {
		b.t.Fatal(err)
	}
}

// callIn calls in on a boot and returns the machine's session.
func (b *machineBundle) callIn(bootID string) store.BootSession {
	b.t.Helper()
	in, err := b.UseBootToken(b.t.Context(), store.CallIn{BootID: bootID, Token: b.token(bootID)})
	if err != nil {
		b.t.Fatal(err)
	}
	m, err := b.MachineSession(b.t.Context(), in.Session)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// The same number is the same boot; the next one voids it; only hashes of
// tokens are stored.
func TestArmBoot(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	first, again, second := b.arm(1), b.arm(1), b.arm(2)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("arming number 1 again is another boot:\n%s", diff)
	}
	if first.ID == second.ID {
		t.Error("two power-ons have one boot id")
	}
	if want := "http://boot.example/boot/" + second.ID + "/compute.iso"; second.ISOURL != want {
		t.Errorf("ISOURL = %q, want %q", second.ISOURL, want)
	}
	if got := fleet.CodeOf(b.BootLive(t.Context(), first.ID)); got != fleet.CodeNotFound {
		t.Errorf("former boot: %q, want NOT_FOUND", got)
	}
	w, err := b.LoadWork(t.Context(), b.Op)
	if err != nil {
		t.Fatal(err)
	}
	if w.Boots != 2 {
		t.Errorf("power_on = %d, want 2", w.Boots)
	}
	var row string
	if err := b.Pool().QueryRow(t.Context(), `SELECT string_agg(boots::text, ' ') FROM boots`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, b.token(second.ID)) {
		t.Error("the token itself is in the database")
	}
	b.callIn(second.ID)
	if _, err := b.ArmBoot(t.Context(), b.Op, 2); fleet.ReasonOf(err) != store.ReasonBootUsed {
		t.Errorf("arming a used boot: %v, want reason %s", err, store.ReasonBootUsed)
	}
	b.end()
	if got := fleet.CodeOf(b.BootLive(t.Context(), second.ID)); got != fleet.CodeNotFound {
		t.Errorf("boot of an ended operation: %q, want NOT_FOUND", got)
	}
}

// Of many machines that show one token at once, one is let in; the workflow is
// told of the call-in once and of the restart once.
func TestTokenUsedOnce(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	boot := b.arm(1)
	token := b.token(boot.ID)
	const callers = 50
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { _, errs[i] = b.UseBootToken(t.Context(), store.CallIn{BootID: boot.ID, Token: token}) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case fleet.ReasonOf(err) != store.ReasonTokenUsed:
			t.Errorf("refused with %v, want reason %s", err, store.ReasonTokenUsed)
		}
	}
	if won != 1 {
		t.Errorf("%d call-ins were let in, want 1", won)
	}
	if diff := cmp.Diff([]string{fleet.SignalCallIn, fleet.SignalReboot}, b.signals()); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
	m, err := b.Machine(t.Context(), b.Op)
	if err != nil {
		t.Fatal(err)
	}
	if m.ReadAt == nil {
		t.Error("nothing tells that the boot's files were read")
	}
	m.ReadAt = nil
	if diff := cmp.Diff(fleet.Machine{CalledIn: true, Reused: true, Present: true}, m); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
}

// A call-in whose answer was lost is made again by the same start of the
// machine and gets the same session; it is no restart.
func TestCallInAgain(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	boot := b.arm(1)
	c := store.CallIn{BootID: boot.ID, Token: b.token(boot.ID), Nonce: "start-1"}
	first, err := b.UseBootToken(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.UseBootToken(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("second answer differs:\n%s", diff)
	}
	if diff := cmp.Diff([]string{fleet.SignalCallIn}, b.signals()); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
	c.Nonce = "start-2"
	if _, err := b.UseBootToken(t.Context(), c); fleet.ReasonOf(err) != store.ReasonTokenUsed {
		t.Errorf("another start of the machine: %v, want reason %s", err, store.ReasonTokenUsed)
	}
}

func TestCallInRefused(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	old, boot := b.arm(1), b.arm(2)
	other := fleet.Hardware{UUID: "11111111-0051-3910-8053-b4c04f4e3933", Serial: "S2"}
	for name, c := range map[string]struct {
		in   store.CallIn
		want fleet.Code
	}{
		"a voided boot":          {store.CallIn{BootID: old.ID, Token: "x"}, fleet.CodeNotFound},
		"no such boot":           {store.CallIn{BootID: "nothing", Token: "x"}, fleet.CodeNotFound},
		"another boot's token":   {store.CallIn{BootID: boot.ID, Token: "x"}, fleet.CodeAccessDenied},
		"another machine":        {store.CallIn{BootID: boot.ID, Token: b.token(boot.ID), Hardware: other}, fleet.CodeAccessDenied},
		"the boot id as token":   {store.CallIn{BootID: boot.ID, Token: boot.ID}, fleet.CodeAccessDenied},
		"no token":               {store.CallIn{BootID: boot.ID}, fleet.CodeAccessDenied},
		"neither boot nor token": {store.CallIn{}, fleet.CodeNotFound},
	} {
		if _, err := b.UseBootToken(t.Context(), c.in); fleet.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if got := b.signals(); len(got) > 0 {
		t.Errorf("signals after refusals: %v", got)
	}
	// The right machine still gets in: its UUID in the other byte order.
	in := store.CallIn{BootID: boot.ID, Token: b.token(boot.ID), Hardware: fleet.Hardware{UUID: "44454C4C-5100-1039-8053-B4C04F4E3933"}}
	if _, err := b.UseBootToken(t.Context(), in); err != nil {
		t.Errorf("the right machine: %v", err)
	}
}

// The same key is one command; its secrets are in no column but the sealed one,
// and are gone when it ended.
func TestCommandLife(t *testing.T) {
	t.Parallel()
	b := newMachine(t, map[string]string{fleet.SecretUserData: "top-secret-user-data", fleet.SecretImageURL: "http://images.example/a.raw?sig=hidden"})
	boot := b.arm(1)
	in := fleet.CommandIn{Key: "config", Type: "configDrive", Args: map[string]any{"metaData": "m"},
		Secrets: map[string]string{"userData": fleet.SecretUserData, "networkData": fleet.SecretNetworkData}, Expires: time.Hour}
	id, err := b.SendCommand(t.Context(), b.Op, in)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.SendCommand(t.Context(), b.Op, in); err != nil || again != id {
		t.Errorf("sent again = %q, %v; want %q", again, err, id)
	}
	var row string
	if err := b.Pool().QueryRow(t.Context(), `SELECT (to_jsonb(commands) - 'secrets')::text || encode(secrets, 'escape') FROM commands`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, "top-secret") {
		t.Errorf("the row shows the secret: %s", row)
	}
	m := b.callIn(boot.ID)
	for range 2 { // delivered at least once: until it is answered
		d, err := b.NextCommand(t.Context(), store.OfBoot(m.BootID))
		if err != nil {
			t.Fatal(err)
		}
		if d == nil || d.ID != id {
			t.Fatalf("next command = %+v, want %s", d, id)
		}
		var args map[string]string
		if err := json.Unmarshal(d.Args, &args); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"metaData": "m", "userData": "top-secret-user-data"}, args); diff != "" {
			t.Errorf("delivered arguments (-want +got):\n%s", diff)
		}
	}
	half := 50
	if err := b.CommandProgress(t.Context(), store.OfBoot(m.BootID), id, &half, "half-way"); err != nil {
		t.Fatal(err)
	}
	done := store.CommandOutcome{OK: true, Data: json.RawMessage(`{"n":1}`)}
	for range 2 { // a result whose answer was lost is told again
		if err := b.CommandResult(t.Context(), store.OfBoot(m.BootID), id, done); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.Command(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != store.CommandSucceeded || string(got.Data) != `{"n": 1}` || got.Percent == nil || *got.Percent != 100 {
		t.Errorf("command = %+v", got)
	}
	for kind, want := range map[string]string{"configDrive": `{"n": 1}`, "writeImage": ""} {
		if data, err := b.LastData(t.Context(), b.Op, kind); err != nil || string(data) != want {
			t.Errorf("the data of the last %s: %s, %v", kind, data, err)
		}
	}
	var left int
	if err := b.Pool().QueryRow(t.Context(), `SELECT count(*) FROM commands WHERE secrets IS NOT NULL`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Error("the secrets of an ended command are kept")
	}
	if diff := cmp.Diff([]string{fleet.SignalCallIn, fleet.SignalCommand}, b.signals()); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
}

// What a parked operation armed ends with it when another takes its place: the
// machine that runs our image for it is served nothing more.
func TestSupersededArmsNothing(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	boot := b.arm(1)
	m := b.callIn(boot.ID)
	id, err := b.SendCommand(t.Context(), b.Op, fleet.CommandIn{Key: "k", Type: "finish", Args: struct{}{}, Expires: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.FailOperation(t.Context(), b.Op, fleet.OperationFailure{Code: "timeout", Cause: "stuck", Park: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.BootLive(t.Context(), boot.ID); err != nil {
		t.Errorf("parked, the boot has ended: %v", err)
	}
	err = b.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return store.EndParked(ctx, tx, b.Node, "op_next") })
	if err != nil {
		t.Fatal(err)
	}
	if err := b.BootLive(t.Context(), boot.ID); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("the boot's files are still served: %v", err)
	}
	if d, err := b.NextCommand(t.Context(), store.OfBoot(m.BootID)); err != nil || d != nil {
		t.Errorf("a command is still delivered: %+v, %v", d, err)
	}
	if c, err := b.Command(t.Context(), id); err != nil || c.State != store.CommandCancelled {
		t.Errorf("the command is %s, %v", c.State, err)
	}
}

// A machine hears of a cancelled, an expired and another boot's command that it
// has ended, or that there is none.
func TestCommandEnded(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	first := b.arm(1)
	m1 := b.callIn(first.ID)
	send := func(key string, expires time.Duration) string {
		id, err := b.SendCommand(t.Context(), b.Op, fleet.CommandIn{Key: key, Type: "inventory", Args: struct{}{}, Expires: expires})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	late := send("late", -time.Second)
	if c, err := b.Command(t.Context(), late); err != nil || c.State != store.CommandExpired {
		t.Errorf("late command = %+v, %v; want expired", c, err)
	}
	if d, err := b.NextCommand(t.Context(), store.OfBoot(m1.BootID)); err != nil || d != nil {
		t.Errorf("an expired command is delivered: %+v, %v", d, err)
	}
	open := send("open", time.Hour)
	if err := b.CancelCommands(t.Context(), b.Op); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]string{"expired": late, "cancelled": open} {
		if err := b.CommandProgress(t.Context(), store.OfBoot(m1.BootID), id, nil, ""); fleet.ReasonOf(err) != store.ReasonCommandEnded {
			t.Errorf("progress of a %s command: %v, want reason %s", name, err, store.ReasonCommandEnded)
		}
		if err := b.CommandResult(t.Context(), store.OfBoot(m1.BootID), id, store.CommandOutcome{OK: true}); fleet.ReasonOf(err) != store.ReasonCommandEnded {
			t.Errorf("result of a %s command: %v, want reason %s", name, err, store.ReasonCommandEnded)
		}
	}
	ofFirst := send("again", time.Hour)
	second := b.arm(2)
	m2 := b.callIn(second.ID)
	if c, err := b.Command(t.Context(), ofFirst); err != nil || c.State != store.CommandCancelled {
		t.Errorf("a former boot's command = %+v, %v; want cancelled", c, err)
	}
	if err := b.CommandResult(t.Context(), store.OfBoot(m2.BootID), ofFirst, store.CommandOutcome{OK: true}); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("result of another boot's command: %v, want NOT_FOUND", err)
	}
	ids, err := b.OwnersWithCommands(t.Context(), "gw-1", []string{first.ID, second.ID})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{first.ID}, ids); diff != "" {
		t.Errorf("boots to wake: the ended one, whose machine shall hear it (-want +got):\n%s", diff)
	}
}

// A report is taken once, and only while its operation lives.
func TestReport(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	url, err := b.ReportURL(t.Context(), b.Op)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.ReportURL(t.Context(), b.Op); err != nil || again != url {
		t.Errorf("made again = %q, %v; want %q", again, err, url)
	}
	id := strings.TrimPrefix(url, "http://boot.example/report/")
	if err := b.TakeReport(t.Context(), id, map[string]string{"hostname": "n1"}); err != nil {
		t.Fatal(err)
	}
	if err := b.TakeReport(t.Context(), id, nil); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("second report: %v, want NOT_FOUND", err)
	}
	if done, err := b.Reported(t.Context(), b.Op); err != nil || !done {
		t.Errorf("Reported = %v, %v", done, err)
	}
	if diff := cmp.Diff([]string{fleet.SignalReport}, b.signals()); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
}

// The report of an operation that ended comes too late.
func TestReportAfterEnd(t *testing.T) {
	t.Parallel()
	b := newMachine(t, nil)
	url, err := b.ReportURL(t.Context(), b.Op)
	if err != nil {
		t.Fatal(err)
	}
	b.end()
	if err := b.TakeReport(t.Context(), url[strings.LastIndex(url, "/")+1:], nil); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("report after the end: %v, want NOT_FOUND", err)
	}
}

// The whole URL of the image is opened only in memory; without a sealed one it
// is the input's.
func TestImageURL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secrets map[string]string
		want    string
	}{
		"sealed": {map[string]string{fleet.SecretImageURL: "http://images.example/a.raw?sig=1"}, "http://images.example/a.raw?sig=1"},
		"plain":  {nil, "http://images.example/a.raw"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newMachine(t, c.secrets)
			if got, err := b.ImageURL(t.Context(), b.Op); err != nil || got != c.want {
				t.Errorf("ImageURL = %q, %v; want %q", got, err, c.want)
			}
		})
	}
}
