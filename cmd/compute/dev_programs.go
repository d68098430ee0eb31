package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// devPrograms are those that a stack runs or puts into a shell's PATH.
var devPrograms = []string{"compute", "computectl", "bmcsim", "nodeagent"}

// makeState makes the folders of a stack's state.
func makeState(state string) error {
	for _, dir := range []string{"log", "bin"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return fmt.Errorf("the stack's folder %s cannot be made or written (--state names another): %w", state, err)
		}
	}
	return nil
}

// placePrograms puts links to the programs of a folder, or of that of this one,
// into a stack's folder. Programs that were built there, as make build does, are
// left alone.
func placePrograms(bin, from string) error {
	if from == "" {
		self, err := os.Executable()
		if err == nil {
			self, err = filepath.EvalSymlinks(self)
		}
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		from = filepath.Dir(self)
	}
	for _, name := range devPrograms {
		there := filepath.Join(bin, name)
		if info, err := os.Lstat(there); err == nil && info.Mode().Type() != fs.ModeSymlink {
			continue
		}
		built := filepath.Join(from, name)
		if _, err := os.Stat(built); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the program %s lies neither in %s nor in %s: build all of them (make build)", name, bin, from)
		}
		if err := link(built, there); err != nil {
			return err
		}
	}
	return nil
}

// link puts a program beside ours, so that .dev/env's PATH finds it.
func link(target, name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	if err := os.Symlink(target, name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}
