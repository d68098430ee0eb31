package agent

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// State is the folder in which a joined machine keeps its identity, the last
// good NodeSpec and what became of its commands. Only root can read it.
type State struct{ Dir string }

// The files of a State.
const (
	fileKey      = "key.pem"
	fileCert     = "cert.pem"
	fileIdentity = "identity.json"
	fileLeaving  = "leaving.json" // the identity of a machine that is leaving
	fileSpec     = "spec.json"
	fileStatus   = "status.json"
	fileJoin     = "join.json" // a JoinFile
	fileLock     = "lock"
	dirCommands  = "commands"
)

// Identity is where a machine joined and as what.
type Identity struct {
	GatewayURL    string    `json:"gatewayUrl"`
	CAFingerprint string    `json:"caFingerprint"`
	NodeID        string    `json:"nodeId"`
	Generation    int64     `json:"generation"`
	JoinedAt      time.Time `json:"joinedAt"`
}

// ErrNotJoined says that the machine has not joined, or has left.
var ErrNotJoined = errors.New("this machine has not joined a control plane")

func (s State) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// write puts a file in place whole or not at all, and on the disk before it is
// named.
func (s State) write(b []byte, parts ...string) error {
	target := s.path(parts...)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return fmt.Errorf("make the agent's folder: %w", err)
	}
	f, err := os.OpenFile(target+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the agent's state: %w", err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the agent's state: %w", err)
	}
	if err := os.Rename(target+".new", target); err != nil {
		return fmt.Errorf("put the agent's state in place: %w", err)
	}
	return syncDir(filepath.Dir(target))
}

// syncDir brings the names in a folder to the disk: what was put in place is
// there after a power cut too.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the agent's folder: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("write the agent's folder to the disk: %w", err)
	}
	return nil
}

func (s State) readJSON(v any, parts ...string) error {
	b, err := os.ReadFile(s.path(parts...))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", s.path(parts...), err)
	}
	return nil
}

func (s State) writeJSON(v any, parts ...string) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the agent's state: %w", err)
	}
	return s.write(b, parts...)
}

// Identity reads who the machine joined as.
func (s State) Identity() (Identity, error) {
	return s.readIdentity(fileIdentity)
}

// ErrDamaged says that the file which names the identity cannot be read as such.
var ErrDamaged = errors.New("the identity of this machine is damaged (nodeagent join writes it anew, nodeagent leave removes it)")

func (s State) readIdentity(file string) (Identity, error) {
	var id Identity
	b, err := os.ReadFile(s.path(file))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return id, ErrNotJoined
	case err != nil:
		return id, fmt.Errorf("read the identity of this machine: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil {
		return id, fmt.Errorf("%w: %s: %w", ErrDamaged, s.path(file), err)
	}
	return id, nil
}

// key reads the machine's key.
func (s State) key() (crypto.Signer, error) {
	b, err := os.ReadFile(s.path(fileKey))
	if err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key", s.path(fileKey))
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s holds no PKCS#8 key", s.path(fileKey))
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds no ECDSA key", s.path(fileKey))
	}
	return key, nil
}

// makeKey reads the machine's key, and makes it when there is none.
func (s State) makeKey() (crypto.Signer, error) {
	have, err := s.key()
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return have, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the machine's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write the machine's key: %w", err)
	}
	return key, s.write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), fileKey)
}

// certificate reads the machine's certificate with its key.
func (s State) certificate() (*tls.Certificate, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(s.path(fileCert))
	if err != nil {
		return nil, fmt.Errorf("read the machine's certificate: %w", err)
	}
	c, err := readCertificate(b, key)
	if err != nil {
		return nil, fmt.Errorf("read the machine's certificate %s: %w", s.path(fileCert), err)
	}
	return c, nil
}

// readCertificate reads a chain, in PEM, of a key.
func readCertificate(chain []byte, key crypto.Signer) (*tls.Certificate, error) {
	c := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	if len(c.Certificate) == 0 {
		return nil, errors.New("there is none")
	}
	var err error
	c.Leaf, err = x509.ParseCertificate(c.Certificate[0])
	return c, err
}

// spec is the last good NodeSpec, nil when there is none.
func (s State) spec() (*fleet.NodeSpec, error) {
	var spec fleet.NodeSpec
	err := s.readJSON(&spec, fileSpec)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return &spec, err
}

// ran is what became of a command. It is written before the command begins, so
// that one which was interrupted is known and not run again.
type ran struct {
	Began time.Time `json:"began"`
	Ended *outcome  `json:"ended,omitempty"`
}

// interrupted is the outcome of a command that began and never ended.
var interrupted = outcome{Error: "the agent was stopped while the command ran; it is not run again"}

// begin notes that a command begins. When it began before, it returns what
// became of it.
func (s State) begin(id string) (*outcome, error) {
	var before ran
	err := s.readJSON(&before, dirCommands, id+".json")
	switch {
	case err == nil && before.Ended != nil:
		return before.Ended, nil
	case err == nil:
		return &interrupted, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	return nil, s.writeJSON(ran{Began: time.Now()}, dirCommands, id+".json")
}

func (s State) end(id string, out outcome) error {
	return s.writeJSON(ran{Began: time.Now(), Ended: &out}, dirCommands, id+".json")
}

// commandsKept is how many commands are remembered. They come one after the
// other, so one that is older than so many others has ended.
const commandsKept = 500

// forgetCommands drops all but the newest commands. Their ids tell which those
// are; the host's clock may have jumped since.
func (s State) forgetCommands() {
	entries, err := os.ReadDir(s.path(dirCommands)) // by name, and so by age
	if err != nil {
		return
	}
	for _, e := range entries[:max(0, len(entries)-commandsKept)] {
		_ = os.Remove(s.path(dirCommands, e.Name())) // tried again another time
	}
}

// leaving is the identity that the machine gives up, and from here on has not: a
// running agent opens no session any more. A leave that was interrupted finds
// it again.
func (s State) leaving() (Identity, error) {
	err := os.Rename(s.path(fileIdentity), s.path(fileLeaving))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Identity{}, fmt.Errorf("begin to leave: %w", err)
	}
	return s.readIdentity(fileLeaving)
}

// ErrRunning says that another agent serves the machine.
var ErrRunning = errors.New("an agent is running on this machine already")

// Lock makes this process the machine's one running agent until release.
func (s State) Lock() (release func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's folder: %w", err)
	}
	f, err := os.OpenFile(s.path(fileLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, ErrRunning
	}
	return func() { f.Close() }, nil
}

// alone does something that no other process may do to the host at the same
// time.
func (s State) alone(fn func() error) error {
	dir, err := os.Open(s.Dir)
	if err != nil {
		return fmt.Errorf("open the agent's folder: %w", err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the agent's folder: %w", err)
	}
	return fn()
}

// remove removes files that may not be there.
func (s State) remove(names ...string) error {
	var errs []error
	for _, f := range names {
		if err := os.Remove(s.path(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the agent's state: %w", err))
		}
	}
	return errors.Join(errs...)
}

// forget removes the identity from the host, last what says that it is leaving.
func (s State) forget() error {
	err := errors.Join(s.remove(fileIdentity, fileCert, fileKey, fileSpec, fileStatus, fileJoin), os.RemoveAll(s.path(dirCommands)))
	if err != nil {
		return err
	}
	if release, err := s.Lock(); err == nil {
		defer release()
		err = s.remove(fileLock)
		return errors.Join(err, s.remove(fileLeaving))
	}
	return s.remove(fileLeaving) // the running agent keeps its lock
}
