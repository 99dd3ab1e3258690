// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"evenkeel.dev/sidecar/router"
)

// A server outside of every Service moves to another address: without a sidecar the app's channel would
// lose its connection and resolve the name again. With one it must too.
func TestAppConnectsAnewWhenItsDestinationIsGone(t *testing.T) {
	for name, kind := range map[string]router.Kind{"not known": router.Unknown, "a pod": router.Pod, "outside": router.External} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, "moved")
			r := newRig(t)
			dead := deadAddr(t)
			r.orig.Store(&dead)
			r.s.Routes(router.NewTable(map[router.Key]router.Destination{
				{Addr: dead}:                            {Kind: kind, Endpoint: dead},
				{Addr: netip.MustParseAddrPort(b.addr)}: {},
				{Name: "pricing.shop:50051"}:            {},
			}))
			app := r.client()
			_, err := call(t, app, 10*time.Second)
			wantStatus(t, err, codes.Unavailable, "evenkeel: cannot reach dial "+dead.String())
			// What the app's resolver says from now on.
			moved := netip.MustParseAddrPort(b.addr)
			r.orig.Store(&moved)
			eventually(t, "the same channel reaches the server at its new address", func() bool {
				name, err := call(t, app, 10*time.Second)
				return err == nil && name == "moved"
			})
			eventually(t, "the old connection is gone", func() bool { return len(r.snapshot().Downstream) == 1 })
			r.quiet()
		})
	}
}

// What is balanced follows the control plane: the app's connection is no part of it and stays.
func TestAppStaysConnectedWhenEndpointsAreGone(t *testing.T) {
	r := newRig(t, func(c *Config) { c.EndpointWait = 20 * time.Millisecond }).serve(deadAddr(t).String())
	app := r.client()
	for range 3 {
		_, err := call(t, app, 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "evenkeel: no ready endpoint for shop/pricing:50051")
	}
	if d := r.snapshot().Downstream; len(d) != 1 || d[0].Total != 3 {
		t.Errorf("connections of the app: %+v, want one with three streams", d)
	}
}

func deadAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	lis := listen(t)
	defer lis.Close()
	return netip.MustParseAddrPort(lis.Addr().String())
}
