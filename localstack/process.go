package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Group runs child processes of a stack: it starts them with their output in a
// log file each, restarts one that ends by itself, and stops all.
type Group struct {
	// LogDir gets NAME.log of each; PIDFile records pids and start times, so
	// that the next run ends what a killed one left behind.
	LogDir, PIDFile string
	// Say receives one line for a person when a child ends and is restarted.
	Say func(line string)

	mu      sync.Mutex
	running map[string]*exec.Cmd
	order   []string
	closing bool
	// hasty counts the last runs of a child that ended soon after their start,
	// and why the last one did.
	hasty map[string]int
	why   map[string]string
	wg    sync.WaitGroup
}

// hastyRun is how soon a run ends that did not get anywhere, and hopeless how
// many of them in a row are no accident.
const (
	hastyRun = 3 * time.Second
	hopeless = 3
)

// Hopeless says why a child ends again and again soon after its start, "" while
// it does not.
func (g *Group) Hopeless(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hasty[name] < hopeless {
		return ""
	}
	return g.why[name]
}

// ended counts a run that ended by itself, and says how: with the last line of
// its log, which is most often the reason.
func (g *Group) ended(name string, ran time.Duration, err error, log string) string {
	why := exitText(err)
	if line := lastLine(log); line != "" {
		why += ": " + line
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hasty == nil {
		g.hasty, g.why = map[string]int{}, map[string]string{}
	}
	g.hasty[name]++
	if ran > hastyRun {
		g.hasty[name] = 0
	}
	g.why[name] = why
	return why
}

// lastLine is the last line of a file, shortened; "" when there is none.
func lastLine(file string) string {
	const most = 400
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, end-64<<10), io.SeekStart)
		if err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(b))
	line := text[strings.LastIndexByte(text, '\n')+1:]
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "..."
	}
	return line
}

// Child is one process of a Group.
type Child struct {
	Name string
	Path string
	Args []string
	Env  []string
}

// Start starts a child and keeps it running until Stop.
func (g *Group) Start(c Child) error {
	if err := os.MkdirAll(g.LogDir, 0o755); err != nil {
		return fmt.Errorf("make the log folder: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(g.LogDir, c.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.Name, err)
	}
	cmd, err := g.spawn(c, log)
	if err != nil {
		log.Close()
		return err
	}
	g.wg.Add(1)
	go g.keep(c, cmd, log)
	return nil
}

func (g *Group) spawn(c Child, log io.Writer) (*exec.Cmd, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return nil, errors.New("the stack is stopping")
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C reaches only us, and we stop the children in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	if g.running == nil {
		g.running = map[string]*exec.Cmd{}
	}
	if _, known := g.running[c.Name]; !known {
		g.order = append(g.order, c.Name)
	}
	g.running[c.Name] = cmd
	if err := RecordPID(g.PIDFile, cmd.Process.Pid); err != nil {
		return nil, err
	}
	return cmd, nil
}

// keep waits for a child and starts it again, at most once a second.
func (g *Group) keep(c Child, cmd *exec.Cmd, log *os.File) {
	defer g.wg.Done()
	defer log.Close()
	for {
		started := time.Now()
		err := cmd.Wait()
		g.mu.Lock()
		closing := g.closing
		g.mu.Unlock()
		if closing {
			return
		}
		why := g.ended(c.Name, time.Since(started), err, log.Name())
		g.Say(fmt.Sprintf("%s ended (%s); starting it again. Its log: %s", c.Name, why, log.Name()))
		if wait := time.Second - time.Since(started); wait > 0 {
			time.Sleep(wait)
		}
		for {
			cmd, err = g.spawn(c, log)
			if err == nil {
				break
			}
			g.mu.Lock()
			closing = g.closing
			g.mu.Unlock()
			if closing {
				return
			}
			g.Say(err.Error())
			time.Sleep(time.Second)
		}
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// Stop ends all children, last started first, each with SIGTERM and after
// grace with SIGKILL.
func (g *Group) Stop(grace time.Duration) {
	g.mu.Lock()
	g.closing = true
	order := append([]string(nil), g.order...)
	g.mu.Unlock()
	done := make(chan struct{})
	go func() {
		g.wg.Wait()
		close(done)
	}()
	for i := len(order) - 1; i >= 0; i-- {
		g.signal(order[i], syscall.SIGTERM)
	}
	select {
	case <-done:
		return
	case <-time.After(grace):
	}
	for _, name := range order {
		g.signal(name, syscall.SIGKILL)
	}
	<-done
}

func (g *Group) signal(name string, sig syscall.Signal) {
	g.mu.Lock()
	cmd := g.running[name]
	g.mu.Unlock()
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Signal(sig) // already gone is what we want
	}
}

// RecordPID appends a process and its start time to a file.
func RecordPID(file string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return nil // gone already: nothing to record
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("record a pid: %w", err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%d %s\n", pid, start); err != nil {
		return fmt.Errorf("record a pid: %w", err)
	}
	return nil
}

// startTime is field 22 of /proc/PID/stat: a pid and its start time name one
// process for good, a pid alone does not. One that has ended and that its
// parent has not yet asked after is gone.
func startTime(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("read the start time of %d: %w", pid, err)
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) > 0 && fields[0] == "Z" {
		return "", fmt.Errorf("read the start time of %d: it has ended", pid)
	}
	if len(fields) < 20 {
		return "", fmt.Errorf("read the start time of %d: short stat", pid)
	}
	return fields[19], nil
}

// leftoverGrace is what a former run's processes get to end in good order.
// Killing them loses nothing, so it is short.
const leftoverGrace = 3 * time.Second

// EndLeftovers ends the processes a file records that still run, all at once,
// and removes the file.
func EndLeftovers(ctx context.Context, file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read recorded pids: %w", err)
	}
	left := map[int]string{} // start times
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue // cut off in the middle of a write
		}
		if pid, err := strconv.Atoi(f[0]); err == nil && pid > 1 {
			left[pid] = f[1]
		}
	}
	signalLeft(left, syscall.SIGTERM)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	kill := time.After(leftoverGrace)
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("end %d processes of a former run: %w", len(left), ctx.Err())
		case <-kill:
			signalLeft(left, syscall.SIGKILL)
		case <-tick.C:
			signalLeft(left, 0)
		}
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("forget recorded pids: %w", err)
	}
	return nil
}

// signalLeft signals those that still are the recorded processes and forgets
// the others; signal 0 only looks.
func signalLeft(left map[int]string, sig syscall.Signal) {
	for pid, start := range left {
		if now, err := startTime(pid); err != nil || now != start {
			delete(left, pid)
			continue
		}
		_ = syscall.Kill(pid, sig) // gone in between is what we want
	}
}
