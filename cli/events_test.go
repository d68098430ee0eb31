package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bettercompute/compute/cli"
)

// The events of all nodes are followed over ends of the stream and outages of
// the API, each once and under the node's name; a session that ended is said,
// with where to go on.
func TestEventsOfAllNodes(t *testing.T) {
	t.Parallel()
	const first = "id: 1:1\nevent: node.cordoned\ndata: {\"cursor\": \"1:1\", \"type\": \"node.cordoned\", \"nodeId\": \"" + testNode + "\", \"at\": \"2026-01-01T00:00:00.000Z\", \"actor\": \"dev:o\", \"data\": {\"reason\": \"fan\"}}\n\n: alive\nid: 1:5\n\n"
	answers := []string{
		first,
		`503 {"code": "UNAVAILABLE", "detail": "the database does not answer"}`,
		"id: 1:6\nevent: gap\ndata: {}\n\nid: 1:7\nevent: pool.created\ndata: {\"type\": \"pool.created\", \"at\": \"2026-01-01T00:00:00.000Z\", \"actor\": \"dev:o\", \"data\": {}}\n\n",
		`401 {"code": "UNAUTHENTICATED", "detail": "the token has expired"}`,
	}
	var mu sync.Mutex
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/nodes/get") {
			asked = append(asked, "name")
			fmt.Fprintf(w, `{"node": {"id": %q, "name": "gpu-1"}}`, testNode)
			return
		}
		asked = append(asked, r.URL.Query().Get("type")+"@"+r.URL.Query().Get("cursor"))
		answer := answers[0]
		answers = answers[1:]
		var status int
		if _, err := fmt.Sscanf(answer, "%d ", &status); err == nil {
			w.WriteHeader(status)
			_, answer, _ = strings.Cut(answer, " ")
		}
		io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	var out, said bytes.Buffer
	root := cli.New(nil, &out, &said)
	root.SetArgs([]string{"--url", srv.URL, "--tenant", "acme", "events", "--type", "n"})
	if err := root.ExecuteContext(context.Background()); cli.ExitCode(err) != cli.ExitRefused || !strings.Contains(cli.Explain(err), "expired") {
		t.Errorf("ended with %v", err)
	}
	for _, want := range []string{"node.cordoned", " gpu-1 ", "reason=fan\n", "pool.created"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("not once %q:\n%s", want, out.String())
		}
	}
	for _, want := range []string{"asking again", "are kept no more", "--cursor 1:7"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("said without %q:\n%s", want, said.String())
		}
	}
	if want := []string{"n@", "name", "n@1:5", "n@1:5", "n@1:7"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}
