// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"errors"
	"strings"
	"testing"

	"evenkeel.dev/xds/snapshot"
)

// Each mistake is found with its line and field.
func TestDecodeErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		yaml string
		want []string // the errors, in order, as file:line: object: field: part of the text
	}{
		"not YAML": {
			"apiVersion: v1\nkind: Service\n  metadata: x\n", []string{"f.yaml:3: mapping values"},
		},
		"a tab": {"apiVersion: v1\n\tkind: Service\n", []string{"f.yaml:2: found a tab character"}},
		"half written": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: \"10.9", []string{"f.yaml:4: found unexpected end"},
		},
		"not an object": {"- a\n- b\n", []string{"f.yaml:1: want an object"}},
		"just text":     {"hello", []string{"f.yaml:1: want an object"}},
		"no kind":       {"\napiVersion: v1\n", []string{"f.yaml:2: kind, apiVersion: both are required"}},
		"old version": {
			"kind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1\n", []string{`f.yaml:2: EndpointSlice: apiVersion: "discovery.k8s.io/v1beta1" is not supported; write discovery.k8s.io/v1`},
		},
		"unknown field": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 1\n  - prot: 1\n",
			[]string{"f.yaml:7: Service a: spec.ports[1].prot: unknown field"},
		},
		"key twice": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: 10.0.0.1\n  clusterIP: 10.0.0.2\n",
			[]string{`f.yaml:6: mapping key "clusterIP" already defined at line 5`},
		},
		"text for a number, in the second of a list": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 1\n  - name: x\n    port: grpc\n",
			[]string{"f.yaml:8: Service a: spec.ports.port: string where int32 belongs"},
		},
		"a number that is too large": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 99999999999\n",
			[]string{"f.yaml:6: Service a: spec.ports.port: number 99999999999 where int32 belongs"},
		},
		"an object for a list": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: {port: 1}\n",
			[]string{"f.yaml:5: Service a: spec.ports: object where []v1.ServicePort belongs"},
		},
		"no name": {"apiVersion: v1\nkind: Service\nmetadata:\n  namespace: x\n", []string{"f.yaml:3: Service: metadata.name: required"}},
		"names that are not names": {
			"apiVersion: v1\nkind: Service\nmetadata:\n  name: \"a\\n192.0.2.1 example.com\"\n  namespace: a.b\nspec: {clusterIP: 10.0.0.1}\n",
			[]string{
				`f.yaml:4: Service "a\n192.0.2.1 example.com": metadata.name: "a\n192.0.2.1 example.com": a lowercase RFC 1123 label must`,
				`f.yaml:5: Service "a\n192.0.2.1 example.com": metadata.namespace: "a.b": `,
			},
		},
		"a host name with a line break": {
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: a}}\n" +
				"addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1]\n  hostname: \"a\\nb\"\n",
			[]string{`f.yaml:7: EndpointSlice s: endpoints[0].hostname: "a\nb": `},
		},
		"an external name with a path, and an unknown protocol": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  type: ExternalName\n  externalName: http://a/\n  ports:\n  - port: 1\n    protocol: ICMP\n",
			[]string{`f.yaml:6: Service a: spec.externalName: "http://a/": `, `f.yaml:9: Service a: spec.ports[0].protocol: "ICMP" is not a protocol`},
		},
		"several in one object, and another object's": {
			`apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  clusterIPs:
  - 10.96.0.1
  - 10.96.0.1.1
  ports:
  - port: 0
  - port: 70000
    targetPort: -1
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s
  labels: {kubernetes.io/service-name: a}
addressType: IPv4
ports:
- port: 80
endpoints:
- addresses: []
- addresses: ["fd00::1"]
- addresses: [10.0.0.1, nonsense]
`,
			[]string{
				`f.yaml:7: Service a: spec.clusterIPs[1]: "10.96.0.1.1" is not an IP address`,
				"f.yaml:9: Service a: spec.ports[0].port: 0 is not a port",
				"f.yaml:10: Service a: spec.ports[1].port: 70000 is not a port",
				"f.yaml:22: EndpointSlice s: endpoints[0].addresses: required",
				"f.yaml:23: EndpointSlice s: endpoints[1].addresses[0]: fd00::1 is not of the slice's addressType IPv4",
			},
		},
		"slice without its service": {
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s\n  labels:\n    app: x\naddressType: IPv4\nendpoints: []\n",
			[]string{"f.yaml:5: EndpointSlice s: metadata.labels[kubernetes.io/service-name]: required"},
		},
		"slice without an address type": {
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: a}}\n",
			[]string{`f.yaml:1: EndpointSlice s: addressType: "" is not an address type`},
		},
		"external name without a name": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  type: ExternalName\n", []string{"f.yaml:4: Service a: spec.externalName: required"},
		},
		"in a list": {
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec:\n    clusterIP: x\n- 3\n",
			[]string{`f.yaml:8: Service a: spec.clusterIP: "x" is not an IP address`, "f.yaml:9: want an object"},
		},
		"lists without end": {
			"--- &a\napiVersion: v1\nkind: List\nitems: [*a]\n", []string{"f.yaml:4: List: items: want a list of objects (at most 4 lists deep)"},
		},
		"a key that is no text": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {80: x}\n", []string{"f.yaml:1: Service a: not JSON"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			docs, err := decodeFile("f.yaml", []byte(tt.yaml))
			if err == nil {
				t.Fatalf("no error, but %d objects", len(docs))
			}
			got := flatten(err)
			if len(got) != len(tt.want) {
				t.Fatalf("%d errors:\n%s\nwant %d", len(got), err, len(tt.want))
			}
			for i, e := range got {
				if _, ok := errors.AsType[*FieldError](e); !ok {
					t.Errorf("%q is a %T", e, e)
				}
				if !strings.HasPrefix(e.Error(), tt.want[i]) {
					t.Errorf("error %d is\n%s\nwant\n%s…", i, e, tt.want[i])
				}
			}
		})
	}
}

