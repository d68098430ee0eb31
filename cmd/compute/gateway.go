package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/telemetry"
)

// gatewayConfig is what the gateway is told beside the database and its keys.
type gatewayConfig struct {
	stateConfig
	listen, bootListen string
	caCert, caKey      string
	nodeCA, nodeCAKey  string
	trustDomain        string
	bootISO, bootEFI   string
	verbose            bool
}

func newGatewayCmd() *cobra.Command {
	var c gatewayConfig
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the machines: boot files, call-ins, commands and reports",
		Long: "Runs two listeners. The TLS one takes call-ins and hands out commands; its certificate is made from the CA that machines\n" +
			"pin. The plain one serves boot files by an unguessable id and takes the one-time reports of installed systems; BMCs and\n" +
			"firmware check no CA of ours, so what it serves is good for one power-on. GET /healthz and /readyz on it tell how the\n" +
			"process is. Any number of gateways run side by side.\n\n" +
			"Without --boot-iso the medium that a BMC is told to insert is well-formed and holds nothing but the boot config: enough\n" +
			"for simulated machines, but nothing boots from it. Without --boot-efi nothing is served for HTTP boot.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runGateway(cmd.Context(), c, cmd.OutOrStdout()) },
	}
	c.flags(cmd)
	f := cmd.Flags()
	env := func(p *string, name, variable, value, usage string) {
		if v, ok := os.LookupEnv(variable); ok {
			value = v
		}
		f.StringVar(p, name, value, usage+" ("+variable+")")
	}
	env(&c.listen, "listen", "COMPUTE_GATEWAY_LISTEN", "127.0.0.1:7781", "address of the TLS listener")
	env(&c.bootListen, "boot-listen", "COMPUTE_BOOT_LISTEN", "127.0.0.1:7782", "address of the plain listener")
	env(&c.caCert, "ca", "COMPUTE_GATEWAY_CA", "", "file of the CA's certificate")
	env(&c.caKey, "ca-key", "COMPUTE_GATEWAY_CA_KEY", "", "the CA's key: "+caKeyUsage)
	env(&c.nodeCA, "node-ca", "COMPUTE_NODE_CA", "", "file of the certificate of the CA of nodes; without it no machine can join")
	env(&c.nodeCAKey, "node-ca-key", "COMPUTE_NODE_CA_KEY", "", "the key of the CA of nodes: "+caKeyUsage)
	env(&c.trustDomain, "trust-domain", "COMPUTE_TRUST_DOMAIN", "compute.internal", "domain of the nodes' SPIFFE ids; every node joins again after a change")
	env(&c.bootISO, "boot-iso", "COMPUTE_BOOT_ISO", "", "file of the boot image for virtual media")
	env(&c.bootEFI, "boot-efi", "COMPUTE_BOOT_EFI", "", "file of the boot image for UEFI HTTP boot")
	f.BoolVar(&c.verbose, "verbose", false, "log each request")
	return cmd
}

func runGateway(ctx context.Context, c gatewayConfig, out io.Writer) error {
	level := slog.LevelInfo
	if c.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(telemetry.Logged(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	stop, err := traced(ctx, "compute-gateway")
	if err != nil {
		return err
	}
	defer stop()
	g, closeStore, err := openGateway(ctx, c, log)
	if err != nil {
		return err
	}
	defer closeStore()
	node, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("listen for machines: %w", err)
	}
	boot, err := net.Listen("tcp", c.bootListen)
	if err != nil {
		node.Close()
		return fmt.Errorf("listen for boot files: %w", err)
	}
	fmt.Fprintf(out, "gateway ready: machines on %s, boot files on %s\n", node.Addr(), boot.Addr())
	return g.Serve(ctx, node, boot)
}

func openGateway(ctx context.Context, c gatewayConfig, log *slog.Logger) (*gateway.Gateway, func(), error) {
	if c.keyset == "" || c.bootKey == "" {
		return nil, nil, errors.New("the gateway needs the keyset and the boot key: set COMPUTE_KEYSET and COMPUTE_BOOT_KEY")
	}
	ca, err := identity.Load(c.caCert, c.caKey, openToken)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := c.issuer(ctx, ca, log)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	g, err := gateway.New(gateway.Config{Store: s, CA: ca, Nodes: nodes, BootISO: c.bootISO, BootEFI: c.bootEFI, Log: log})
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return g, s.Close, nil
}

// nodeCAWarning is how long before its end the CA of nodes is warned of.
const nodeCAWarning = 90 * 24 * time.Hour

// issuer opens the CA of nodes, nil when none is configured.
func (c *gatewayConfig) issuer(ctx context.Context, ca *identity.CA, log *slog.Logger) (*identity.Issuer, error) {
	if c.nodeCA == "" {
		log.Warn("no CA of nodes is configured (COMPUTE_NODE_CA): no machine can join")
		return nil, nil
	}
	nodes, err := identity.OpenIssuer(c.nodeCA, c.nodeCAKey, ca.Cert, c.trustDomain, openToken)
	if err != nil {
		return nil, err
	}
	if end := nodes.CA().Cert.NotAfter; time.Until(end) < nodeCAWarning {
		log.Warn("the CA of nodes ends soon; replace it with compute keys rotate-node-ca", "end", end)
	}
	if err := nodes.Ready(ctx); err != nil {
		// Sessions and boots go on without it, and it comes back by itself.
		log.Error("the key of the CA of nodes cannot be used: until it can, no machine can join and no certificate is renewed", "error", err)
	}
	return nodes, nil
}
