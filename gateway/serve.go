package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve runs both listeners until the context ends, then lets requests end for
// up to ten seconds. It closes the listeners.
func (g *Gateway) Serve(ctx context.Context, node, boot net.Listener) error {
	certificate := g.cfg.CA.NewServer(g.host, "localhost", "127.0.0.1", "::1")
	// A handshake may take as long as headers may: while a whole fleet comes back, it
	// waits for a processor, and one that is given up was for nothing.
	nodeServer := &http.Server{Handler: g.NodeHandler(), ReadHeaderTimeout: 30 * time.Second, ReadTimeout: 60 * time.Second,
		WriteTimeout: g.store.SeenEvery() + 60*time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: quiet(g.log),
		// Asked for and not judged here: call-in and join come without one, renewal
		// may come with one that has expired. Each request is judged on its own.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate.Certificate, ClientAuth: tls.RequestClientCert}}
	bootServer := &http.Server{Handler: g.BootHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: quiet(g.log)}
	if _, err := certificate.Certificate(nil); err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	defer stop()
	go g.Run(background)
	ended := make(chan error, 2)
	go func() { ended <- serveEnd("machines", nodeServer.ServeTLS(node, "", "")) }()
	go func() { ended <- serveEnd("boot files", bootServer.Serve(boot)) }()
	var failed error
	running := 2
	select {
	case <-ctx.Done():
	case failed = <-ended:
		running--
	}
	stop()
	patience, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer done()
	for _, s := range []*http.Server{nodeServer, bootServer} {
		if err := s.Shutdown(patience); err != nil {
			s.Close()
		}
	}
	for range running {
		failed = errors.Join(failed, <-ended)
	}
	return failed
}

func serveEnd(what string, err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

// quiet is net/http's own log: handshakes that scanners break off are no
// warning of ours.
func quiet(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
