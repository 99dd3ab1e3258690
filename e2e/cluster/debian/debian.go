// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package debian sees to it that the machine has the Debian packages that the
// cluster and the test images need.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Package is a Debian package, and how to see without dpkg that what we need of
// it is there: so a machine of another distribution can be used as well.
type Package struct {
	Name string
	// Command is looked for in PATH and the system's sbin folders.
	Command string
	// File is a pattern of a file that must exist.
	File string
}

// Cluster are the packages for building and running the cluster.
func Cluster() []Package {
	return []Package{
		{Name: "iproute2", Command: "ip"},
		{Name: "nftables", Command: "nft"},        // kube-proxy's mode nftables
		{Name: "iptables", Command: "iptables"},   // kube-proxy's mode iptables, CNI portmap, the kubelet's canary chain
		{Name: "conntrack", Command: "conntrack"}, // kube-proxy removes stale UDP flows
		{Name: "gcc", Command: "gcc"},             // runc is a cgo program
		{Name: "libc6-dev", File: "/usr/include/stdlib.h"},
		{Name: "libseccomp-dev", File: "/usr/include/seccomp.h"},
		{Name: "pkg-config", Command: "pkg-config"},
	}
}

// RootFS are the packages for building root file systems of test images.
func RootFS() []Package {
	return []Package{{Name: "mmdebstrap", Command: "mmdebstrap"}}
}

// Ensure installs those that are missing, as root with apt-get; otherwise its
// error names them. progress may be nil.
func Ensure(ctx context.Context, packages []Package, progress func(line string)) error {
	var names []string
	for _, p := range packages {
		if !p.present() {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names, " ")
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return fmt.Errorf("debian: missing here, and there is no apt-get to install them: what Debian has in the packages %s", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("debian: missing packages: run as root: apt-get install %s", list)
	}
	if progress != nil {
		progress("installing Debian packages: " + list)
	}
	if err := aptGet(ctx, apt, "update", "-qq"); err != nil {
		return err
	}
	if err := aptGet(ctx, apt, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, names...)...); err != nil {
		return err
	}
	for _, p := range packages {
		if !p.present() {
			return fmt.Errorf("debian: package %s is installed, but %s%s is still not there", p.Name, p.Command, p.File)
		}
	}
	return nil
}

func (p Package) present() bool {
	if p.File != "" {
		found, err := filepath.Glob(p.File)
		return err == nil && len(found) > 0
	}
	if _, err := exec.LookPath(p.Command); err == nil {
		return true
	}
	// Not in the PATH of an ordinary user's shell.
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, p.Command)); err == nil {
			return true
		}
	}
	return false
}

// aptGet retries while another apt-get holds a lock: DPkg::Lock::Timeout covers
// dpkg's, but not that of the package lists.
func aptGet(ctx context.Context, apt string, args ...string) error {
	args = append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)
	deadline := time.Now().Add(5 * time.Minute)
	for {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if err == nil {
			return nil
		}
		locked := strings.Contains(out.String(), "Could not get lock")
		if !locked || time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("debian: apt-get %s: %w\n%s", args[2], err, strings.TrimSpace(out.String())), ctx.Err())
		}
		time.Sleep(2 * time.Second)
	}
}
