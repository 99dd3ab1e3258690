// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// plane is a control plane whose word about the pod is the test's. It knows no
// destination. (The real one is met in the tests that follow.)
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	target string

	mu      sync.Mutex
	word    *api.PodStatus
	changed chan struct{} // closed and replaced when word changes
	reports []*api.Report
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	path := filepath.Join(t.TempDir(), "xds.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{target: "unix://" + path, word: &api.PodStatus{}, changed: make(chan struct{})}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, p)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: api.RolloutService, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Track", ServerStreams: true, ClientStreams: true,
			Handler: func(srv any, s grpc.ServerStream) error { return srv.(*plane).track(s) },
		}},
	}, p)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(ln) })
	t.Cleanup(func() { g.Stop(); done.Wait() })
	return p
}

// DeltaAggregatedResources answers that nothing is known.
func (p *plane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		if names := req.GetResourceNamesSubscribe(); len(names) > 0 {
			if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n", RemovedResources: names}); err != nil {
				return err
			}
		}
	}
}

func (p *plane) track(s grpc.ServerStream) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r := new(api.Report)
			if s.RecvMsg(r) != nil {
				return
			}
			p.mu.Lock()
			p.reports = append(p.reports, r)
			p.mu.Unlock()
		}
	}()
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		p.mu.Lock()
		word, changed := proto.CloneOf(p.word), p.changed
		p.mu.Unlock()
		if err := s.SendMsg(word); err != nil {
			return err
		}
		select {
		case <-ended:
			return nil
		case <-changed:
		case <-beat.C:
		}
	}
}

func (p *plane) say(ps *api.PodStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.word = ps
	close(p.changed)
	p.changed = make(chan struct{})
}

// told reports whether a report was as wanted.
func (p *plane) told(is func(*api.Report) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.reports, is)
}

// callHold is the kubelet.
func callHold(t *testing.T, p *process) chan error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.pod+xds.PathHold, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(xds.HeaderHold, secret)
	answer := make(chan error, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		if err == nil {
			if res.StatusCode != http.StatusOK {
				err = errors.New(res.Status)
			}
			res.Body.Close()
		}
		answer <- err
	}()
	return answer
}

func TestHoldsOfARealProcess(t *testing.T) {
	cp := startPlane(t)
	p := prepare(t, cp.target, "--state-dir="+t.TempDir(), "--drain-min=0s", "--pod-uid=u1")
	p.cmd.Env = append(p.cmd.Environ(), xds.EnvHoldSecret+"="+secret)
	p.launch()
	eventually(t, "the sidecar says who it is", func() bool {
		return cp.told(func(r *api.Report) bool {
			return r.GetSidecar().GetUid() == "u1" && r.GetSidecar().GetPod() == "client-1"
		})
	})
	// Nothing is learned: the app may start with the first word.
	out, err := command("wait", "--debug="+p.debug, "--timeout="+patience.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the sidecar serves after") {
		t.Errorf("wait: %v: %s", err, out)
	}
	cp.say(&api.PodStatus{Settled: true, AppReady: true, Clients: 2, Answered: 1, Missing: []string{"shop/cart-1"}, Exposure: api.PodStatus_SERVICE})
	eventually(t, "the probe names who is missing", func() bool {
		_, body := get(t, "http://"+p.pod+"/ready")
		return strings.Contains(body, "1 of 2 clients connected; waiting for shop/cart-1")
	})
	cp.say(&api.PodStatus{Settled: true, AppReady: true, Propagated: true, Exposure: api.PodStatus_SERVICE})
	if l := p.waitForHold("ready", 1); l.Reason != "answered" {
		t.Errorf("ready because %q", l.Reason)
	}
	eventually(t, "the end of the hold is told, to be written down", func() bool {
		return cp.told(func(r *api.Report) bool {
			for _, h := range r.GetHolds() {
				if h.GetHold() == "ready" && h.GetReason() == "answered" && h.GetRecord() {
					return true
				}
			}
			return false
		})
	})

	// The pod is deleted, and the worker dies while it is held.
	held := &api.PodStatus{Settled: true, AppReady: true, Terminating: true, DeletionGraceSeconds: 65, DrainClients: 1, DrainMissing: []string{"shop/cart-1"}, Exposure: api.PodStatus_SERVICE}
	cp.say(held)
	cut := callHold(t, p)
	eventually(t, "the drain is told", func() bool { return cp.told(func(r *api.Report) bool { return r.GetOwn().GetDraining() }) })
	if err := syscall.Kill(p.worker(1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-cut; err == nil {
		t.Error("a call that was cut is answered as if the pod were drained")
	}
	p.waitFor("the drain that a restart has cut goes on", 1)
	for _, name := range []string{"start", "ready"} {
		if l := p.waitForHold(name, 2); l.Reason != "latched" {
			t.Errorf("%s after the restart: %q", name, l.Reason)
		}
	}
	again := callHold(t, p)
	select {
	case err := <-again:
		t.Errorf("released too early: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	drained := proto.CloneOf(held)
	drained.Drained, drained.DrainReleased, drained.DrainMissing = true, 1, nil
	cp.say(drained)
	if err := <-again; err != nil {
		t.Errorf("the hook: %v", err)
	}
	eventually(t, "drained is told", func() bool { return cp.told(func(r *api.Report) bool { return r.GetOwn().GetDrained() }) })

	// The app has exited.
	if cp.told(func(r *api.Report) bool { return r.GetLeaving() }) {
		t.Error("a crash is told as the end")
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.exits(patience); err != nil {
		t.Errorf("ended with %v", err)
	}
	if !cp.told(func(r *api.Report) bool { return r.GetLeaving() }) {
		t.Error("it has not said that it leaves")
	}
}
