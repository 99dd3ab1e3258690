// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	xdsrollout "evenkeel.dev/xds/rollout"
)

var pricing = Workload{Kind: Deployment, Name: "pricing"}

func TestParseWorkload(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // of a Workload, or what the error names
		ok   bool
	}{
		{[]string{"deploy/pricing"}, "deployment/pricing", true},
		{[]string{"Deployment.apps/pricing"}, "deployment/pricing", true},
		{[]string{"sts", "catalog"}, "statefulset/catalog", true},
		{[]string{"ds/agent.v1"}, "daemonset/agent.v1", true},
		{[]string{"pricing"}, "want KIND/NAME, such as deploy/pricing", false},
		{[]string{"job/nightly"}, `kind "job"`, false},
		{[]string{"deploy/"}, `"" is no name`, false},
		{[]string{"deploy/a/b"}, `"a/b" is no name`, false},
		{[]string{"deploy/Pricing"}, `"Pricing" is no name`, false},
		{[]string{"deploy", "a", "b"}, "want one workload", false},
		{nil, "want one workload", false},
	} {
		w, err := ParseWorkload(c.args...)
		switch {
		case c.ok && (err != nil || w.String() != c.want):
			t.Errorf("%q: %s, %v; want %s", c.args, w, err, c.want)
		case !c.ok && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q: %v; want an error with %q", c.args, err, c.want)
		}
	}
}

func viewOf(t *testing.T, text string) *xdsrollout.View {
	t.Helper()
	var v xdsrollout.View
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return &v
}

// A rollout in its middle: one pod warms, one drains, one is gone, one has no
// sidecar; one replica of the control plane is new and one does not answer.
func TestMerge(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	settled := viewOf(t, `{"replica":"xds-1","settled":true,"pods":[
		{"pod":"new","uid":"n","state":"warming","clients":3,"answered":1,"missing":["shop/web-1","shop/web-2"],"holds":[{"hold":"start","seconds":0.21,"reason":"answered"}]},
		{"pod":"old","uid":"o","state":"draining","clients":3,"answered":3,"missing":[],"drain":{"clients":3,"released":2,"missing":["shop/web-3"]},
		 "holds":[{"hold":"ready","seconds":15,"reason":"timeout","missing":["shop/web-9"]}],"rpcs_failed":1,"rpcs_replayed":4},
		{"pod":"gone","uid":"g","state":"gone","holds":[{"hold":"drain","seconds":0.4,"reason":"answered"}]}]}`)
	fresh := viewOf(t, `{"replica":"xds-2","settled":false,"pods":[
		{"pod":"new","uid":"n","state":"warming","clients":9,"answered":9}]}`)
	members := []member{
		{name: "new", uid: "n", created: now.Add(-3 * time.Second), sidecar: true},
		{name: "old", uid: "o", created: now.Add(-3 * time.Hour), sidecar: true, ready: true, deleted: true},
		{name: "bare", uid: "b", created: now.Add(-50 * time.Hour), ready: true},
		{name: "mute", uid: "m", created: now.Add(-10 * time.Minute), ready: true, sidecar: true},
		{name: "finished", uid: "f", done: true},
	}
	s := merge("shop", pricing, object{desired: 3, updated: 1, ready: 2, total: 4, current: true}, members,
		[]answer{{"xds-1", settled, nil}, {"xds-2", fresh, nil}, {"xds-3", nil, errors.New("connection refused")}})
	var b strings.Builder
	if err := s.WriteTable(&b, now); err != nil {
		t.Fatal(err)
	}
	const want = `deployment/pricing in shop: in progress, 1 of 3 updated, 2 ready

POD   STATE     CLIENTS  START  READY            DRAIN  REPLAYED  FAILED  AGE  WAITING FOR
new   warming   1/3      0.2s   -                -      0         0       3s   shop/web-1, shop/web-2
mute  ready     0/0      -      -                -      0         0       10m  
bare  ready     -        -      -                -      -         -       2d   no sidecar
old   draining  2/3      -      15.0s (timeout)  -      4         1       3h   shop/web-3
gone  gone      0/0      -      -                0.4s   0         0       -    

old: the ready hold ended after 15.0s without shop/web-9
note: control plane xds-3 does not answer: connection refused
note: mute does not report to the control plane
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	if s.Complete {
		t.Error("complete, with one updated of three")
	}
}

func TestComplete(t *testing.T) {
	whole := object{desired: 2, updated: 2, ready: 2, total: 2, current: true}
	fine := []answer{{"xds-1", viewOf(t, `{"settled":true}`), nil}}
	for name, c := range map[string]struct {
		change func(o *object, m *member)
		want   bool
	}{
		"all":                {func(*object, *member) {}, true},
		"not seen yet":       {func(o *object, _ *member) { o.current = false }, false},
		"not updated":        {func(o *object, _ *member) { o.updated = 1 }, false},
		"not ready":          {func(o *object, _ *member) { o.ready = 1 }, false},
		"an old one is left": {func(o *object, _ *member) { o.total = 3 }, false},
		"scaled to none":     {func(o *object, _ *member) { *o = object{current: true} }, true},
	} {
		o, m := whole, member{name: "a", uid: "a", ready: true}
		c.change(&o, &m)
		if s := merge("shop", pricing, o, []member{m}, fine); s.Complete != c.want {
			t.Errorf("%s: complete is %v", name, s.Complete)
		}
	}
}

// Replicas that have all just started: said, not shown as nobody connected.
func TestUnsettled(t *testing.T) {
	s := merge("shop", pricing, object{current: true}, nil, []answer{{"xds-1", viewOf(t, `{"settled":false}`), nil}})
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "just started") {
		t.Errorf("notes %q", s.Notes)
	}
	raw, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(raw), `"pods":[]`) {
		t.Errorf("%s, %v: a list is a list, also when it is empty", raw, err)
	}
}
