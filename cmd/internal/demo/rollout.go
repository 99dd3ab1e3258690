// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"evenkeel.dev/cmd/internal/sandbox"
)

const (
	// probePeriod is that of the readiness probe of the kubelet which is played here. A real one's is a second.
	probePeriod = 250 * time.Millisecond
	// proxyLag is how long the stand-in for kube-proxy goes on sending connections to a server that has been deleted: the time
	// until the endpoint controller has written, and every node's proxy has applied, the change. Real ones take longer in a
	// busy cluster, and load balancers take seconds.
	proxyLag = 500 * time.Millisecond
	// readyTimeout and holdTimeout bound what a sidecar holds back; its own bounds come first.
	readyTimeout = 20 * time.Second
	holdTimeout  = 35 * time.Second
	// holdSecret is what the injector would have made up.
	holdSecret = "00112233445566778899aabbccddeeff"
)

// restart replaces every server, some at a time, as a Deployment's rolling update does: first the new ones, then the old ones go.
func (w *world) restart(ctx context.Context) error {
	w.progress("rolling restart: %d servers at a time; they exit at once on SIGTERM", w.plan.Surge)
	n := w.plan.Servers
	for first := 0; first < n; first += w.plan.Surge {
		var old, fresh []int
		for i := first; i < min(first+w.plan.Surge, n); i++ {
			old, fresh = append(old, i), append(fresh, n+i)
		}
		if err := w.becomeReady(ctx, fresh...); err != nil {
			return err
		}
		if err := w.retire(ctx, old...); err != nil {
			return err
		}
	}
	return nil
}

// becomeReady starts servers and, once their sidecars let them be ready, publishes them: to the stand-in for kube-proxy and in the
// EndpointSlice. What the kubelet and the endpoint controller do is played here.
func (w *world) becomeReady(ctx context.Context, servers ...int) error {
	err := w.each(servers, func(i int) error {
		s := w.servers[i]
		if w.controlPlane != nil {
			var err error
			s.pod, err = w.scope.StartPod(ctx, sandbox.PodConfig{
				Namespace: "shop", Name: s.name, UID: w.state.Servers[i].UID, ControlPlane: w.controlPlane,
				// It calls nobody.
				Redirect: sandbox.RedirectNone, OutboundPorts: []uint16{clusterIP.Port()},
				// All of its clients have sidecars.
				Holds: &sandbox.Holds{Secret: holdSecret},
			})
			if err != nil {
				return err
			}
		}
		return s.start(ctx)
	})
	if err != nil {
		return err
	}
	if err := w.publish(running, servers...); err != nil {
		return err
	}
	if err := w.each(servers, func(i int) error { return w.probe(ctx, w.servers[i]) }); err != nil {
		return err
	}
	if err := w.publish(ready, servers...); err != nil {
		return err
	}
	now := time.Since(w.zero)
	for _, i := range servers {
		w.readyAt[i] = now
	}
	return nil
}

// probe is the kubelet's readiness probe of a pod's sidecar; without one the pod is ready when its application is.
func (w *world) probe(ctx context.Context, s *server) error {
	if s.pod == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := s.pod.Ready(ctx)
		if err == nil {
			return nil
		}
		if late := sleep(ctx, probePeriod); late != nil {
			return fmt.Errorf("%s does not become ready: %w", s.name, errors.Join(late, err))
		}
	}
}

// retire deletes the pods of servers.
func (w *world) retire(ctx context.Context, servers ...int) error {
	if w.controlPlane == nil {
		// SIGTERM comes at once, and kube-proxy learns of it later.
		for _, i := range servers {
			w.servers[i].stop()
		}
		if err := sleep(ctx, proxyLag); err != nil {
			return err
		}
		return w.publish(absent, servers...)
	}
	if err := w.publish(deleting, servers...); err != nil {
		return err
	}
	return w.each(servers, func(i int) error {
		s := w.servers[i]
		ctx, cancel := context.WithTimeout(ctx, holdTimeout)
		defer cancel()
		if err := s.pod.Hold(ctx); err != nil {
			return fmt.Errorf("preStop hook of %s: %w", s.name, err)
		}
		s.stop()
		if err := w.publish(absent, i); err != nil {
			return err
		}
		return s.pod.Stop(ctx)
	})
}

// publish writes what the API server would hold, and what the stand-in for kube-proxy makes of it.
func (w *world) publish(p phase, servers ...int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range servers {
		w.state.Servers[i].phase = p
	}
	var addrs []netip.AddrPort
	for _, s := range w.state.Servers {
		if s.Ready() {
			addrs = append(addrs, s.Addr)
		}
	}
	w.proxy.setReady(addrs)
	return w.state.write(w.manifests())
}

// each does something for several servers at once.
func (w *world) each(servers []int, do func(i int) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for at, i := range servers {
		all.Go(func() { errs[at] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
