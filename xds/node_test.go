// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

import (
	"strings"
	"testing"
)

func TestNode(t *testing.T) {
	n := Node{Namespace: "shop", Pod: "web-1", UID: "u", Workload: "web", Node: "node1", Zone: "z"}
	if got, err := NodeFrom(n.ID(), n.Metadata()); err != nil || got != n {
		t.Errorf("%+v, %v", got, err)
	}
	short := Node{Namespace: "shop", Pod: "web.1"}
	if m := short.Metadata(); len(m) != 2 {
		t.Errorf("metadata %v; want namespace and pod", m)
	}
	if got, err := NodeFrom("shop/web.1", nil); err != nil || got != short {
		t.Errorf("%+v, %v", got, err)
	}
	for id, meta := range map[string]map[string]string{
		"": nil, "web-1": nil, "/web-1": nil, "shop/": nil, "Shop/web-1": nil, "shop/web/1": nil,
		"shop/web-1": {NodePod: "web-2"}, "shop/web-3": {NodeNamespace: "bank"},
	} {
		if got, err := NodeFrom(id, meta); err == nil || !strings.Contains(err.Error(), "node.") {
			t.Errorf("NodeFrom(%q, %v) = %+v, %v", id, meta, got, err)
		}
	}
}
