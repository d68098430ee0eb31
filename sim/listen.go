package sim

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// listen opens the machines' listener. Where the system allows it, one socket
// that is bound to the loopback device takes every address of 127.0.0.0/8, so
// that 10,000 machines with an address each cost one descriptor.
func (r *Rack) listen() error {
	r.server = &http.Server{
		Handler:           http.HandlerFunc(r.serve),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       60 * time.Second,
		ErrorLog:          log.New(logWriter{r.log}, "", 0),
		// HTTP/1.1 only, as nearly all BMCs.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	if r.ports || r.opts.OwnPorts {
		r.ports = true
		return nil
	}
	port := r.port
	if port == 0 {
		port = r.opts.Port
	}
	l, err := listenLoopback(r.ctx, port)
	if err != nil {
		if port != 0 {
			return fmt.Errorf("listening for the machines on port %d: %w", port, err)
		}
		r.log.Info("no listener for all of 127.0.0.0/8, every machine gets a port of its own", "cause", err)
		r.ports = true
		return nil
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		r.port = tcp.Port
	}
	r.serveTLS(l)
	return nil
}

func (r *Rack) serveTLS(l net.Listener) {
	r.running.Go(func() {
		// Serve ends with the listener or the server, both closed by Close.
		_ = r.server.Serve(tls.NewListener(l, r.tlsConfig()))
	})
}

// address picks the machine's address, and opens its port where it has its own.
func (r *Rack) address(m *Machine) (string, error) {
	if !r.ports {
		n := m.ordinal
		ip := net.IPv4(127, byte(77+n>>16), byte(n>>8), byte(n))
		return net.JoinHostPort(ip.String(), strconv.Itoa(r.port)), nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.WithoutCancel(r.ctx), "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.ownPort)))
	if err != nil {
		return "", fmt.Errorf("listening for machine %s: %w", m.id, err)
	}
	m.listener = l
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		m.ownPort = tcp.Port
	}
	r.serveTLS(l)
	return l.Addr().String(), nil
}

// serve hands a request to the machine whose address it came to.
func (r *Rack) serve(w http.ResponseWriter, req *http.Request) {
	addr, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		http.Error(w, "no local address", http.StatusInternalServerError)
		return
	}
	m := r.at(addr)
	if m == nil {
		drop()
		return
	}
	m.serve(w, req)
}

// drop ends the connection without an answer.
func drop() {
	panic(http.ErrAbortHandler)
}

type logWriter struct {
	log interface{ Debug(string, ...any) }
}

func (w logWriter) Write(b []byte) (int, error) {
	w.log.Debug(string(b))
	return len(b), nil
}
