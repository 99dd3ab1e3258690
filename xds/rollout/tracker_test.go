// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"testing"

	"evenkeel.dev/xds"
)

var (
	pricing = xds.Service{Namespace: "shop", Name: "pricing", Port: 50051}
	stock   = xds.Service{Namespace: "shop", Name: "stock", Port: 50051}
	web1    = xds.Node{Namespace: "shop", Pod: "web-1", UID: "u1"}
	web2    = xds.Node{Namespace: "shop", Pod: "web-2", UID: "u2"}
)

func ids(nodes []xds.Node) string {
	var s string
	for _, n := range nodes {
		s += n.Pod + " "
	}
	return s
}

func TestTracker(t *testing.T) {
	tr := NewTracker()
	steps := []struct {
		what                   string
		do                     func()
		wantPricing, wantStock string
	}{
		{"one subscribes", func() { tr.StreamOpened(1, web1); tr.Subscribed(1, pricing); tr.Subscribed(1, pricing) }, "web-1 ", ""},
		{"another, to both", func() { tr.StreamOpened(2, web2); tr.Subscribed(2, pricing); tr.Subscribed(2, stock) }, "web-1 web-2 ", "web-2 "},
		{"the first comes anew before its old stream ends", func() { tr.StreamOpened(3, web1); tr.Subscribed(3, pricing) }, "web-1 web-2 ", "web-2 "},
		{"its old stream ends", func() { tr.StreamClosed(1) }, "web-1 web-2 ", "web-2 "},
		{"the second lets one go", func() { tr.Unsubscribed(2, pricing); tr.Unsubscribed(2, pricing) }, "web-1 ", "web-2 "},
		{"streams that are not known", func() { tr.Subscribed(9, stock); tr.Unsubscribed(9, stock); tr.StreamClosed(9) }, "web-1 ", "web-2 "},
		{"all end", func() { tr.StreamClosed(2); tr.StreamClosed(3) }, "", ""},
	}
	for _, st := range steps {
		st.do()
		if got := ids(tr.Subscribers(pricing)); got != st.wantPricing {
			t.Errorf("%s: pricing has %q, want %q", st.what, got, st.wantPricing)
		}
		if got := ids(tr.Subscribers(stock)); got != st.wantStock {
			t.Errorf("%s: stock has %q, want %q", st.what, got, st.wantStock)
		}
		for svc, n := range tr.Services() {
			if len(tr.Subscribers(svc)) != n {
				t.Errorf("%s: %s has %d", st.what, svc, n)
			}
		}
	}
	if len(tr.streams)+len(tr.services) != 0 {
		t.Errorf("left behind: %+v", tr)
	}
}
