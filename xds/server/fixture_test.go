// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"evenkeel.dev/xds/snapshot"
)

// logBuffer is a log that a test can read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func service(name, ip string) snapshot.Change {
	k := snapshot.ObjectKey{Namespace: "shop", Name: name}
	s := &snapshot.Service{Key: k, Ports: []snapshot.ServicePort{{Name: "grpc", Port: 50051, TargetPort: 50051}}}
	if ip == "None" {
		s.Headless = true
	} else {
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr(ip)}
	}
	return snapshot.Change{Kind: snapshot.KindService, Key: k, Service: s}
}

// slice has an endpoint 10.244.x.y:50051 for each number x*256+y.
func slice(svc string, numbers ...int) snapshot.Change {
	k := snapshot.ObjectKey{Namespace: "shop", Name: svc + "-abcde"}
	sl := &snapshot.Slice{Key: k, Service: svc, Ports: []snapshot.SlicePort{{Name: "grpc", Port: 50051}}}
	for _, i := range numbers {
		sl.Endpoints = append(sl.Endpoints, snapshot.Endpoint{
			Addr: endpointAddr(i), Ready: true, Serving: true, Node: fmt.Sprintf("node%d", i%3), Zone: "z",
			Pod: fmt.Sprintf("%s-%d", svc, i), PodUID: fmt.Sprintf("uid-%s-%d", svc, i),
		})
	}
	return snapshot.Change{Kind: snapshot.KindSlice, Key: k, Slice: sl}
}

func endpointAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
}

func ready(numbers ...int) []string {
	var out []string
	for _, i := range numbers {
		out = append(out, fmt.Sprintf("%s:50051=HEALTHY", endpointAddr(i)))
	}
	return out
}

func pod(name, uid string) snapshot.Change {
	k := snapshot.ObjectKey{Namespace: "shop", Name: name}
	return snapshot.Change{Kind: snapshot.KindPod, Key: k, Pod: &snapshot.Pod{Key: k, UID: uid, Node: "node1"}}
}

func gone(c snapshot.Change) snapshot.Change {
	return snapshot.Change{Kind: c.Kind, Key: c.Key}
}

func (w *world) apply(changes ...snapshot.Change) { w.srv.Apply(changes, time.Now()) }

func (w *world) synced(changes ...snapshot.Change) {
	w.apply(changes...)
	w.srv.Synced()
}

func toChanges(members []int) []snapshot.Change {
	return []snapshot.Change{service("pricing", "10.96.0.4"), slice("pricing", members...)}
}
