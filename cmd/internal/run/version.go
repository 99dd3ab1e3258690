// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package run

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is set at link time: -ldflags "-X evenkeel.dev/cmd/internal/run.Version=v1.2.3".
// Empty: the version that the Go toolchain recorded is used.
var Version string

// VersionString is Version, or the module version or revision of the build.
func VersionString() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+modified"
			}
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision + modified
}

// VersionLine is what `version` prints.
func VersionLine(program string) string {
	return fmt.Sprintf("%s %s (%s, %s/%s)", program, VersionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
