package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/gateway"
)

// The plain listener gives a boot's files while the boot lives, and nothing for
// an id that is none, was voided, or is another thing's.
func TestBootFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, boot := r.arm(1), r.arm(2)
	resp, medium := r.get("/boot/" + boot.ID + "/compute.iso")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("compute.iso: %s, Accept-Ranges %q", resp.Status, resp.Header.Get("Accept-Ranges"))
	}
	if got := medium[16*2048+1 : 16*2048+6]; got != "CD001" {
		t.Errorf("volume descriptor = %q, want CD001", got)
	}
	if !strings.Contains(medium, r.config(boot).Token) {
		t.Error("the medium does not hold the boot config")
	}
	resp, part := r.get("/boot/"+boot.ID+"/compute.iso", "Range", "bytes=32768-34815")
	if resp.StatusCode != http.StatusPartialContent || part != medium[32768:34816] {
		t.Errorf("a range: %s, %d bytes", resp.Status, len(part))
	}
	for _, path := range []string{"/boot/" + old.ID + "/compute.iso", "/boot/" + old.ID + "/config", "/boot/none/config", "/boot/" + r.Op + "/config",
		"/boot/" + boot.ID + "/boot.efi", "/boot/" + boot.ID, "/report/" + boot.ID, "/", "/node/v1/call-in"} {
		if resp, body := r.get(path); resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %s %s", path, resp.Status, body)
		}
	}
	if err := r.VoidBoots(t.Context(), r.Op); err != nil {
		t.Fatal(err)
	}
	if resp, _ := r.get("/boot/" + boot.ID + "/config"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("config of a voided boot: %s", resp.Status)
	}
}

// A boot image is served with this boot's command line in each marked place,
// whichever range is asked for, and nothing else of it changes.
func TestBootImage(t *testing.T) {
	t.Parallel()
	const marker = "compute.boot=@BOOT-CONFIG-URL@"
	image := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	// One place lies across the border of two reads of the search.
	places := []int{4096, 1<<20 - 10, len(image) - 1024}
	for _, at := range places {
		copy(image[at:], marker)
	}
	path := filepath.Join(t.TempDir(), "compute.iso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *gateway.Config) { c.BootISO = path })
	boot := r.arm(1)
	line := "compute.boot=" + r.BootURL + "/boot/" + boot.ID + "/config"
	want := bytes.Clone(image)
	for _, at := range places {
		copy(want[at:at+1024], line+strings.Repeat(" ", 1024-len(line)))
	}
	_, got := r.get("/boot/" + boot.ID + "/compute.iso")
	if got != string(want) {
		t.Error("the image differs from the file with its places filled")
	}
	for _, span := range [][2]int{{4090, 4100}, {1<<20 - 1, 1 << 20}, {4096 + 1000, 4096 + 1100}, {len(image) - 5, len(image) - 1}} {
		_, part := r.get("/boot/"+boot.ID+"/compute.iso", "Range", "bytes="+itoa(span[0])+"-"+itoa(span[1]))
		if part != string(want[span[0]:span[1]+1]) {
			t.Errorf("bytes %v = %q", span, part)
		}
	}
	if err := os.WriteFile(path, []byte("no place"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gateway.New(gateway.Config{Store: r.Store, CA: r.ca, BootISO: path}); err == nil {
		t.Error("an image without a marked place is taken")
	}
}

// A report is taken once, as cloud-init or as JSON sends it.
func TestReports(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, body string }{
		"form":              {"application/x-www-form-urlencoded", "instance_id=i-1&hostname=n1&password=hush&pub_key_rsa=ssh-rsa+AAA"},
		"form without type": {"", "instance_id=i-1&hostname=n1&pub_key_rsa=ssh-rsa+AAA"},
		"json":              {"application/json; charset=utf-8", `{"instance_id":"i-1","hostname":"n1","pub_key_rsa":"ssh-rsa AAA","password":"hush","n":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			url, err := r.ReportURL(t.Context(), r.Op)
			if err != nil {
				t.Fatal(err)
			}
			if got := postPlain(t, url, c.kind, c.body); got != http.StatusNoContent {
				t.Errorf("report: %d, want 204", got)
			}
			if got := postPlain(t, url, c.kind, c.body); got != http.StatusNotFound {
				t.Errorf("second report: %d, want 404", got)
			}
			var data map[string]string
			if err := r.Pool().QueryRow(t.Context(), `SELECT data FROM reports`).Scan(&data); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"instance_id": "i-1", "hostname": "n1", "pub_key_rsa": "ssh-rsa AAA"}, data); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

// Reports that are none leave the report to come.
func TestBadReports(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	url, err := r.ReportURL(t.Context(), r.Op)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ kind, body string }{
		"not JSON":  {"application/json", `{"a":`},
		"too large": {"application/x-www-form-urlencoded", "hostname=" + strings.Repeat("x", 65<<10)},
		"no form":   {"", "%zz"},
	} {
		if got := postPlain(t, url, c.kind, c.body); got != http.StatusBadRequest {
			t.Errorf("%s: %d, want 400", name, got)
		}
	}
	if got := postPlain(t, r.BootURL+"/report/none", "", "hostname=x"); got != http.StatusNotFound {
		t.Errorf("no such report: %d, want 404", got)
	}
	if got := postPlain(t, url, "", "hostname=x%00y"); got != http.StatusNoContent {
		t.Errorf("a NUL in a name: %d, want it dropped and 204", got)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		if resp, body := r.get(path); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if _, err := r.Pool().Exec(t.Context(), `ALTER TABLE goose_db_version RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	if resp, body := r.get("/readyz"); resp.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "goose") {
		t.Errorf("readyz without a schema: %s %s, want 503 and no word of the database", resp.Status, body)
	}
}

func postPlain(t *testing.T, url, kind, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
