// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	cache := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no command prints help", nil, 2, "usage: cluster"},
		{"help", []string{"-h"}, 2, "poweroff|poweron NODE"},
		{"unknown flag", []string{"-colour", "up"}, 1, "-colour"},
		{"no cluster", []string{"-cache-dir", cache, "kubectl", "get", "nodes"}, 1, "start it with: make cluster"},
		{"bad values", []string{"-cache-dir", cache, "-nodes", "7", "-proxy-mode", "ipvs", "build"}, 1, "Nodes: 7"},
		{"role of the harness", []string{"internal-node"}, 1, "unknown role"},
		{"switch with a bad address", []string{"internal-switch", "id", "10.0.0.1", "10.0.0.2:1"}, 1, "10.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit status %d, want %d", code, tt.code)
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("output %q does not say %s", stderr.String(), tt.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("standard output: %q", stdout.String())
			}
		})
	}
}

// Every command of the help exists: without its arguments or its cluster it fails
// otherwise than an unknown one.
func TestArgumentsAreCounted(t *testing.T) {
	for _, name := range []string{"load", "exec", "net", "poweroff", "poweron", "unplug", "plug", "daemon", "dump"} {
		o := operator{ctx: t.Context()}
		if err := o.run(name, nil); err == nil || !strings.Contains(err.Error(), "want at least") {
			t.Errorf("%s without arguments: got error %v", name, err)
		}
		if !strings.Contains(usage, name) {
			t.Errorf("the help does not tell of %s", name)
		}
	}
	o := operator{ctx: t.Context()}
	if err := o.run("dance", nil); err == nil || !strings.Contains(err.Error(), `unknown command "dance"`) {
		t.Errorf("an unknown command: got error %v", err)
	}
	if err := o.run("daemon", []string{"node1", "kubelet", "tickle"}); err == nil || !strings.Contains(err.Error(), `verb "tickle"`) {
		t.Errorf("an unknown verb: got error %v", err)
	}
}
