// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// caseTimeout is what one case may take; the longest waits some seconds by itself.
const caseTimeout = time.Minute

// A testCase is one of the gRPC project's.
type testCase struct {
	name string
	// args are flags of the client beyond the case's name. A client of another language that has no such flag leaves them out.
	args []string
	// rpcs is how many RPCs reach a server at least. It is 0 where the client gives up so early (after 1 ms) that there may not
	// even be a connection yet.
	rpcs uint64
	// service is several, the zero value, or single. See doc.go.
	service string
	// spread: enough RPCs that every server must have got some.
	spread bool
}

const (
	several = "interop"
	single  = "interop-single"
)

// commonCases are those that every language's client knows, in the order of grpc-go's interop_test.sh.
var commonCases = []testCase{
	{name: "empty_unary", rpcs: 1},
	{name: "large_unary", rpcs: 1},
	{name: "client_streaming", rpcs: 1},
	{name: "server_streaming", rpcs: 1},
	{name: "ping_pong", rpcs: 1},
	{name: "empty_stream", rpcs: 1},
	{name: "timeout_on_sleeping_server"},
	{name: "cancel_after_begin"},
	{name: "cancel_after_first_response", rpcs: 1},
	{name: "status_code_and_message", rpcs: 2},
	{name: "special_status_message", rpcs: 1},
	{name: "custom_metadata", rpcs: 2},
	{name: "unimplemented_method", rpcs: 1},
	{name: "unimplemented_service", rpcs: 1},
}

// cases are all of grpc-go's that need no credentials.
var cases = append(slices.Clone(commonCases), []testCase{
	{name: "orca_per_rpc", rpcs: 1},
	{name: "orca_oob", rpcs: 2, service: single},
	{name: "rpc_soak", rpcs: 200, spread: true, args: []string{
		"-soak_iterations=200", "-soak_num_threads=4", "-soak_overall_timeout_seconds=50", "-soak_per_iteration_max_acceptable_latency_ms=10000",
	}},
	{name: "channel_soak", rpcs: 60, spread: true, args: []string{
		"-soak_iterations=60", "-soak_num_threads=2", "-soak_overall_timeout_seconds=50", "-soak_per_iteration_max_acceptable_latency_ms=10000",
	}},
}...)

// A client is the interop client of one language.
type client struct {
	language string
	// command is the client's command line for a case against host:50051.
	command func(c testCase, host string) []string
}

func goClient() client {
	return client{language: "go", command: func(c testCase, host string) []string {
		return append([]string{
			programs.client, "-test_case=" + c.name, "-server_host=" + host, "-server_port=50051",
			// As in grpc-go's own interop_test.sh: the orca cases need this policy. It also keeps the client from asking the
			// network's DNS for a service config.
			`-service_config_json={"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`,
		}, c.args...)
	}}
}

func TestInterop(t *testing.T) {
	manifests := t.TempDir()
	servers := []int{startServer(t, goServer), startServer(t, goServer), startServer(t, goServer)}
	if err := errors.Join(
		service(manifests, several, "10.96.50.1", servers),
		service(manifests, single, "10.96.50.2", servers[:1]),
	); err != nil {
		t.Fatal(err)
	}
	for _, client := range []client{goClient()} {
		t.Run(client.language, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) { runCase(t, manifests, len(servers), client, c) })
			}
		})
	}
}

func runCase(t *testing.T, manifests string, servers int, client client, c testCase) {
	switch c.service {
	case "":
		c.service = several
	case single:
		servers = 1
	}
	report := filepath.Join(t.TempDir(), "report.json")
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.evenkeel, append([]string{
		"sandbox", "-f", manifests, "-o", "json", "--report", report, "--",
	}, client.command(c, c.service+".interop")...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", c.name, err, out.String())
	}
	checkReport(t, report, servers, c)
}

// checkReport makes sure that the case's RPCs went through the sidecar.
func checkReport(t *testing.T, path string, servers int, c testCase) {
	var report struct {
		Services []struct {
			Service   string `json:"service"`
			RPCs      uint64 `json:"rpcs"`
			Endpoints []struct {
				Address string `json:"address"`
				RPCs    uint64 `json:"rpcs"`
			} `json:"endpoints"`
		} `json:"services"`
		Connections struct {
			Redirected uint64 `json:"redirected"`
			Direct     uint64 `json:"direct"`
		} `json:"connections"`
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("report: %v\n%s", err, text)
	}
	if report.Connections.Redirected == 0 && c.rpcs > 0 || report.Connections.Direct != 0 {
		t.Errorf("%d connections were redirected, %d went past the sidecar", report.Connections.Redirected, report.Connections.Direct)
	}
	want := "interop/" + c.service + ":50051"
	if c.rpcs == 0 && len(report.Services) == 0 {
		return
	}
	if len(report.Services) != 1 || report.Services[0].Service != want {
		t.Fatalf("the report is not about %s alone:\n%s", want, text)
	}
	got := report.Services[0]
	if got.RPCs < c.rpcs || len(got.Endpoints) != servers {
		t.Errorf("%d RPCs over %d endpoints passed the sidecar, want at least %d over %d", got.RPCs, len(got.Endpoints), c.rpcs, servers)
	}
	if c.spread {
		for _, ep := range got.Endpoints {
			if ep.RPCs == 0 {
				t.Errorf("server %s got none of %d RPCs", ep.Address, got.RPCs)
			}
		}
	}
}
