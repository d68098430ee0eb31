package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/localstack"
)

// env is what all our processes of the stack are told.
func (d *devStack) env() []string {
	var more []string
	if d.waitScale > 0 {
		more = append(more, "COMPUTE_WAIT_SCALE="+strconv.FormatFloat(d.waitScale, 'g', -1, 64))
	}
	more = append(more, []string{
		"DATABASE_URL=" + d.database,
		"TEMPORAL_ADDRESS=" + d.temporalAddress(),
		"TEMPORAL_NAMESPACE=" + d.config.Namespace,
		"COMPUTE_KEYSET=" + d.path("keys", "keyset.json"),
		"COMPUTE_BOOT_KEY=" + d.path("keys", "boot.key"),
		"COMPUTE_GATEWAY_CA=" + d.path("keys", "ca.pem"),
		"COMPUTE_GATEWAY_CA_KEY=" + d.path("keys", "ca-key.pem"),
		"COMPUTE_NODE_CA=" + d.path("keys", "node-ca.pem"),
		"COMPUTE_NODE_CA_KEY=" + d.path("keys", "node-ca-key.pem"),
		"COMPUTE_SSH_CA_KEY=" + d.path("keys", "ssh-ca-key.pem"),
		"COMPUTE_GATEWAY_URL=" + d.gatewayURL(),
		"COMPUTE_BOOT_URL=" + httpURL(d.ports.Boot),
		"COMPUTE_GATEWAY_LISTEN=" + loopback(d.ports.Gateway),
		"COMPUTE_BOOT_LISTEN=" + loopback(d.ports.Boot),
		"COMPUTE_LISTEN=" + loopback(d.ports.API),
		"COMPUTE_ISSUERS=dev=" + httpURL(d.ports.Issuer) + "," + devidp.Audience,
		"COMPUTE_TIME_SCALE=" + strconv.FormatFloat(d.timeScale, 'g', -1, 64),
	}...)
	return append(more, d.settings...)
}

func (d *devStack) gatewayURL() string { return "https://" + loopback(d.ports.Gateway) }

func (d *devStack) temporalAddress() string {
	return net.JoinHostPort(d.config.IP, strconv.Itoa(d.ports.Temporal))
}

func (d *devStack) child(name string, args ...string) localstack.Child {
	return localstack.Child{Name: name, Path: filepath.Join(d.bin, "compute"), Args: append([]string{name}, args...), Env: d.env()}
}

func (d *devStack) api() localstack.Child     { return d.child("api", "--calls-per-second", "5000") }
func (d *devStack) gateway() localstack.Child { return d.child("gateway") }
func (d *devStack) worker() localstack.Child  { return d.child("worker", "--make-current") }

func (d *devStack) bmcsim() localstack.Child {
	args := []string{"--nodes", strconv.Itoa(d.nodes), "--listen", loopback(d.ports.Sim), "--port", strconv.Itoa(d.ports.Machines),
		"--state", d.path("rack"), "--time-scale", strconv.FormatFloat(d.timeScale, 'g', -1, 64)}
	if d.profile != "" {
		args = append(args, "--profile", d.profile)
	}
	return localstack.Child{Name: "bmcsim", Path: filepath.Join(d.bin, "bmcsim"), Args: args}
}

// keysAndSchema makes the keys that are missing and brings the schema up to
// date, as an operator of a production system would.
func (d *devStack) keysAndSchema(ctx context.Context) error {
	for _, args := range [][]string{{"keys", "init", "--dir", d.path("keys")}, {"migrate"}} {
		if err := d.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// run runs one of our commands to its end.
func (d *devStack) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "compute"), args...)
	cmd.Env = append(os.Environ(), d.env()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compute %s: %w\n%s", strings.Join(args[:min(2, len(args))], " "), err, out)
	}
	return nil
}
