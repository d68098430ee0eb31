package ipmi_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/ipmi"
	"github.com/bettercompute/compute/fleet"
)

const (
	user     = "admin"
	password = "s3cret-pass"
	guid     = "33221100554477668899aabbccddeeff"
)

// ipmiSim is one real ipmi_sim with a machine of its own: what the machine is
// told goes through a chassis control program, whose state is in files.
type ipmiSim struct {
	t    *testing.T
	dir  string
	port int
}

// chassis is ipmi_sim's external chassis control program. Every change is a
// line in calls; a file "refuse" makes it fail.
const chassis = `#!/bin/sh
dir=$1; shift
verb=$1; shift
case $verb in
get) for p in "$@"; do
  case $p in
    power) echo "power:$(cat $dir/power)" ;;
    boot) echo "boot:$(cat $dir/boot)" ;;
  esac
done ;;
set)
  echo "$@" >> $dir/calls
  if [ -e $dir/refuse ]; then exit 1; fi
  while [ $# -gt 1 ]; do
    case $1 in
      power|boot) echo "$2" > $dir/$1 ;;
      shutdown) if [ ! -e $dir/deaf ]; then echo 0 > $dir/power; fi ;;
    esac
    shift 2
  done ;;
check) : ;;
esac
`

func startSim(t *testing.T) *ipmiSim {
	t.Helper()
	s := &ipmiSim{t: t, dir: t.TempDir(), port: freePort(t)}
	s.write("power", "0\n", 0o600)
	s.write("boot", "none\n", 0o600)
	s.write("calls", "", 0o600)
	s.write("chassis", chassis, 0o700)
	s.write("fru.bin", string(fru("Acme", "GPU Server 8", "SN-0042")), 0o600)
	s.write("lan.conf", fmt.Sprintf(`name "sim"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid %s
  endlan
  chassis_control "%s/chassis %s"
  user 2 true %q %q admin 10
`, s.port, guid, s.dir, s.dir, user, password), 0o600)
	s.write("sim.emu", fmt.Sprintf(`mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_set_guid 0x20 %s
mc_add_fru_data 0x20 0 %d file 0 "%s/fru.bin"
mc_enable 0x20
`, guid, len(fru("Acme", "GPU Server 8", "SN-0042")), s.dir), 0o600)
	cmd := exec.CommandContext(t.Context(), "ipmi_sim", "-c", s.dir+"/lan.conf", "-f", s.dir+"/sim.emu", "-s", s.dir+"/state", "-n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := os.Mkdir(s.dir+"/state", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("ipmi_sim: %s\ncalls: %s", out.String(), s.read("calls"))
		}
	})
	s.awaitUp()
	return s
}

func (s *ipmiSim) write(name, content string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), mode); err != nil {
		s.t.Fatal(err)
	}
}

func (s *ipmiSim) read(name string) string {
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// awaitUp pings until the simulator answers (RMCP presence ping).
func (s *ipmiSim) awaitUp() {
	s.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "udp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 64)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		// Until the port is open a read fails at once.
		_, _ = conn.Write([]byte{6, 0, 0xff, 6, 0, 0, 0x11, 0xbe, 0x80, 1, 0, 0})
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := conn.Read(buf); err == nil && n > 0 {
			return
		}
	}
	s.t.Fatal("ipmi_sim does not answer")
}

// changes are the changes that the machine was told.
func (s *ipmiSim) changes() []string {
	return strings.FieldsFunc(s.read("calls"), func(r rune) bool { return r == '\n' })
}

func (s *ipmiSim) power() bmc.PowerState {
	if strings.TrimSpace(s.read("power")) == "1" {
		return bmc.PowerOn
	}
	return bmc.PowerOff
}

func (s *ipmiSim) boot() bmc.BootTarget {
	return map[string]bmc.BootTarget{"none": bmc.BootNone, "pxe": bmc.BootPXE, "default": bmc.BootDisk, "disk": bmc.BootDisk, "cdrom": bmc.BootCD}[strings.TrimSpace(s.read("boot"))]
}

func (s *ipmiSim) target() bmc.Target { return targetAt(s.t, s.port) }

func targetAt(t *testing.T, port int) bmc.Target {
	t.Helper()
	a, err := fleet.ParseBMCAddress(fmt.Sprintf("ipmi://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return bmc.Target{Address: a, Driver: "ipmi", Username: user, Password: password}
}

func freePort(t *testing.T) int {
	t.Helper()
	c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port //nolint:forcetypeassert // of a UDP socket
}

// waits are short: ipmi_sim answers and acts at once.
func waits() bmc.Waits {
	return bmc.Waits{Request: 20 * time.Second, Poll: 20 * time.Millisecond, Busy: 40 * time.Millisecond, Change: 4 * time.Second, Post: 2 * time.Second}
}

func openIPMI(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error) {
	return ipmi.Open(ctx, target, opts)
}

func open(t *testing.T, target bmc.Target, opts bmc.Options) bmc.Client {
	t.Helper()
	if opts.Waits == (bmc.Waits{}) {
		opts.Waits = waits()
	}
	c, err := ipmi.Open(t.Context(), target, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantKind(t *testing.T, err error, kind bmc.Kind) {
	t.Helper()
	if got := bmc.KindOf(err); got != kind {
		t.Fatalf("error kind %q, want %q: %v", got, kind, err)
	}
}

// fru builds FRU data with a product area (IPMI Platform Management FRU
// Information Storage Definition 1.0).
func fru(maker, name, serial string) []byte {
	product := []byte{1, 0, 0}
	for _, f := range []string{maker, name, "PN-1", "1.0", serial, ""} {
		product = append(product, 0xc0|byte(len(f))) //nolint:gosec // short texts
		product = append(product, f...)
	}
	product = append(product, 0xc1)
	for len(product)%8 != 7 {
		product = append(product, 0)
	}
	product[1] = byte((len(product) + 1) / 8) //nolint:gosec // a small area
	product = append(product, checksum(product))
	header := []byte{1, 0, 0, 0, 1, 0, 0}
	return append(append(header, checksum(header)), product...)
}

func checksum(b []byte) byte {
	var sum byte
	for _, x := range b {
		sum += x
	}
	return -sum
}
