// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

var update = flag.Bool("update", false, "write the golden files anew")

// From manifests to the resources that a sidecar on node1 is sent: what a
// reviewer reads to know what a change of the snapshot means.
func TestGolden(t *testing.T) {
	dir := filepath.Join("testdata", "golden")
	store := snapshot.NewStore(snapshot.Config{})
	for _, name := range []string{"other.yml", "pods.yaml", "shop.yaml"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		docs, err := decodeFile(name, data)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			store.Apply(d.change)
		}
	}
	ask, err := os.ReadFile(filepath.Join(dir, "ask.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(ask)) {
		name := strings.TrimSpace(line)
		fmt.Fprintf(&out, "%s\n", name)
		if pod, ok := strings.CutPrefix(name, "pod/"); ok {
			out.WriteString(renderMembership(t, store, pod))
			continue
		}
		for _, r := range resources(t, store, name) {
			out.WriteString("  " + renderResource(t, r) + "\n")
		}
	}
	file := filepath.Join(dir, "node1.golden")
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("what is sent differs from %s (-want +got; -update writes it anew):\n%s", file, d)
	}
}

func resources(t *testing.T, store *snapshot.Store, name string) []*snapshot.Resource {
	t.Helper()
	if !strings.HasPrefix(name, "endpoints/") {
		n, err := xds.ParseDestinationName(name)
		if err != nil {
			t.Fatal(err)
		}
		if r, _ := store.Destination(n); r != nil {
			return []*snapshot.Resource{r}
		}
		return nil
	}
	r, err := xds.ParseEndpointResource(name)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Collection(r.Service, nil)
	if c == nil {
		return nil
	}
	set := c.View("node1")
	return append(set.Members, set.Marker)
}

// renderMembership is what a pod is told about itself.
func renderMembership(t *testing.T, store *snapshot.Store, pod string) string {
	t.Helper()
	ns, name, _ := strings.Cut(pod, "/")
	m, ok := store.Membership(snapshot.ObjectKey{Namespace: ns, Name: name})
	if !ok {
		return ""
	}
	out := fmt.Sprintf("  %s node=%s app_ready=%v ready=%v terminating=%v draining=%v grace=%s exposure=%d %v\n",
		m.UID, m.Node, m.AppReady, m.Ready, m.Terminating, m.Draining, m.DeletionGrace, m.Exposure, m.IPs)
	for _, ps := range m.Services {
		out += fmt.Sprintf("  %s %s %s local=%v\n", ps.Service, ps.Addr, ps.State, ps.LocalOnly)
	}
	return out
}

func renderResource(t *testing.T, r *snapshot.Resource) string {
	t.Helper()
	w := &discoverypb.Resource{}
	if err := proto.Unmarshal(r.Wire, w); err != nil {
		t.Fatal(err)
	}
	m, err := w.GetResource().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	// protojson puts spaces in at random, so that nobody compares its output.
	return r.Name[strings.LastIndexByte(r.Name, '/')+1:] + " " + strings.ReplaceAll(string(text), " ", "")
}
