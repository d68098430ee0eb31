package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"

	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
)

// plainHostname is planted beside the secrets and may be read by everybody.
const plainHostname = "plant-in-plain-sight"

// planted are secrets by what they are.
type planted map[string]string

// in says which of the secrets a text holds, as they are or encoded.
func (p planted) in(text []byte) []string {
	var found []string
	for what, secret := range p {
		for _, form := range []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret))} {
			if bytes.Contains(text, []byte(form)) {
				found = append(found, what)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// No secret is found anywhere after a machine's whole life, with failures: not
// in a log, a row of the database (events, operations, audit and kept answers
// among them), a history of Temporal or a process list.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startWorker()
	secrets := planted{"BMC password": "plant-bmc-password-1", "new password": "plant-New-Passw0rd-2", "user data": "plant-user-data-3", "network data": "plant-network-data-4",
		"image query": "plant-image-query-5", "IPMI password": ipmisim.Password}
	r.plantTokens(t, secrets)
	h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3, Password: secrets["BMC password"]})
	h.ready()
	rotation := obj{"username": h.Username(), "password": secrets["new password"], "rotate": true}
	h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "repeats it", Match: sim.Match{Method: "PATCH", Path: "**/Accounts/*"}, Apply: new(bool),
		Reply: &sim.Reply{Status: 400, Body: map[string]any{"error": map[string]any{"@Message.ExtendedInfo": []any{map[string]any{"MessageId": "Base.1.8.PropertyValueFormatError", "Message": "The value " + secrets["new password"] + " is too simple."}}}}}}}})
	failed(t, h.do("setCredentials", rotation), "refused")
	h.ClearFaults()
	succeeded(t, h.do("setCredentials", rotation))

	// A deploy that fails on the machine, then one that succeeds.
	image := obj{"url": r.images + "small.raw?signature=" + secrets["image query"], "format": "raw", "checksum": "sha256:" + strings.Repeat("0", 64)}
	deploy := obj{"image": image, "userData": "#cloud-config\n# " + secrets["user data"], "networkData": "# " + secrets["network data"] + "\nversion: 2\n", "hostname": plainHostname}
	op := h.begin("deploy", deploy)
	secrets["boot token"] = h.bootToken()
	failed(t, h.await(op.ID), "machine")
	image["checksum"] = "sha256:" + r.sum(t, "small.raw")
	succeeded(t, h.do("deploy", deploy))
	succeeded(t, h.do("release", obj{"rotateCredentials": true}))
	secrets["generated password"] = h.Password()
	if secrets["generated password"] == secrets["new password"] {
		t.Error("release did not rotate the password")
	}
	r.ipmiLife(t, secrets)
	succeeded(t, h.do("retire", nil))

	if found := secrets.in([]byte(r.log.String())); len(found) > 0 {
		t.Errorf("in a log: %q", found)
	}
	r.searchDatabase(t, secrets)
	r.searchHistories(t, secrets)
}

// plantTokens makes a join token and a service token.
func (r *rig) plantTokens(t *testing.T, secrets planted) {
	t.Helper()
	var join fleet.JoinTokenSecretOut
	if err := r.call(t, "joinTokens/create", obj{"siteId": r.site, "ttlSeconds": 3600, "maxUses": 1}, &join); err != nil {
		t.Fatal(err)
	}
	var service fleet.ServiceTokenSecretOut
	if err := r.call(t, "access/issueToken", obj{"name": "ci", "role": "viewer", "on": obj{"tenantId": "acme"}, "ttlSeconds": 3600}, &service); err != nil {
		t.Fatal(err)
	}
	secrets["join token"], secrets["service token"], secrets["caller's token"] = join.Secret, service.Secret, r.token
}

// bootToken is the call-in token of the boot whose medium is in the machine.
func (h *host) bootToken() (token string) {
	h.t.Helper()
	h.poll("our medium", func() bool {
		for _, m := range h.View(false).Media {
			_, rest, ours := strings.Cut(m.Image, "/boot/")
			if !m.Inserted || !ours {
				continue
			}
			id, _, _ := strings.Cut(rest, "/")
			c, err := h.r.store.BootConfig(h.t.Context(), id)
			if err != nil {
				h.t.Fatal(err)
			}
			token = c.Token
		}
		return token != ""
	})
	return token
}

// ipmiLife runs a machine over IPMI, whose driver runs a program, and looks at
// the process list all the while.
func (r *rig) ipmiLife(t *testing.T, secrets planted) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan []string)
	ran := false
	go func() {
		var found []string
		for ctx.Err() == nil {
			lists, _ := filepath.Glob("/proc/[0-9]*/cmdline") // a fixed pattern
			for _, f := range lists {
				args, err := os.ReadFile(f)
				if err != nil {
					continue // it has ended
				}
				ran = ran || bytes.Contains(args, []byte("ipmitool"))
				found = append(found, secrets.in(args)...)
			}
		}
		seen <- found
	}()
	chassis := ipmisim.Start(t)
	h := &host{r: r, t: t}
	var out fleet.MetalOperationOut
	if err := r.call(t, "metal/enroll", obj{"siteId": r.site, "name": "ipmi-secrets", "inUse": false, "bmc": obj{"address": fmt.Sprintf("ipmi://127.0.0.1:%d", chassis.Port),
		"username": ipmisim.User, "password": ipmisim.Password}}, &out); err != nil {
		t.Fatal(err)
	}
	h.node = out.Node.ID
	succeeded(t, h.await(out.Operation.ID))
	succeeded(t, h.do("power", obj{"action": "cycle"}))
	stop()
	if found := <-seen; len(found) > 0 || !ran {
		t.Errorf("in the process list, where ipmitool was seen (%v): %q", ran, found)
	}
}

// searchDatabase looks at every row of every table. What is sealed shows
// nothing, so no column is left out.
func (r *rig) searchDatabase(t *testing.T, secrets planted) {
	t.Helper()
	rows, err := r.store.Pool().Query(t.Context(), `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 20 {
		t.Fatalf("tables %q: %v", tables, err)
	}
	control := 0 // rows with what is no secret and must be found
	for _, table := range tables {
		rows, err := r.store.Pool().Query(t.Context(), `SELECT x::text FROM `+table+` x`)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if found := secrets.in([]byte(text)); len(found) > 0 {
				t.Errorf("in a row of %s: %q", table, found)
			}
			if strings.Contains(text, plainHostname) {
				control++
			}
		}
	}
	if control == 0 {
		t.Error("nothing was found of what is no secret: the search is blind")
	}
}

// searchHistories looks at every event of every workflow.
func (r *rig) searchHistories(t *testing.T, secrets planted) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := 0
	list, err := r.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: r.namespace, PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list.GetExecutions() {
		for it := r.temporal.GetWorkflowHistory(ctx, w.GetExecution().GetWorkflowId(), w.GetExecution().GetRunId(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
			e, err := it.Next()
			if err != nil {
				t.Fatal(err)
			}
			raw, err := proto.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			events++
			if found := secrets.in(raw); len(found) > 0 {
				t.Errorf("in the history of %s (%s), event %s: %q", w.GetExecution().GetWorkflowId(), w.GetType().GetName(), e.GetEventType(), found)
			}
		}
	}
	if events < 100 {
		t.Errorf("only %d events were looked at", events)
	}
}
