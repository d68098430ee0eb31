package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
)

// apiConfig is what compute api is told.
type apiConfig struct {
	stateConfig
	ssh                       sshConfig
	listen, issuers, policies string
	tlsCert, tlsKey           string
	behindProxy               bool
	callsPerSecond            float64
}

func newAPICmd() *cobra.Command {
	var c apiConfig
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve the HTTP API",
		Long: "Serves the HTTP API, its OpenAPI document, /docs, health, metrics and the event stream. Any number may run.\n\n" +
			"It listens on loopback unless TLS is configured or --behind-proxy says that something in front of it does TLS.\n" +
			"SIGHUP reads the policies again; a set that does not parse is refused and the old one stays.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAPI(cmd.Context(), c) },
	}
	c.flags(cmd)
	c.ssh.flags(cmd)
	f := cmd.Flags()
	listen := os.Getenv("COMPUTE_LISTEN")
	if listen == "" {
		listen = "127.0.0.1:7780"
	}
	f.StringVar(&c.listen, "listen", listen, "address to serve on (COMPUTE_LISTEN)")
	f.StringVar(&c.issuers, "issuers", os.Getenv("COMPUTE_ISSUERS"), "trusted OIDC issuers, alias=url,audience separated by blanks (COMPUTE_ISSUERS)")
	f.StringVar(&c.policies, "policies", os.Getenv("COMPUTE_POLICIES"), "Cedar policies in place of the built-in ones (COMPUTE_POLICIES)")
	f.StringVar(&c.tlsCert, "tls-cert", os.Getenv("COMPUTE_TLS_CERT"), "certificate chain (COMPUTE_TLS_CERT)")
	f.StringVar(&c.tlsKey, "tls-key", os.Getenv("COMPUTE_TLS_KEY"), "its key (COMPUTE_TLS_KEY)")
	f.BoolVar(&c.behindProxy, "behind-proxy", false, "a proxy in front does TLS, so another address than loopback is fine")
	f.Float64Var(&c.callsPerSecond, "calls-per-second", 200, "calls an identity may make a second on this process")
	return cmd
}

func runAPI(ctx context.Context, c apiConfig) error {
	if err := loopbackOnly(c.listen, c.tlsCert != "" || c.behindProxy); err != nil {
		return err
	}
	log := newLog()
	stop, err := traced(ctx, "compute-api")
	if err != nil {
		return err
	}
	defer stop()
	st, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	if len(st.BootKey) == 0 {
		return errors.New("no boot key is configured: set COMPUTE_BOOT_KEY (compute keys init makes one)")
	}
	policies, err := authz.New(c.policies)
	if err != nil {
		return err
	}
	issuers, err := api.ParseIssuers(c.issuers)
	if err != nil {
		return err
	}
	sshOptions, err := c.ssh.options()
	if err != nil {
		return err
	}
	srv, err := api.New(api.Options{Store: st, Authz: policies, Issuers: issuers, Log: log, RequestKey: requestKey(st.BootKey), CallsPerSecond: c.callsPerSecond,
		SSH: sshOptions})
	if err != nil {
		return err
	}
	if c.policies != "" {
		go reloadPolicies(ctx, policies, c.policies)
	}
	go srv.KeepSSH(ctx)
	return serve(ctx, c, srv)
}

// requestKey is derived from the key that all processes share.
func requestKey(bootKey []byte) []byte {
	h := hmac.New(sha256.New, bootKey)
	h.Write([]byte("idempotent requests"))
	return h.Sum(nil)
}

// loopbackOnly refuses an address that others reach without TLS.
func loopbackOnly(listen string, secured bool) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("address to serve on: %w", err)
	}
	ip := net.ParseIP(host)
	if secured || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is not loopback: configure TLS (--tls-cert, --tls-key) or pass --behind-proxy", listen)
}

func reloadPolicies(ctx context.Context, policies *authz.Engine, path string) {
	log := newLog()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		if err := policies.Reload(path); err != nil {
			log.ErrorContext(ctx, "policies refused; the old ones stay", "error", err)
			continue
		}
		log.InfoContext(ctx, "policies read again")
	}
}

// serve serves until the context ends, then lets running calls finish.
func serve(ctx context.Context, c apiConfig, served *api.Server) error {
	srv := &http.Server{Handler: served.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	srv.RegisterOnShutdown(served.EndStreams)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.listen)
	if err != nil {
		return fmt.Errorf("serve the API: %w", err)
	}
	failed := make(chan error, 1)
	go func() {
		if c.tlsCert != "" {
			failed <- srv.ServeTLS(l, c.tlsCert, c.tlsKey)
		} else {
			failed <- srv.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the API: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return srv.Close() //nolint:wrapcheck // calls that wait are cut off; what they change is whole or rolled back
	}
	return nil
}
