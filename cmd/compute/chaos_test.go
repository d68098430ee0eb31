//go:build chaos

package main

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/localstack"
)

// chaos is lives of machines in the middle of random faults. What is random
// comes from a seed, all but the order in which processes get to run.
type chaos struct {
	*pair
	seed uint64
	// until is when no more faults come about and no more verbs are called.
	until time.Time

	mu sync.Mutex
	// told are the operations that callers were told of, died the times at which
	// the rack was killed, done the faults so far.
	told map[string]bool
	died []time.Time
	done map[string]int
}

// chaosOption is a number that make chaos gives.
func chaosOption(t *testing.T, name string, value int) int {
	t.Helper()
	text := os.Getenv("CHAOS_" + name)
	if text == "" {
		return value
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no number above 0", name, text)
	}
	return n
}

// Machines go through their lives while the processes of the stack, two of each
// stateless one, are killed, frozen and started again at random moments, in any
// order and several at once. Callers repeat what was not answered. In the end
// every node is where it should be, no event was lost or doubled, nothing was
// done to a machine that no operation wanted, and nothing needs a person.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed, nodes, seconds := chaosOption(t, "SEED", 7), chaosOption(t, "NODES", 8), chaosOption(t, "SECONDS", 20)
	t.Logf("make chaos SEED=%d NODES=%d SECONDS=%d", seed, nodes, seconds)
	machines, boot := balance(t), balance(t)
	c := &chaos{seed: uint64(seed), told: map[string]bool{}, done: map[string]int{}}
	c.pair = startPair(t, nodes, "COMPUTE_GATEWAY_URL=https://"+machines.address, "COMPUTE_BOOT_URL=http://"+boot.address)
	c.secondGateway(machines, boot)
	events := c.follow()
	c.until = time.Now().Add(time.Duration(seconds) * time.Second)
	var wg sync.WaitGroup
	wg.Go(c.disturb)
	c.live(&wg)
	wg.Wait()
	t.Logf("faults: %v", c.done)
	if !t.Failed() {
		c.judge(events)
	}
}

// secondGateway starts another gateway, and has both share what machines ask.
func (c *chaos) secondGateway(machines, boot *balancer) {
	c.t.Helper()
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = localstack.FreePort(); err != nil {
			c.t.Fatal(err)
		}
	}
	second := c.dev.gateway()
	second.Name = "gateway-2"
	second.Env = append(second.Env, "COMPUTE_GATEWAY_LISTEN="+loopback(ports[0]), "COMPUTE_BOOT_LISTEN="+loopback(ports[1]))
	if err := c.dev.children.Start(second); err != nil {
		c.t.Fatal(err)
	}
	machines.serve(loopback(c.dev.ports.Gateway), loopback(ports[0]))
	boot.serve(loopback(c.dev.ports.Boot), loopback(ports[1]))
}

// fault is something that happens to the stack for a while.
type fault struct {
	name string
	// often is how many times likelier it is than one of 1.
	often int
	do    func(c *chaos, r *rand.Rand)
}

var faults = []fault{
	{"an API killed", 3, kills("compute api")},
	{"a worker killed", 4, kills("compute worker")},
	{"a gateway killed", 3, kills("compute gateway")},
	{"the rack killed", 1, func(c *chaos, r *rand.Rand) {
		c.mu.Lock()
		c.died = append(c.died, time.Now())
		c.mu.Unlock()
		kills("bmcsim --nodes")(c, r)
	}},
	{"an API frozen", 1, freezes("compute api")},
	{"a worker frozen", 3, freezes("compute worker")},
	{"a gateway frozen", 1, freezes("compute gateway")},
	{"Temporal killed", 2, func(c *chaos, _ *rand.Rand) { c.restartTemporal() }},
	{"Temporal frozen", 1, func(c *chaos, r *rand.Rand) {
		c.signalTemporal(syscall.SIGSTOP)
		standStill(r)
		c.signalTemporal(syscall.SIGCONT)
	}},
	{"Postgres killed", 2, func(c *chaos, _ *rand.Rand) { c.killPostgres(); c.restartPostgres() }},
	{"Postgres restarted", 1, func(c *chaos, r *rand.Rand) {
		how := []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT}[r.IntN(2)] // fast, immediate
		if err := syscall.Kill(c.dev.pg.PID, how); err != nil {
			c.t.Error(err)
		}
		<-c.dev.pg.Exited()
		c.restartPostgres()
	}},
}

