// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit statuses of the sandbox that are not CMD's: those of env(1), nohup(1) and timeout(1).
const (
	StatusFailed      = 125 // Evenkeel itself failed; CMD may not have run
	StatusNotRunnable = 126 // CMD was found but cannot be executed
	StatusNotFound    = 127 // CMD was not found
)

// enterConfig is what the last step before CMD does. It crosses an exec as flags.
type enterConfig struct {
	Hosts string // bound over /etc/hosts; "": left as it is
	Prove bool   // refuse to go on where the redirect has no effect
	Path  string // resolved path of CMD
	Argv  []string
}

func (c *enterConfig) args() []string {
	args := []string{EnterCommand}
	if c.Hosts != "" {
		args = append(args, "-hosts="+c.Hosts)
	}
	if c.Prove {
		args = append(args, "-prove")
	}
	return append(append(args, "--", c.Path), c.Argv...)
}

// EnterMain is the process that becomes CMD. It was born in CMD's cgroup and in a mount namespace of its own;
// what is left is to put the hosts file in place and to execute. It returns only when that failed.
func EnterMain(args []string, stderr io.Writer) int {
	var cfg enterConfig
	flags := flag.NewFlagSet(EnterCommand, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.Hosts, "hosts", "", "file to bind over /etc/hosts")
	flags.BoolVar(&cfg.Prove, "prove", false, "prove that the redirect is effective")
	if err := flags.Parse(args); err != nil || flags.NArg() < 2 {
		fmt.Fprintln(stderr, "evenkeel: "+EnterCommand+" is started by the sandbox, not by hand")
		return StatusFailed
	}
	cfg.Path, cfg.Argv = flags.Arg(0), flags.Args()[1:]
	if err := enter(&cfg); err != nil {
		fmt.Fprintln(stderr, "evenkeel:", err)
		return StatusFailed
	}
	err := syscall.Exec(cfg.Path, cfg.Argv, os.Environ())
	fmt.Fprintf(stderr, "evenkeel: %s: %s\n", cfg.Argv[0], err)
	if errors.Is(err, fs.ErrNotExist) {
		return StatusNotFound
	}
	return StatusNotRunnable
}

func enter(cfg *enterConfig) error {
	if cfg.Prove {
		if err := proveRedirect(); err != nil {
			return err
		}
	}
	if cfg.Hosts == "" {
		return nil
	}
	// "Slave": mounts that are made on the machine later are seen in here too, ours are not seen out there
	// (mount_namespaces(7), shared subtrees).
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount namespace private: mount / as slave: %w", err)
	}
	if err := unix.Mount(cfg.Hosts, hostsPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put the Services' names into %s: bind mount of %s: %w", hostsPath, cfg.Hosts, err)
	}
	return nil
}
