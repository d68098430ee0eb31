package linux

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/compute/agent"
)

// clockTolerance is how far the machine's clock may be off: certificates and
// logs bear it.
const clockTolerance = 30 * time.Second

// cpuTestRounds is what each core works through, in rounds of one MiB.
const cpuTestRounds = 4096

// Test runs one of the tests that this agent has: cpu, nic and clock.
func (h *Host) Test(ctx context.Context, name string, progress agent.Progress) (agent.TestResult, error) {
	switch name {
	case "cpu":
		return testCPU(ctx, cpuTestRounds, progress)
	case "nic":
		return h.testNIC()
	case "clock":
		return h.testClock(ctx)
	default:
		return agent.TestResult{}, notBuilt("the " + name + " test")
	}
}

// testCPU makes every core compute the same and compares the results: a core
// that computes wrong differs.
func testCPU(ctx context.Context, rounds int, progress agent.Progress) (agent.TestResult, error) {
	cores := runtime.NumCPU()
	sums := make([][]byte, cores)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range cores {
		wg.Go(func() { sums[i] = work(ctx, rounds) })
	}
	progress(0, fmt.Sprintf("%d cores compute", cores))
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return agent.TestResult{}, err
	}
	took := time.Since(began).Seconds()
	res := agent.TestResult{OK: true, Values: map[string]float64{"cores": float64(cores), "MiBps": float64(cores*rounds) / took, "seconds": took},
		Detail: fmt.Sprintf("%d cores computed the same", cores)}
	for i := range sums {
		if !bytes.Equal(sums[i], sums[0]) {
			return agent.TestResult{OK: false, Values: res.Values, Detail: fmt.Sprintf("core worker %d computed another result than the first", i)}, nil
		}
	}
	return res, nil
}

func work(ctx context.Context, rounds int) []byte {
	block := bytes.Repeat([]byte{0x5a, 0xa5, 0x00, 0xff}, 1<<18)
	h := sha256.New()
	for range rounds {
		if ctx.Err() != nil {
			return nil
		}
		h.Write(block)
	}
	return h.Sum(nil)
}

// testNIC looks for the link of every port; one that is up is enough, since not
// every port of a server is cabled.
func (h *Host) testNIC() (agent.TestResult, error) {
	r := &reader{root: h.Root}
	nics := r.nics()
	if len(nics) == 0 {
		return agent.TestResult{OK: false, Detail: "no network port is seen"}, nil
	}
	var words []string
	up := 0
	for _, n := range nics {
		state := "down"
		if n.LinkUp != nil && *n.LinkUp {
			state = "up"
			up++
			if n.SpeedMbps > 0 {
				state = fmt.Sprintf("up at %d Mbit/s", n.SpeedMbps)
			}
		}
		words = append(words, n.Name+" "+state)
	}
	return agent.TestResult{OK: up > 0, Detail: strings.Join(words, ", "), Values: map[string]float64{"ports": float64(len(nics)), "linksUp": float64(up)}}, nil
}

// testClock compares the machine's clock with the control plane's.
func (h *Host) testClock(ctx context.Context) (agent.TestResult, error) {
	if h.Reference == nil {
		return agent.TestResult{}, errors.New("no clock is known to compare with")
	}
	before := time.Now()
	there, err := h.Reference(ctx)
	if err != nil {
		return agent.TestResult{}, fmt.Errorf("ask for the time: %w", err)
	}
	after := time.Now()
	off := before.Add(after.Sub(before) / 2).Sub(there)
	return agent.TestResult{OK: off.Abs() <= clockTolerance, Detail: fmt.Sprintf("the clock is off by %s", off.Round(time.Millisecond)),
		Values: map[string]float64{"offsetSeconds": off.Seconds()}}, nil
}
