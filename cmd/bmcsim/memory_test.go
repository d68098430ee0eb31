package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestMemory starts the program with 10,000 machines whose state is journalled
// and logs in to every fourth: the most that the process ever held stays well
// under the gibibyte that is promised for all of them.
func TestMemory(t *testing.T) {
	t.Parallel()
	cmd, control := program(t, "--nodes", "10000", "--listen", "127.0.0.1:0", "--state", t.TempDir())
	list, ok := get(t, control+"/sim/machines").(map[string]any)
	if !ok {
		t.Fatal("no machines")
	}
	items, _ := list["items"].([]any)
	if len(items) != 10_000 {
		t.Fatalf("%d machines", len(items))
	}
	next := make(chan map[string]any)
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for m := range next {
				if err := use(t.Context(), m); err != nil {
					t.Errorf("%v: %v", m["id"], err)
				}
			}
		})
	}
	for i := 0; i < len(items); i += 4 {
		m, _ := items[i].(map[string]any)
		next <- m
	}
	close(next)
	running.Wait()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		most, found := strings.CutPrefix(line, "VmHWM:")
		if !found {
			continue
		}
		kib, err := strconv.Atoi(strings.Fields(most)[0])
		if err != nil || kib >= 1<<19 {
			t.Errorf("10,000 machines in use took %d MiB (%v)", kib>>10, err)
		}
		t.Logf("10,000 machines in use took %d MiB", kib>>10)
		return
	}
	t.Fatalf("no VmHWM in %s", raw)
}

// use logs in to a machine and reads, and leaves the session open.
func use(ctx context.Context, m map[string]any) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // simulated, self-signed
	defer client.CloseIdleConnections()
	token := ""
	do := func(method, path string, body any) (map[string]any, error) {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, method, fmt.Sprint(m["address"])+path, bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-Auth-Token", token)
		req.Header.Set("If-Match", "*")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode/100 != 2 {
			return nil, fmt.Errorf("%s %s: %s %s (%w)", method, path, resp.Status, answer, err)
		}
		token = resp.Header.Get("X-Auth-Token") + token
		v := map[string]any{}
		_ = json.Unmarshal(answer, &v) // a change may be answered without a body
		return v, nil
	}
	if _, err := do(http.MethodPost, "/redfish/v1/SessionService/Sessions", map[string]any{"UserName": m["username"], "Password": m["password"]}); err != nil {
		return err
	}
	_, err := do(http.MethodGet, "/redfish/v1/Systems", nil)
	return err
}
