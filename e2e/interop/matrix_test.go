// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var soak = flag.Int("soak", 500, "RPCs on one channel in the soak cases of TestLanguages, and 20 times the channels made; the long run has 10000")

// languageCases are those that each language's client and server have.
func languageCases(l language) []testCase {
	soakArgs := func(n int) []string {
		args := []string{"--soak_iterations=" + strconv.Itoa(n), "--soak_request_size=10000", "--soak_response_size=20000"}
		if l.soakLimits {
			args = append(args, "--soak_overall_timeout_seconds=240", "--soak_per_iteration_max_acceptable_latency_ms=20000")
		}
		return args
	}
	channels := max(*soak/20, 1)
	return append(slices.Clone(commonCases), []testCase{
		{name: "rpc_soak", rpcs: uint64(*soak), args: soakArgs(*soak)},
		{name: "channel_soak", rpcs: uint64(channels), args: soakArgs(channels)},
	}...)
}

// javaServerCases need what of these servers only grpc-java's does: it compresses, and takes messages of 10 MiB. noprobe leaves out
// that the server refuses a message which is not compressed as announced: grpc-java's takes it, also without Evenkeel.
var javaServerCases = []testCase{
	{name: "client_compressed_unary_noprobe", rpcs: 2},
	{name: "server_compressed_unary", rpcs: 2},
	{name: "server_compressed_streaming", rpcs: 1},
	{name: "very_large_request", rpcs: 1},
}

// TestLanguages runs the client of each language against grpc-go's servers, and grpc-go's client against the server of each
// language. The cases of a pair share a sandbox: a connection each (or many), one after the other.
func TestLanguages(t *testing.T) {
	manifests := t.TempDir()
	servers := map[string]int{"go": 3, "java": 1, "python": 1, "node": 1}
	i := 10
	for name, n := range servers {
		var ports []int
		for range n {
			ports = append(ports, startServer(t, programs.languages[name].server))
		}
		if err := service(manifests, name, fmt.Sprintf("10.96.50.%d", i), ports); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for _, name := range []string{"java", "python", "node"} {
		other, golang := programs.languages[name], programs.languages["go"]
		for _, p := range []pair{
			{name: name + "-client", client: other, server: "go", servers: servers["go"], cases: languageCases(other)},
			{name: name + "-server", client: golang, server: name, servers: servers[name], cases: languageCases(golang)},
			{name: name + "-compression", client: other, server: "java", servers: servers["java"], cases: javaServerCases},
		} {
			t.Run(p.name, func(t *testing.T) { p.run(t, manifests) })
		}
	}
}

// A pair is a client and the service it calls.
type pair struct {
	name    string
	client  language
	server  string
	servers int
	cases   []testCase
}

// run runs the cases by a script, so that the client's processes share a sandbox.
func (p pair) run(t *testing.T, manifests string) {
	dir := t.TempDir()
	var script strings.Builder
	sum := testCase{service: p.server}
	for _, c := range p.cases {
		sum.rpcs += c.rpcs
		var words []string
		for _, w := range p.client.client(c, p.server+".interop") {
			words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		out := filepath.Join(dir, c.name)
		fmt.Fprintf(&script, "timeout -k 5 %d %s >%s.out 2>&1 </dev/null; echo $? >%s.status\n",
			int((5 * caseTimeout).Seconds()), strings.Join(words, " "), out, out)
	}
	// Least request with so many RPCs leaves none out.
	sum.spread = sum.rpcs >= uint64(100*p.servers)

	report := filepath.Join(dir, "report.json")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.evenkeel, "sandbox", "-f", manifests, "-o", "json", "--report", report, "--", "sh", "-c", script.String())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Errorf("sandbox: %v\n%s", err, out.String())
	}
	for _, c := range p.cases {
		t.Run(c.name, func(t *testing.T) {
			status, err := os.ReadFile(filepath.Join(dir, c.name+".status"))
			if got := strings.TrimSpace(string(status)); err != nil || got != "0" {
				text, readErr := os.ReadFile(filepath.Join(dir, c.name+".out"))
				t.Errorf("exit status %q (124: it took too long)\n%s", got, text)
				if err := errors.Join(err, readErr); err != nil {
					t.Error(err)
				}
			}
		})
	}
	checkReport(t, report, p.servers, sum)
	if t.Failed() {
		t.Logf("sandbox:\n%s", out.String())
	}
}
