// Package open picks the driver for a BMC. It is the only package beside the
// drivers themselves that knows both.
package open

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/ipmi"
	"github.com/bettercompute/compute/bmc/redfish"
)

// Open opens a BMC with the driver that the target names. With driver auto it
// is Redfish where a Redfish service answers, and IPMI where certainly none
// does; an ipmi address is IPMI.
func Open(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	switch target.Driver {
	case "redfish":
		return openRedfish(ctx, target, opts)
	case "ipmi":
		return openIPMI(ctx, target, opts)
	case "auto", "":
		return detect(ctx, target, opts)
	default:
		return nil, fmt.Errorf("no BMC driver called %q", target.Driver)
	}
}

// The drivers' own Open return their types; a nil one must not become an
// interface that is not nil.
func openRedfish(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	c, err := redfish.Open(ctx, target, opts)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func openIPMI(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	c, err := ipmi.Open(ctx, target, opts)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func detect(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	if target.Address.Scheme == "ipmi" {
		return openIPMI(ctx, target, opts)
	}
	err := redfish.Probe(ctx, target, opts)
	if err == nil {
		return openRedfish(ctx, target, opts)
	}
	if err := mayFallBack(target, err); err != nil {
		return nil, err
	}
	c, ipmiErr := openIPMI(ctx, target, opts)
	var e *bmc.Error
	if errors.As(ipmiErr, &e) && e.Kind == bmc.KindUnreachable {
		both := *e
		both.Cause = fmt.Sprintf("no Redfish service (%v) and no IPMI (%s)", err, e.Cause)
		return nil, &both
	}
	return c, ipmiErr
}

// mayFallBack says, after Redfish was not found, why IPMI is not to be tried
// either. Silence or a busy service is no proof that there is no Redfish: a BMC
// that restarts must not be taken for one of IPMI. A failure of trust or of
// authentication is never answered by a weaker protocol.
func mayFallBack(target bmc.Target, err error) error {
	kind := bmc.KindOf(err)
	none := kind == bmc.KindUnsupported || kind == bmc.KindProtocol || kind == bmc.KindUnreachable && errors.Is(err, syscall.ECONNREFUSED)
	if !none {
		return err
	}
	if fits := ipmi.Fits(target.Username, target.Password); fits != nil {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: "find the driver of " + target.Address.String(),
			Cause: fmt.Sprintf("no Redfish service answers, and IPMI is not tried: %v", fits), Remedy: "check the address, or use shorter credentials", Err: err, Unsent: true}
	}
	return nil
}

// Certificate looks at what the BMC shows in the TLS handshake and sends no
// request. An address without TLS shows none: the zero value.
func Certificate(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Certificate, error) {
	if target.Address.Scheme != "https" || target.Driver == "ipmi" {
		return bmc.Certificate{}, nil
	}
	return redfish.LookAt(ctx, target, opts)
}