func TestDecodeLeavesOut(t *testing.T) {
	docs, err := decodeFile("f.yaml", []byte(`
---
# nothing
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec: {whatever: true}
---
null
---
apiVersion: v1
kind: ServiceList
items:
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}}
`))
	if err != nil || len(docs) != 1 || docs[0].change.Key != (snapshot.ObjectKey{Namespace: "default", Name: "json"}) {
		t.Fatalf("%+v, %v; want the Service default/json", docs, err)
	}
}

func TestAnnotations(t *testing.T) {
	docs, err := decodeFile("f.yaml", []byte(`apiVersion: v1
kind: Service
metadata:
  name: a
  annotations:
    example.com/policy: x
    balancer.evenkeel.dev/policy: fastest
    balancer.evenkeel.dev/polcy: round_robin
`))
	if err != nil || len(docs) != 1 {
		t.Fatalf("%v, %v", docs, err)
	}
	if p := docs[0].change.Service.Policy; p != "" {
		t.Errorf("policy is %q; want the default", p)
	}
	got := map[string]int{}
	for _, a := range docs[0].advice {
		got[a.Field] = a.Line
	}
	if len(got) != 2 || got["metadata.annotations[balancer.evenkeel.dev/policy]"] != 7 || got["metadata.annotations[balancer.evenkeel.dev/polcy]"] != 8 {
		t.Errorf("advice: %v", docs[0].advice)
	}
}

// The decoder takes any bytes; what it makes of them is usable, and its errors
// have a place.
func FuzzDecodeFile(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 1}]}\n"))
	f.Add([]byte("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{port: 1}]\nendpoints: [{addresses: [10.0.0.1]}]\n"))
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u}\nstatus: {phase: Running, podIP: 10.0.0.1}\n---\nkind: List\napiVersion: v1\nitems: [{apiVersion: v1, kind: Node, metadata: {name: n}}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := decodeFile("f.yaml", data)
		if err != nil {
			for _, e := range flatten(err) {
				var fe *FieldError
				if !errors.As(e, &fe) || fe.File != "f.yaml" || fe.Text == "" {
					t.Fatalf("error without a place: %#v", e)
				}
			}
			return
		}
		s := snapshot.NewStore(snapshot.Config{})
		for _, d := range docs {
			if d.change.Key.Name == "" || d.line <= 0 {
				t.Fatalf("a document without a name or a line: %+v", d)
			}
			s.Apply(d.change)
		}
		s.Drain()
	})
}
