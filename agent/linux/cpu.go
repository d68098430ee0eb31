package linux

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// cpus are the processor packages of /proc/cpuinfo.
func (r *reader) cpus() []fleet.CPU {
	f, err := os.Open(filepath.Join(r.root, "proc/cpuinfo"))
	if err != nil {
		r.miss("processors: proc/cpuinfo cannot be read")
		return nil
	}
	defer f.Close()
	packages := map[string]*fleet.CPU{}
	var block map[string]string
	end := func() {
		if len(block) == 0 {
			return
		}
		id := block["physical id"]
		if id == "" {
			id = "0"
		}
		c := packages[id]
		if c == nil {
			c = &fleet.CPU{Model: block["model name"], Slot: "CPU" + id, Arch: arch()}
			c.Cores, _ = strconv.Atoi(block["cpu cores"]) // 0 where the kernel tells none
			packages[id] = c
		}
		c.Threads++
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20) // a line of flags is long
	for lines.Scan() {
		key, value, found := strings.Cut(lines.Text(), ":")
		if !found {
			end()
			block = nil
			continue
		}
		if block == nil {
			block = map[string]string{}
		}
		block[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	end()
	out := make([]fleet.CPU, 0, len(packages))
	for _, c := range packages {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b fleet.CPU) int { return strings.Compare(a.Slot, b.Slot) })
	if len(out) == 0 {
		r.miss("processors: proc/cpuinfo names none")
		return nil
	}
	for _, c := range out {
		if c.Model == "" {
			r.miss("processor %s: the kernel names no model", c.Slot)
		}
		if c.Cores == 0 {
			r.miss("processor %s: the kernel tells no number of cores", c.Slot)
		}
	}
	return out
}

func arch() string {
	if a, ok := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; ok {
		return a
	}
	return runtime.GOARCH
}
