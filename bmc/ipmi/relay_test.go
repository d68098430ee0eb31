package ipmi_test

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/bettercompute/compute/bmc/ipmi/ipmisim"
)

// relay is a UDP relay in front of ipmi_sim for what that cannot be made to do.
// With cipher suite 1, which neither signs nor encrypts, it can read and change
// the messages.
type relay struct {
	port   int
	server *net.UDPConn
	sim    *net.UDPAddr
	mu     sync.Mutex
	// sent counts the requests by network function and command, openSuites are
	// the authentication algorithms asked for in Open Session.
	sent       map[[2]byte]int
	openSuites []byte
	// code, when not 0, replaces the completion code of Chassis Control after it
	// was acted upon; withhold keeps that many of the requests from the machine;
	// lose loses that many of its answers.
	code           byte
	withhold, lose int
	// codes replace the completion codes of the next answers to a command, which
	// the machine acted upon.
	codes map[[2]byte][]byte
	// full answers that many Open Sessions with "insufficient resources"; opened
	// and rakp2, when not 0, are the status of every Open Session and RAKP 2.
	full          int
	opened, rakp2 byte
	// roles is the greatest privilege that RAKP 1 may ask for, 0 any; asked are
	// those that were asked for.
	roles byte
	asked []byte
	// bootWrites are the data of Set System Boot Options, as they came by.
	bootWrites [][]byte
}

func startRelay(t *testing.T, s *ipmiSim) *relay {
	t.Helper()
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{server: server, sim: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.Port}, sent: map[[2]byte]int{}}
	r.port = server.LocalAddr().(*net.UDPAddr).Port //nolint:forcetypeassert // of a UDP socket
	var running sync.WaitGroup
	running.Go(func() { r.serve(&running) })
	t.Cleanup(func() {
		_ = server.Close()
		running.Wait()
	})
	return r
}

// serve relays each client by a socket of its own.
func (r *relay) serve(running *sync.WaitGroup) {
	clients := map[string]*net.UDPConn{}
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	buf := make([]byte, 2048)
	for {
		n, from, err := r.server.ReadFromUDP(buf)
		if err != nil {
			return
		}
		up := clients[from.String()]
		if up == nil {
			if up, err = net.DialUDP("udp", nil, r.sim); err != nil {
				return
			}
			clients[from.String()] = up
			running.Go(func() { r.answers(up, from) })
		}
		if r.request(buf[:n]) {
			_, _ = up.Write(buf[:n])
		}
	}
}

func (r *relay) answers(up *net.UDPConn, to *net.UDPAddr) {
	buf := make([]byte, 2048)
	for {
		n, err := up.Read(buf)
		if err != nil {
			return
		}
		if r.answer(buf[:n]) {
			_, _ = r.server.WriteToUDP(buf[:n], to)
		}
	}
}

// message is the IPMI message of an RMCP+ packet that is neither signed nor
// encrypted, with the payload type.
func message(p []byte) (payload byte, m []byte) {
	if len(p) < 16 || p[3] != 7 || p[4] != 6 {
		return 0xff, nil
	}
	n := int(binary.LittleEndian.Uint16(p[14:]))
	if len(p) < 16+n {
		return 0xff, nil
	}
	return p[5] & 0x3f, p[16 : 16+n]
}

const (
	payloadIPMI        = 0
	payloadOpenSession = 0x10
	payloadOpened      = 0x11
	payloadRAKP1       = 0x12
	payloadRAKP2       = 0x13

	statusResources = 0x01 // RMCP+ status: insufficient resources to create a session
	statusRole      = 0x0a // RMCP+ status: unauthorized role or privilege level requested
)

var (
	chassisControl = [2]byte{0x00, 0x02}
	bootOptions    = [2]byte{0x00, 0x08}
	setPrivilege   = [2]byte{0x06, 0x3b}
)

// request notes a request and says whether it goes on.
func (r *relay) request(p []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind, m := message(p)
	switch {
	case kind == payloadOpenSession && len(m) > 12:
		r.openSuites = append(r.openSuites, m[12])
	case kind == payloadRAKP1 && len(m) > 24:
		r.asked = append(r.asked, m[24]&0x0f)
	case kind == payloadIPMI && len(m) > 5:
		key := [2]byte{m[1] >> 2, m[5]}
		r.sent[key]++
		if key == bootOptions {
			r.bootWrites = append(r.bootWrites, slices.Clone(m[6:len(m)-1]))
		}
		if key == chassisControl && r.withhold > 0 {
			r.withhold--
			return false
		}
	}
	return true
}

// answer changes an answer and says whether it goes on.
func (r *relay) answer(p []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind, m := message(p)
	switch {
	case kind == payloadOpened && len(m) > 1 && r.full > 0:
		r.full--
		m[1] = statusResources
	case kind == payloadOpened && len(m) > 1 && r.opened > 0:
		m[1] = r.opened
	case kind == payloadRAKP2 && len(m) > 1 && r.rakp2 > 0:
		m[1] = r.rakp2
	case kind == payloadRAKP2 && len(m) > 1 && r.roles > 0 && r.asked[len(r.asked)-1] > r.roles:
		m[1] = statusRole
	}
	if kind != payloadIPMI || len(m) < 8 {
		return true
	}
	key := [2]byte{m[1]>>2 - 1, m[5]}
	if codes := r.codes[key]; len(codes) > 0 {
		r.codes[key] = codes[1:]
		m[6] = codes[0]
		m[len(m)-1] = ipmisim.Checksum(m[3 : len(m)-1])
		return true
	}
	if key != chassisControl {
		return true
	}
	if r.lose > 0 {
		r.lose--
		return false
	}
	if r.code != 0 {
		m[6] = r.code
		m[len(m)-1] = ipmisim.Checksum(m[3 : len(m)-1])
	}
	return true
}

func (r *relay) controls() int { return r.requests(chassisControl) }

// requests is how many requests of a kind came by.
func (r *relay) requests(key [2]byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[key]
}
