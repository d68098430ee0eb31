package agent

import (
	"log/slog"
	"net"
	"testing"
	"time"
)

// A client knows the machine's own address once it has connected.
func TestLocalAddress(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dial("https://"+l.Addr().String(), "", nil, time.Second, slog.New(slog.DiscardHandler).Warn)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.localAddress(); got != "" {
		t.Errorf("before a connection: %q", got)
	}
	conn, err := c.connect(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := c.localAddress(); got != "127.0.0.1" {
		t.Errorf("address %q", got)
	}
}
