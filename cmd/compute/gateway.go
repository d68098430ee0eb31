package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
)

// gatewayOptions are what the gateway is told. Each flag has an environment
// variable, which holds when the flag is not given.
type gatewayOptions struct {
	listen, bootListen  string
	database            string
	keyset, bootKey     string
	caCert, caKey       string
	bootISO, bootEFI    string
	gatewayURL, bootURL string
	timeScale           float64
	verbose             bool
}

func newGatewayCmd() *cobra.Command {
	var o gatewayOptions
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
		RunE: func(cmd *cobra.Command, _ []string) error { return runGateway(cmd.Context(), o, cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	env := func(p *string, name, variable, value, usage string) {
		if v, ok := os.LookupEnv(variable); ok {
			value = v
		}
		f.StringVar(p, name, value, usage+" ("+variable+")")
	}
	env(&o.listen, "listen", "COMPUTE_GATEWAY_LISTEN", "127.0.0.1:7781", "address of the TLS listener")
	env(&o.bootListen, "boot-listen", "COMPUTE_BOOT_LISTEN", "127.0.0.1:7782", "address of the plain listener")
	env(&o.database, "database", "DATABASE_URL", "", "Postgres")
	env(&o.keyset, "keyset", "COMPUTE_KEYSET", "", "file of the keyset that seals secrets")
	env(&o.bootKey, "boot-key", "COMPUTE_BOOT_KEY", "", "file of the key that boot ids and tokens derive from")
	env(&o.caCert, "ca", "COMPUTE_GATEWAY_CA", "", "file of the CA's certificate")
	env(&o.caKey, "ca-key", "COMPUTE_GATEWAY_CA_KEY", "", "file of the CA's key")
	env(&o.bootISO, "boot-iso", "COMPUTE_BOOT_ISO", "", "file of the boot image for virtual media")
	env(&o.bootEFI, "boot-efi", "COMPUTE_BOOT_EFI", "", "file of the boot image for UEFI HTTP boot")
	env(&o.gatewayURL, "gateway-url", "COMPUTE_GATEWAY_URL", "", "URL by which machines reach the TLS listener")
	env(&o.bootURL, "boot-url", "COMPUTE_BOOT_URL", "", "URL by which BMCs and machines reach the plain listener")
	scale, err := strconv.ParseFloat(os.Getenv("COMPUTE_TIME_SCALE"), 64)
	if err != nil {
		scale = 1
	}
	f.Float64Var(&o.timeScale, "time-scale", scale, "divides waiting times, for simulated racks (COMPUTE_TIME_SCALE)")
	f.BoolVar(&o.verbose, "verbose", false, "log each request")
	return cmd
}

func runGateway(ctx context.Context, o gatewayOptions, out io.Writer) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	g, closeStore, err := openGateway(ctx, o, log)
	if err != nil {
		return err
	}
	defer closeStore()
	node, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen for machines: %w", err)
	}
	boot, err := net.Listen("tcp", o.bootListen)
	if err != nil {
		node.Close()
		return fmt.Errorf("listen for boot files: %w", err)
	}
	fmt.Fprintf(out, "gateway ready: machines on %s, boot files on %s\n", node.Addr(), boot.Addr())
	return g.Serve(ctx, node, boot)
}

func openGateway(ctx context.Context, o gatewayOptions, log *slog.Logger) (*gateway.Gateway, func(), error) {
	keys, err := seal.Load(o.keyset)
	if err != nil {
		return nil, nil, err
	}
	bootKey, err := store.LoadBootKey(o.bootKey)
	if err != nil {
		return nil, nil, err
	}
	ca, err := identity.Load(o.caCert, o.caKey)
	if err != nil {
		return nil, nil, err
	}
	s, err := store.Open(ctx, o.database, store.Options{Seal: keys, BootKey: bootKey, BootURL: o.bootURL, GatewayURL: o.gatewayURL, TimeScale: o.timeScale})
	if err != nil {
		return nil, nil, err
	}
	g, err := gateway.New(gateway.Config{Store: s, CA: ca, BootISO: o.bootISO, BootEFI: o.bootEFI, Log: log})
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return g, s.Close, nil
}