// kills kills one of the processes with these arguments; the stack starts it
// again.
func kills(args string) func(*chaos, *rand.Rand) {
	return func(c *chaos, r *rand.Rand) {
		if pid := c.one(r, args); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // ended already, it is as well
		}
	}
}

// freezes stops one of the processes with these arguments for a while.
func freezes(args string) func(*chaos, *rand.Rand) {
	return func(c *chaos, r *rand.Rand) {
		pid := c.one(r, args)
		if pid == 0 {
			return
		}
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		standStill(r)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// restartTemporal kills the dev server and starts it again.
func (c *chaos) restartTemporal() {
	c.t.Helper()
	c.signalTemporal(syscall.SIGKILL)
	<-c.dev.temporal.Exited()
	if err := c.dev.startTemporal(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// standStill lasts between half a minute and two of the rack's.
func standStill(r *rand.Rand) {
	time.Sleep((30*time.Second + rand.N(90*time.Second)*time.Duration(r.IntN(2))) / pairScale)
}

// one is one of the processes with these arguments, 0 when none runs now.
func (c *chaos) one(r *rand.Rand, args string) int {
	var pids []int
	for pid, have := range c.stack.processes(c.t) {
		if strings.Contains(have, "/"+args) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return 0
	}
	slices.Sort(pids)
	return pids[r.IntN(len(pids))]
}

// disturb brings faults about, one to three at once. Two of a kind are not at
// once: Postgres is killed when it is there.
func (c *chaos) disturb() {
	r := rand.New(rand.NewPCG(c.seed, 0))
	var often []fault
	for _, f := range faults {
		often = append(often, slices.Repeat([]fault{f}, f.often)...)
	}
	for {
		time.Sleep(500*time.Millisecond + time.Duration(r.IntN(3000))*time.Millisecond)
		if time.Now().After(c.until) {
			return
		}
		var wg sync.WaitGroup
		hit := map[string]bool{}
		for range 1 + r.IntN(3) {
			f, own := often[r.IntN(len(often))], rand.New(rand.NewPCG(c.seed, r.Uint64()))
			whom := f.name[:strings.LastIndex(f.name, " ")]
			if hit[whom] {
				continue
			}
			hit[whom] = true
			c.done[f.name]++
			wg.Go(func() { f.do(c, own) })
		}
		wg.Wait()
	}
}

// balancer hands connections to one of several servers that takes them.
type balancer struct {
	address string
	l       net.Listener
	turn    atomic.Uint32
}

func balance(t *testing.T) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &balancer{address: l.Addr().String(), l: l}
}

func (b *balancer) serve(servers ...string) {
	go func() {
		for {
			conn, err := b.l.Accept()
			if err != nil {
				return
			}
			go b.carry(conn, servers)
		}
	}()
}

func (b *balancer) carry(conn net.Conn, servers []string) {
	defer conn.Close()
	first := int(b.turn.Add(1))
	for i := range servers {
		up, err := net.DialTimeout("tcp", servers[(first+i)%len(servers)], time.Second)
		if err != nil {
			continue
		}
		defer up.Close()
		ended := make(chan struct{}, 2)
		for _, way := range [][2]net.Conn{{up, conn}, {conn, up}} {
			go func() {
				_, _ = io.Copy(way[0], way[1]) // either side may be killed
				ended <- struct{}{}
			}()
		}
		<-ended
		return
	}
}

// tell notes that a caller was told of an operation.
func (c *chaos) tell(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[id] = true
}
