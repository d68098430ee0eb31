// Package ipmisim gives tests a real ipmi_sim (Debian's openipmi) with a machine
// of its own.
package ipmisim

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// The account of every simulator, and the GUID of its machine.
const (
	User     = "admin"
	Password = "s3cret-pass"
	GUID     = "33221100554477668899aabbccddeeff"
)

// Sim is one real ipmi_sim: what its machine is told goes through a chassis
// control program, whose state is in files of Dir.
type Sim struct {
	t    testing.TB
	Dir  string
	Port int
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

// Config is what a simulator can be other than usual; the zero value is the
// usual one.
type Config struct {
	// Password is another one, of up to 16 bytes: it keeps no more.
	Password string
	GUID     string
	// NoFRU leaves out the board's names.
	NoFRU bool
	// Address and MAC are what it says of its network; "" is a BMC that refuses
	// the question.
	Address, MAC string
}

// lan is ipmi_sim's external program for the network's configuration.
const lan = `#!/bin/sh
[ "$1" = get ] || exit 0
shift
for p in "$@"; do
  case $p in
    ip_addr) echo "ip_addr:%s" ;;
    mac_addr) echo "mac_addr:%s" ;;
  esac
done
`

// Start starts ipmi_sim with a machine that is off, and ends it with the test.
func Start(t testing.TB) *Sim {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith starts one that differs from the usual.
func StartWith(t testing.TB, c Config) *Sim {
	t.Helper()
	c.GUID = cmp.Or(c.GUID, GUID)
	s := &Sim{t: t, Dir: t.TempDir(), Port: FreePort(t)}
	s.Write("power", "0\n", 0o600)
	s.Write("boot", "none\n", 0o600)
	s.Write("calls", "", 0o600)
	s.Write("chassis", chassis, 0o700)
	s.Write("fru.bin", string(fru("Acme", "GPU Server 8", "SN-0042")), 0o600)
	network := ""
	if c.Address != "" {
		s.Write("lan", fmt.Sprintf(lan, c.Address, c.MAC), 0o700)
		network = fmt.Sprintf("lan_config_program %q", s.Dir+"/lan")
	}
	s.Write("lan.conf", fmt.Sprintf(`name "sim"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid %s
    %s
  endlan
  chassis_control "%s/chassis %s"
  user 2 true %q %q admin 10
`, s.Port, c.GUID, network, s.Dir, s.Dir, User, Password), 0o600)
	board := ""
	if !c.NoFRU {
		board = fmt.Sprintf("mc_add_fru_data 0x20 0 %d file 0 \"%s/fru.bin\"\n", len(fru("Acme", "GPU Server 8", "SN-0042")), s.Dir)
	}
	s.Write("sim.emu", fmt.Sprintf(`mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_set_guid 0x20 %s
%smc_enable 0x20
`, c.GUID, board), 0o600)
	cmd := exec.CommandContext(t.Context(), "ipmi_sim", "-c", s.Dir+"/lan.conf", "-f", s.Dir+"/sim.emu", "-s", s.Dir+"/state", "-n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := os.Mkdir(s.Dir+"/state", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("ipmi_sim: %s\ncalls: %s", out.String(), s.Read("calls"))
		}
	})
	s.awaitUp()
	if c.Password != "" {
		s.setPassword(c.Password)
	}
	return s
}

// setPassword sets the account's password as a BMC's own page would: its bytes
// by Set User Password, since the configuration knows no escapes.
func (s *Sim) setPassword(password string) {
	s.t.Helper()
	bytes := make([]byte, 16)
	copy(bytes, password)
	args := []string{"-I", "lanplus", "-H", "127.0.0.1", "-p", strconv.Itoa(s.Port), "-U", User, "-E", "-C", "3", "raw", "0x06", "0x47", "2", "2"}
	for _, b := range bytes {
		args = append(args, strconv.Itoa(int(b)))
	}
	cmd := exec.CommandContext(s.t.Context(), "ipmitool", args...)
	cmd.Env = []string{"IPMITOOL_PASSWORD=" + Password}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("set the password of ipmi_sim: %v\n%s", err, out)
	}
}

// Write writes a file of the machine: power and boot are its state, refuse makes
// its chassis control fail, deaf ignore a request to shut down.
func (s *Sim) Write(name, content string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(content), mode); err != nil {
		s.t.Fatal(err)
	}
}

// Read reads one.
func (s *Sim) Read(name string) string {
	b, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// awaitUp pings until the simulator answers (RMCP presence ping).
func (s *Sim) awaitUp() {
	s.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "udp", fmt.Sprintf("127.0.0.1:%d", s.Port))
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

// FreePort is a UDP port of loopback that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port //nolint:forcetypeassert // of a UDP socket
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
	product = append(product, Checksum(product))
	header := []byte{1, 0, 0, 0, 1, 0, 0}
	return append(append(header, Checksum(header)), product...)
}

// Checksum is the two's complement checksum of IPMI messages and FRU data.
func Checksum(b []byte) byte {
	var sum byte
	for _, x := range b {
		sum += x
	}
	return -sum
}
