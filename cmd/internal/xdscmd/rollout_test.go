// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/rollout"
)

func TestRolloutQuery(t *testing.T) {
	for raw, want := range map[string]struct {
		q    rolloutQuery
		part string // of the error
	}{
		"namespace=shop": {rolloutQuery{"shop", ""}, ""},
		"namespace=shop&workload=deployment%2Fpricing":     {rolloutQuery{"shop", "deployment/pricing"}, ""},
		"namespace=shop&workload=demo":                     {rolloutQuery{"shop", "demo"}, ""},
		"":                                                 {part: "no namespace"},
		"workload=deployment/pricing":                      {part: "no namespace"},
		"namespace=Shop":                                   {part: `"Shop" is not a namespace`},
		"namespace=shop&namespace=bank":                    {part: `2 values of "namespace"`},
		"namespace=shop&workload=":                         {part: "KIND/NAME"},
		"namespace=shop&workload=a%0Ab":                    {part: "KIND/NAME"},
		"namespace=shop&name=pricing":                      {part: `unknown parameter "name"`},
		"namespace=%zz":                                    {part: "malformed query"},
		"namespace=" + strings.Repeat("a", 64):             {part: "not a namespace"},
		"namespace=a&workload=" + strings.Repeat("a", 400): {part: "KIND/NAME"},
	} {
		q, err := parseRolloutQuery(raw)
		if want.part == "" && (err != nil || q != want.q) || want.part != "" && (err == nil || !strings.Contains(err.Error(), want.part)) {
			t.Errorf("%s: %+v, %v", raw, q, err)
		}
	}
}

const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: pricing-1, namespace: shop, uid: uid-pricing-1, labels: {app: pricing}}
spec: {containers: [{name: app}]}
status:
  phase: Running
  podIP: 127.1.0.1
  podIPs: [{ip: 127.1.0.1}]
  containerStatuses: [{name: app, ready: true, state: {running: {}}}]
`

// A sidecar reports, and people can see it.
func TestRolloutIsShown(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(manifest+podManifest), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "xds.sock")
	var log output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, []string{"run", "--files=" + dir, "--listen=unix://" + socket, "--admin-listen=127.0.0.1:0", "--replica=xds-a", "--settle=300ms", "--log-format=text"}, io.Discard, &log)
	}()
	defer func() {
		cancel()
		if status := <-done; status != run.OK {
			t.Errorf("status %d; log:\n%s", status, log.String())
		}
	}()
	admin := adminAddress(t, &log)
	eventually(t, "it is ready", func() bool { code, _ := get(t, admin, "/readyz"); return code == http.StatusOK })
	if code, body := get(t, admin, "/debug/rollout"); code != http.StatusBadRequest || !strings.Contains(body, "namespace") {
		t.Errorf("no namespace: %d %s", code, body)
	}
	eventually(t, "it has settled, and nobody reports", func() bool {
		_, body := get(t, admin, "/debug/rollout?namespace=shop")
		return strings.TrimSpace(body) == `{"replica":"xds-a","settled":true,"pods":[]}`
	})

	cc, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, api.RolloutTrack)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.SendMsg(&api.Report{
		Sidecar: &api.Sidecar{Namespace: "shop", Pod: "pricing-1", Uid: "uid-pricing-1", Workload: "deployment/pricing"},
		Holds:   []*api.HoldEnd{{Hold: "start", WaitedMs: 10, Reason: "timeout", Missing: []string{"10.0.0.1:1"}, Record: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &api.PodStatus{}
	for !s.GetAppReady() {
		if err := stream.RecvMsg(s); err != nil {
			t.Fatal(err)
		}
	}
	if s.GetReplica() != "xds-a" || !s.GetSettled() || !s.GetPropagated() {
		t.Errorf("told: %v", s)
	}
	code, body := get(t, admin, "/debug/rollout?namespace=shop&workload=deployment/pricing&timeout=5s")
	var v rollout.View
	if err := json.Unmarshal([]byte(body), &v); code != http.StatusOK || err != nil || len(v.Pods) != 1 || v.Pods[0].State != "warming" || len(v.Pods[0].Holds) != 1 {
		t.Errorf("%d %s", code, body)
	}
	eventually(t, "the hold is counted", func() bool {
		_, body := get(t, admin, "/metrics")
		return strings.Contains(body, `evenkeel_hold_timeouts_total{hold="start"} 1`) && strings.Contains(body, "evenkeel_rollout_reporters 1") &&
			strings.Contains(body, "evenkeel_xds_track_streams 1")
	})
}
