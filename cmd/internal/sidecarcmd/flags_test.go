// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

func call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = Main(t.Context(), args, &out, &err)
	return status, out.String(), err.String()
}

func TestFlagsOfTheInjector(t *testing.T) {
	// What CONTRACTS and the injector write into pods.
	cfg, err := parseRun([]string{
		"--listen-port=15951", "--pod-listen=:15952", "--debug-listen=127.0.0.1:15953",
		"--xds=evenkeel-xds.evenkeel-system.svc:15950", "--xds-ca=/var/run/evenkeel/ca/ca.crt", "--xds-token=/var/run/evenkeel/token/token",
		"--namespace=shop", "--pod=client-1", "--pod-uid=u", "--node=n", "--workload=client", "--outbound-ports=50051,50052",
		"--state-dir=/var/run/evenkeel/state", "--log-level=warn", "--log-format=text",
		"--ready-timeout=15s", "--drain-timeout=30s", "--drain-min=auto", "--drain-streams=30s", "--app-grace=30s",
	}, env(map[string]string{
		xds.EnvHoldSecret: secret, xds.EnvPodIP: "10.244.1.7",
		xds.EnvHooks: `{"app":{"httpGet":{"scheme":"HTTP","host":"","port":8080,"path":"/bye","headers":[{"name":"X","value":"y"}]}},"b":{"sleepSeconds":5}}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.OutboundPorts.String() != "50051,50052" || cfg.Pod != "client-1" || cfg.Workload != "client" || cfg.StateDir == "" || cfg.Log.Format != run.LogText {
		t.Errorf("%+v", cfg)
	}
	if cfg.ReadyTimeout != 15*time.Second || cfg.DrainTimeout != 30*time.Second || cfg.DrainMin != floorAuto || cfg.DrainStreams != 30*time.Second || cfg.AppGrace != 30*time.Second {
		t.Errorf("%+v", cfg)
	}
	if g := cfg.Hooks["app"].HTTPGet; len(cfg.Hooks) != 2 || g.Port != 8080 || g.Headers[0].Value != "y" || cfg.Hooks["b"].SleepSeconds != 5 {
		t.Errorf("hooks %+v", cfg.Hooks)
	}
	least, err := parseRun([]string{"--namespace=shop", "--pod=client-1"}, env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if least.ListenPort != 15951 || least.PodListen != ":15952" || least.DebugListen != "127.0.0.1:15953" ||
		least.XDS != "evenkeel-xds.evenkeel-system.svc:15950" || least.XDSCA == "" || least.XDSToken == "" || least.OutboundPorts[0] != 50051 {
		t.Errorf("defaults %+v", least)
	}
	socket, err := parseRun([]string{"--namespace=shop", "--pod=client-1", "--xds=unix:///x", "--drain-min=2s"}, env(nil))
	if err == nil && socket.DrainMin != floor(2*time.Second) {
		t.Errorf("drain-min %s", &socket.DrainMin)
	}
	if err != nil || socket.XDSCA != "" || socket.XDSToken != "" {
		t.Errorf("a socket has CA %q and token %q: %v", socket.XDSCA, socket.XDSToken, err)
	}
}

const secret = "0123456789abcdef0123456789abcdef"

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestBadEnvironmentIsToldAtOnceAndKeepsTheSecret(t *testing.T) {
	args := []string{"--namespace=a", "--pod=b", "--xds=unix:///x"}
	for _, tc := range []struct {
		env  map[string]string
		want []string
	}{
		{map[string]string{xds.EnvHoldSecret: "abcdef"}, []string{xds.EnvHoldSecret + " is not at least 32 hexadecimal digits"}},
		{map[string]string{xds.EnvHoldSecret: strings.Repeat("xy", 20)}, []string{xds.EnvHoldSecret}},
		{map[string]string{xds.EnvHoldSecret: secret, xds.EnvHooks: `{"a":`}, []string{xds.EnvHooks + ": unexpected EOF"}},
		{map[string]string{xds.EnvHoldSecret: secret, xds.EnvHooks: `{"a":{"exec":1}}`}, []string{`unknown field "exec"`}},
		{map[string]string{xds.EnvHooks: `{"a":{"sleepSeconds":1}}`}, []string{xds.EnvHooks + " has no use without " + xds.EnvHoldSecret}},
		{
			map[string]string{xds.EnvHoldSecret: secret, xds.EnvPodIP: "here", xds.EnvHooks: `{"a":{},"b":{"httpGet":{"port":0,"scheme":"FTP"},"sleepSeconds":-1}}`},
			[]string{`POD_IP "here"`, `container "a": neither`, "both httpGet", "sleepSeconds -1", "httpGet.port 0", `scheme "FTP"`},
		},
		{map[string]string{xds.EnvHoldSecret: secret, xds.EnvHooks: `{"a":{"httpGet":{"port":80}}}`}, []string{"no host and POD_IP is empty"}},
	} {
		_, err := parseRun(args, env(tc.env))
		if err == nil {
			t.Errorf("%v is accepted", tc.env)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %q lacks %q", tc.env, err, want)
			}
		}
		if s := tc.env[xds.EnvHoldSecret]; s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("the secret is told: %v", err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"", []string{"--namespace is required", "--pod is required"}},
		{
			"--namespace=a --pod=b --listen-port=70000 --pod-listen=x --debug-listen=0.0.0.0:1 --xds=nohost --xds-ca=",
			[]string{`--listen-port 70000 is not a port`, `--pod-listen "x"`, "--debug-listen", "is not a loopback address", `--xds "nohost"`, "--xds-ca is empty"},
		},
		{"--namespace=a --pod=b --outbound-ports=50051,x", []string{`port "x" is not a number from 1 to 65535`}},
		{"--namespace=a --pod=b --outbound-ports=0", []string{`port "0"`}},
		{"--namespace=a --pod=b --outbound-ports=", []string{`port ""`}},
		{"--namespace=a --pod=b --log-level=loud", []string{"loud", "debug, info, warn, error"}},
		{"--namespace=a --pod=b --xds=unix://", []string{"names no socket"}},
		{"--namespace=a --pod=b --xds=unix:///x --xds-token=/t", []string{"--xds-token has no use"}},
		{"--namespace=a --pod=b --pod-listen=host:1", []string{`host "host" is not an IP address`}},
		{"--namespace=a --pod=b --pod-listen=:99999", []string{`port "99999"`}},
		{
			"--namespace=a --pod=b --xds=unix:///x --ready-timeout=-1s --drain-timeout=-2s --drain-streams=-3s --app-grace=-4s",
			[]string{"--ready-timeout -1s is below zero", "--drain-timeout -2s", "--drain-streams -3s", "--app-grace -4s"},
		},
		{"--namespace=a --pod=b --drain-min=soon", []string{"drain-min", "want auto, or a duration"}},
		{"--namespace=a --pod=b --drain-min=-1s", []string{"want auto, or a duration"}},
		{"--namespace=a --pod=b extra", []string{`unexpected argument "extra"`}},
		{"--nonsense", []string{"nonsense"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			status, stdout, stderr := call(t, append([]string{"run"}, strings.Fields(tc.args)...)...)
			if status != run.Misused || stdout != "" {
				t.Errorf("status %d, stdout %q", status, stdout)
			}
			for _, want := range append(tc.want, "See sidecar run --help.") {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q lacks %q", stderr, want)
				}
			}
		})
	}
}

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		args   string
		status int
		stdout string
		stderr string
	}{
		{"", run.Misused, "", "Usage:"},
		{"help", run.OK, "sidecar wait", ""},
		{"--help", run.OK, "Usage:", ""},
		{"run --help", run.OK, "-outbound-ports", ""},
		{"wait -h", run.OK, "-timeout", ""},
		{"version", run.OK, "evenkeel-sidecar ", ""},
		{"frobnicate", run.Misused, "", `unknown command "frobnicate"`},
		{"wait --timeout=-1s --debug=nowhere", run.Misused, "", "--timeout -1s is not above zero\n--debug"},
		{"worker", run.Misused, "", "is started by `sidecar run`"},
		{"worker --namespace=a --pod=b --xds=unix:///x", run.Misused, "", "is started by `sidecar run`"},
		{"run --namespace=a --pod=b", run.Failed, "", "are not the end of the process's own"}, // we are a test, not the sidecar
	} {
		t.Run(tc.args, func(t *testing.T) {
			status, stdout, stderr := call(t, strings.Fields(tc.args)...)
			if status != tc.status || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("status %d, want %d; stdout %q, stderr %q", status, tc.status, stdout, stderr)
			}
			if (tc.stdout == "") != (stdout == "") || (tc.stderr == "") != (stderr == "") {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
	if _, stdout, _ := call(t, "run", "--help"); strings.Contains(stdout, "inherit") {
		t.Error("the help shows what is between supervisor and worker")
	}
}

func TestRestartsAsAFlag(t *testing.T) {
	for text, want := range map[string]restarts{
		"":                      {},
		"exit=1":                {causeExit: 1},
		"signal=3,oom=1,hang=2": {causeSignal: 3, causeOOM: 1, causeHang: 2},
	} {
		got := restarts{}
		if err := got.Set(text); err != nil || !reflect.DeepEqual(got, want) || got.String() != text {
			t.Errorf("%q: %v %q (%v)", text, map[string]uint64(got), got.String(), err)
		}
	}
	for _, bad := range []string{"exit", "exit=", "exit=x", "=", "exit=-1"} {
		if err := (restarts{}).Set(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestPausesOfACrashLoop(t *testing.T) {
	for crashes, want := range map[int]time.Duration{
		0: 0, 1: 0, 2: 100 * time.Millisecond, 3: 200 * time.Millisecond, 5: 800 * time.Millisecond, 8: 5 * time.Second, 1 << 40: 5 * time.Second,
	} {
		if got := pauseAfter(crashes, 1); got != want {
			t.Errorf("after %d crashes at most %s, want %s", crashes, got, want)
		}
		if got := pauseAfter(crashes, 0); got != want/2 {
			t.Errorf("after %d crashes at least %s, want %s", crashes, got, want/2)
		}
	}
}
