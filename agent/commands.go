package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/bettercompute/compute/fleet"
)

// run does what a command says and returns the data of its result, which can
// come with an error.
func (r *runner) run(ctx context.Context, cmd command, progress Progress) (any, error) {
	switch cmd.Type {
	case TypeInventory:
		return r.host.Inventory(ctx)
	case TypeTest:
		return r.test(ctx, cmd, progress)
	case TypeWriteImage:
		return r.writeImage(ctx, cmd, progress)
	case TypeConfigDrive:
		return nil, r.configDrive(ctx, cmd)
	case TypeErase:
		return r.erase(ctx, cmd, progress)
	case TypeRescue:
		args, err := decode[rescueArgs](cmd)
		if err != nil {
			return nil, err
		}
		return nil, r.host.Rescue(ctx, args.SSHKeys)
	case TypeFinish:
		return nil, r.host.Finish(ctx)
	default:
		return nil, unsupported("command " + cmd.Type)
	}
}

// test runs tests one after the other: they would spoil each other's numbers.
func (r *runner) test(ctx context.Context, cmd command, progress Progress) (any, error) {
	args, err := decode[testArgs](cmd)
	if err != nil {
		return nil, err
	}
	data := testData{Tests: []TestResult{}}
	var failed []string
	for i, name := range args.Tests {
		done := i * 100 / len(args.Tests)
		progress(done, name)
		res, err := r.host.Test(ctx, name, func(percent int, detail string) {
			progress(done+max(percent, 0)/len(args.Tests), name+": "+detail)
		})
		res.Name = name
		if err != nil {
			res.OK, res.Detail = false, err.Error()
		}
		if !res.OK {
			failed = append(failed, name+" ("+res.Detail+")")
		}
		data.Tests = append(data.Tests, res)
		if ctx.Err() != nil {
			return data, context.Cause(ctx)
		}
	}
	if len(failed) > 0 {
		return data, fmt.Errorf("failed tests: %s", strings.Join(failed, "; "))
	}
	return data, nil
}

func (r *runner) writeImage(ctx context.Context, cmd command, progress Progress) (any, error) {
	image, err := decode[WriteImage](cmd)
	if err != nil {
		return nil, err
	}
	if image.Size == 0 {
		if image.Size, err = imageSize(ctx, r.cfg.HTTP, image); err != nil {
			return nil, err
		}
	}
	inv, err := r.host.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for the disks: %w", err)
	}
	disk, err := ChooseRootDevice(inv.Disks, image.Size, image.RootDevice)
	if err != nil {
		return nil, err
	}
	progress(0, "writing to disk "+disk.Serial)
	r.root = nil
	w, err := r.host.WriteImage(ctx, disk, image, progress)
	if err != nil {
		return nil, err
	}
	if want := strings.TrimPrefix(image.Checksum, "sha256:"); w.SHA256 != want {
		return nil, fmt.Errorf("the image read has sha256 %s, asked was %s", w.SHA256, want)
	}
	r.root = &disk
	return writtenData{Disk: writtenDisk{Serial: disk.Serial, SizeBytes: disk.SizeBytes}, SHA256: w.SHA256, Bytes: w.Bytes}, nil
}

func (r *runner) configDrive(ctx context.Context, cmd command) error {
	docs, err := decode[ConfigDrive](cmd)
	if err != nil {
		return err
	}
	if docs.Disk == "" {
		if r.root == nil {
			return errors.New("no image was written since the machine was started, and the command names no disk")
		}
		return r.host.ConfigDrive(ctx, *r.root, docs)
	}
	inv, err := r.host.Inventory(ctx)
	if err != nil {
		return fmt.Errorf("look for the disks: %w", err)
	}
	i := slices.IndexFunc(inv.Disks, func(d fleet.Disk) bool { return d.Serial == docs.Disk })
	if i < 0 {
		return fmt.Errorf("disk %s is not there: %w", docs.Disk, ErrNoAnswer)
	}
	return r.host.ConfigDrive(ctx, inv.Disks[i], docs)
}

// erase erases disks side by side: those named, or, with none named, all fixed
// ones. A disk in skip that does not answer is recorded as skipped; one that
// does is erased like the others.
func (r *runner) erase(ctx context.Context, cmd command, progress Progress) (any, error) {
	args, err := decode[eraseArgs](cmd)
	if err != nil {
		return nil, err
	}
	if args.Method != string(fleet.EraseMetadata) && args.Method != string(fleet.EraseFull) {
		return nil, unsupported("erase method " + args.Method)
	}
	serials := slices.Clone(args.Disks)
	if len(serials) == 0 {
		if serials, err = r.fixedSerials(ctx); err != nil {
			return nil, err
		}
		for _, s := range args.Skip {
			if !slices.Contains(serials, s) {
				serials = append(serials, s)
			}
		}
	}
	records := make([]fleet.DiskErase, len(serials))
	all := &sharedProgress{progress: progress, percent: make([]int, len(serials))}
	var wg sync.WaitGroup
	for i, serial := range serials {
		wg.Go(func() {
			records[i] = r.eraseDisk(ctx, serial, args, func(percent int, detail string) { all.set(i, percent, serial+": "+detail) })
			all.set(i, 100, serial+": "+records[i].Method+" "+records[i].Result)
		})
	}
	wg.Wait()
	var failed []string
	for _, d := range records {
		if d.Result != "done" {
			failed = append(failed, "disk "+d.Serial+": "+d.Detail)
		}
	}
	if len(failed) > 0 {
		return eraseData{Disks: records}, fmt.Errorf("not erased: %s", strings.Join(failed, "; "))
	}
	return eraseData{Disks: records}, nil
}

func (r *runner) fixedSerials(ctx context.Context) ([]string, error) {
	inv, err := r.host.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for the disks: %w", err)
	}
	var out []string
	for _, d := range inv.Disks {
		switch {
		case d.Removable:
		case d.Serial == "":
			return nil, fmt.Errorf("disk %s has no serial, so its erase could not be recorded", d.Path)
		default:
			out = append(out, d.Serial)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the machine shows no fixed disk")
	}
	return out, nil
}

func (r *runner) eraseDisk(ctx context.Context, serial string, args eraseArgs, progress Progress) fleet.DiskErase {
	err := r.host.Erase(ctx, serial, args.Method, progress)
	switch {
	case err == nil:
		return fleet.DiskErase{Serial: serial, Method: args.Method, Result: "done"}
	case errors.Is(err, ErrNoAnswer) && slices.Contains(args.Skip, serial):
		return fleet.DiskErase{Serial: serial, Method: "skipped", Result: "done", Detail: err.Error()}
	default:
		return fleet.DiskErase{Serial: serial, Method: args.Method, Result: "failed", Detail: err.Error()}
	}
}

// sharedProgress makes one percentage of several.
type sharedProgress struct {
	progress Progress
	mu       sync.Mutex
	percent  []int
}

func (s *sharedProgress) set(i, percent int, detail string) {
	s.mu.Lock()
	s.percent[i] = max(percent, 0)
	sum := 0
	for _, p := range s.percent {
		sum += p
	}
	n := len(s.percent)
	s.mu.Unlock()
	s.progress(sum/n, detail)
}
