// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Hidden commands of the evenkeel binary: the sandbox's other processes are this same binary.
const (
	SidecarCommand      = "internal-sidecar"
	ControlPlaneCommand = "internal-xds"
	JanitorCommand      = "internal-janitor"
	EnterCommand        = "internal-enter"
)

// self is this binary again, under the name that ps and top show.
func self(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...) //nolint:noctx // processes end with their scope, which also works where no context is left to end
	cmd.Args[0] = "evenkeel"
	return cmd
}

// component is one of Evenkeel's own processes.
type component struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended; then err says how
	err  error
}

// startComponent starts this binary again as name in a cgroup of the scope, apart from the terminal: it is in a session of its
// own, so that Ctrl-C, Ctrl-Z and a hang-up are CMD's alone, and it dies with the sandbox. env is added to what it inherits.
func (s *Scope) startComponent(name, cgroup string, env []string, args ...string) (*component, error) {
	cmd := self(args...)
	if len(env) > 0 {
		cmd.Env = append(os.Environ(), env...)
	}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	s.logger.Debug("start", "process", name, "args", strings.Join(args, " "))
	if err := s.start(cmd, cgroup); err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	c := &component{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = cmd.Wait()
		if c.err == nil {
			c.err = errors.New("exit status 0")
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.components = append(s.components, c)
	return c, nil
}

// start starts cmd inside cgroup: from its first instruction on, it was never anywhere else.
func (s *Scope) start(cmd *exec.Cmd, cgroup string) error {
	if cgroup != "" {
		dir, err := os.Open(cgroup)
		if err != nil {
			return err
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	return s.launcher.do(cmd.Start)
}

// ended returns the error of a component that has ended, nil while it runs.
func (c *component) ended() error {
	select {
	case <-c.done:
		return fmt.Errorf("the %s ended: %w", c.name, c.err)
	default:
		return nil
	}
}
