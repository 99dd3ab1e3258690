// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrPermission says that this process lacks a capability; the text names it.
var ErrPermission = errors.New("missing capability")

// capability is a bit of CapEff (uapi/linux/capability.h).
type capability uint

const (
	capNetAdmin capability = unix.CAP_NET_ADMIN
	capSysAdmin capability = unix.CAP_SYS_ADMIN
	capBPF      capability = unix.CAP_BPF
)

func (c capability) String() string {
	switch c {
	case capNetAdmin:
		return "CAP_NET_ADMIN"
	case capSysAdmin:
		return "CAP_SYS_ADMIN"
	case capBPF:
		return "CAP_BPF"
	}
	return "capability " + strconv.Itoa(int(c))
}

// lacking explains an EPERM: from reading CapEff when that shows the capability missing, as a
// refusal by something else (seccomp, lockdown, a security module) when it does not.
func lacking(needed capability, errno error) error {
	held, err := effectiveCapabilities()
	if err == nil && held&(1<<needed) == 0 {
		return fmt.Errorf("%w: %s is not effective for this process (uid %d; in a container, added capabilities take effect only for runAsUser: 0)",
			ErrPermission, needed, os.Geteuid())
	}
	return fmt.Errorf("%w: the kernel refused although %s is effective: a seccomp profile, a security module or kernel lockdown forbids bpf()", errno, needed)
}

func effectiveCapabilities() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if hex, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			return strconv.ParseUint(string(bytes.TrimSpace(hex)), 16, 64)
		}
	}
	return 0, errors.New("no CapEff in /proc/self/status")
}
