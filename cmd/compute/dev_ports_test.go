package main

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"
)

// A stack keeps its ports. One that something else has is replaced and said, but
// not that of the BMCs once machines are enrolled under it.
func TestPortsThatAreTaken(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	ownPorts(t, state)
	choose := func() (devPorts, string, error) {
		var said bytes.Buffer
		d := &devStack{devOptions: devOptions{state: state}, state: state, out: &said}
		d.config.Port, d.config.UIPort = 7233, 8233
		err := d.choosePorts()
		return d.ports, said.String(), err
	}
	take := func(host string, port int) (release func()) {
		l, err := net.Listen("tcp4", net.JoinHostPort(host, strings.TrimPrefix(loopback(port), "127.0.0.1:")))
		if err != nil {
			t.Fatal(err)
		}
		return func() { l.Close() }
	}
	before, said, err := choose()
	if err != nil || said != "" {
		t.Fatalf("with free ports: %v %s", err, said)
	}
	release := take("127.0.0.1", before.API)
	moved, said, err := choose()
	release()
	if err != nil || moved.API == before.API || moved.Gateway != before.Gateway || !strings.Contains(said, "API ") || !strings.Contains(said, "need it again") {
		t.Errorf("with the API's port taken: %+v, was %+v (%v):\n%s", moved, before, err, said)
	}

	// Another rack listens on its machines' addresses, not on 127.0.0.1.
	release = take("127.77.0.9", moved.Machines)
	defer release()
	empty, _, err := choose()
	if err != nil || empty.Machines == moved.Machines {
		t.Errorf("with the BMCs' port taken and no machine: %+v (%v)", empty, err)
	}
	if err := os.MkdirAll(state+"/rack/agents", 0o700); err != nil {
		t.Fatal(err)
	}
	release()
	release = take("127.77.0.9", empty.Machines)
	defer release()
	if _, _, err := choose(); err == nil || !strings.Contains(err.Error(), "machines of this stack are enrolled under it") {
		t.Errorf("with the BMCs' port taken and machines: %v", err)
	}
}

// What is to be typed into a shell is whole where the folder's name has spaces.
func TestEnvFileIsOneWord(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{".dev": ".dev/env", "my work/.dev": "'my work/.dev/env'", "it's": `'it'\''s/env'`} {
		if got := (&devStack{devOptions: devOptions{state: state}}).envFile(); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}
