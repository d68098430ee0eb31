package localstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"
	"gopkg.in/yaml.v3"

	namespacepb "go.temporal.io/api/namespace/v1"
)

// TemporalConfig is temporal-dev.yaml.
type TemporalConfig struct {
	IP               string            `yaml:"ip"`
	Port             int               `yaml:"port"`
	UIPort           int               `yaml:"uiPort"`
	Namespace        string            `yaml:"namespace"`
	DBFilename       string            `yaml:"dbFilename"`
	SQLitePragmas    map[string]string `yaml:"sqlitePragmas"`
	SearchAttributes map[string]string `yaml:"searchAttributes"`
	Retention        time.Duration     `yaml:"retention"`
	DynamicConfig    map[string]any    `yaml:"dynamicConfig"`
	// ExtraNamespaces are made beside Namespace; only tests use them.
	ExtraNamespaces []string `yaml:"-"`
	// Headless leaves the Web UI out.
	Headless bool `yaml:"-"`
}

// ReadTemporalConfig reads temporal-dev.yaml; a key it does not know is an
// error.
func ReadTemporalConfig(r io.Reader) (TemporalConfig, error) {
	var c TemporalConfig
	dec := yaml.NewDecoder(r)
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("temporal-dev.yaml: %w", err)
	}
	if c.Namespace == "" || c.IP == "" {
		return c, errors.New("temporal-dev.yaml: ip and namespace are needed")
	}
	return c, nil
}

// flags are the dev server's flags for the configuration, in a fixed order.
func (c TemporalConfig) flags(dir string) ([]string, error) {
	f := []string{"server", "start-dev", "--ip", c.IP, "--port", strconv.Itoa(c.Port), "--log-level", "warn"}
	if c.Headless {
		f = append(f, "--headless")
	} else {
		f = append(f, "--ui-port", strconv.Itoa(c.UIPort))
	}
	for _, ns := range append([]string{c.Namespace}, c.ExtraNamespaces...) {
		f = append(f, "--namespace", ns)
	}
	if c.DBFilename != "" {
		f = append(f, "--db-filename", filepath.Join(dir, c.DBFilename))
	}
	for _, k := range sortedKeys(c.SQLitePragmas) {
		f = append(f, "--sqlite-pragma", k+"="+c.SQLitePragmas[k])
	}
	for _, k := range sortedKeys(c.SearchAttributes) {
		f = append(f, "--search-attribute", k+"="+c.SearchAttributes[k])
	}
	for _, k := range sortedKeys(c.DynamicConfig) {
		v, err := json.Marshal(c.DynamicConfig[k])
		if err != nil {
			return nil, fmt.Errorf("temporal-dev.yaml: dynamicConfig.%s: %w", k, err)
		}
		f = append(f, "--dynamic-config-value", k+"="+string(v))
	}
	return f, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Temporal is a running dev server.
type Temporal struct {
	// Address is the frontend's host:port; UI the Web UI's URL.
	Address, UI, Namespace string
	PID                    int

	wait chan struct{}
}

// temporalPIDs is the file in a dev server's folder that records its process.
const temporalPIDs = "pid"

// StartTemporal starts the dev server with its state in dir and waits until
// the namespace answers with the configured retention. One that a killed run
// left there is ended first.
func StartTemporal(ctx context.Context, binary, dir string, c TemporalConfig, log io.Writer, detach bool) (*Temporal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	if err := StopTemporal(ctx, dir); err != nil {
		return nil, err
	}
	flags, err := c.flags(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, flags...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !detach, Setsid: detach}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the Temporal dev server: %w", err)
	}
	t := &Temporal{Address: fmt.Sprintf("%s:%d", c.IP, c.Port), UI: fmt.Sprintf("http://%s:%d", c.IP, c.UIPort),
		Namespace: c.Namespace, PID: cmd.Process.Pid, wait: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(t.wait)
	}()
	err = RecordPID(filepath.Join(dir, temporalPIDs), t.PID)
	if err == nil {
		err = t.ready(ctx, c)
	}
	if err != nil {
		// Also when the reason is that ctx ended.
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return nil, errors.Join(err, t.Stop(stopping))
	}
	return t, nil
}

// StopTemporal ends a dev server that a killed run left with its state in dir.
func StopTemporal(ctx context.Context, dir string) error {
	return EndLeftovers(ctx, filepath.Join(dir, temporalPIDs))
}

// ready sets the namespace's retention, which also proves that it answers.
func (t *Temporal) ready(ctx context.Context, c TemporalConfig) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = setRetention(ctx, t.Address, c); last == nil {
			return nil
		}
		select {
		case <-t.wait:
			return errors.New("the Temporal dev server ended while starting; see its log")
		case <-ctx.Done():
			return fmt.Errorf("the Temporal dev server did not become ready: %w", last)
		case <-tick.C:
		}
	}
}

func setRetention(ctx context.Context, address string, c TemporalConfig) error {
	cl, err := client.NewNamespaceClient(client.Options{HostPort: address})
	if err != nil {
		return fmt.Errorf("connect to Temporal: %w", err)
	}
	defer cl.Close()
	if c.Retention == 0 {
		_, err = cl.Describe(ctx, c.Namespace)
	} else {
		err = cl.Update(ctx, &workflowservice.UpdateNamespaceRequest{Namespace: c.Namespace,
			Config: &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(c.Retention)}})
	}
	if err != nil {
		return fmt.Errorf("set retention of namespace %s: %w", c.Namespace, err)
	}
	return nil
}

// Exited is closed when the server has ended.
func (t *Temporal) Exited() <-chan struct{} { return t.wait }

// Stop ends the server and waits.
func (t *Temporal) Stop(ctx context.Context) error {
	if err := syscall.Kill(t.PID, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop Temporal (pid %d): %w", t.PID, err)
	}
	select {
	case <-t.wait:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("temporal (pid %d) did not stop: %w", t.PID, ctx.Err())
	}
}

// TemporalBinary returns the path of the temporal CLI, which holds the dev
// server, built from the tools module; a build is kept in the user's cache
// under the versions it was made from. building is called before a build, which
// takes minutes.
func TemporalBinary(ctx context.Context, root string, building func()) (string, error) {
	sums, err := os.ReadFile(filepath.Join(root, "tools", "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the tools module: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	sum := sha256.Sum256(sums)
	path := filepath.Join(cache, "better-compute", "temporal-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	// Two test processes must not build it twice at once.
	held, err := lock(path+".lock", syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer held.Close()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	building()
	cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, "tools"), "-o", path+".new", "github.com/temporalio/cli/cmd/temporal")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the temporal CLI: %w\n%s", err, out)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("put the temporal CLI in place: %w", err)
	}
	return path, nil
}

// ModuleRoot is the folder of this module's go.mod, seen from the working
// directory upwards.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module's root: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "temporal-dev.yaml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not inside a checkout: temporal-dev.yaml was not found in this folder or above")
		}
	}
}
