// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"evenkeel.dev/xds/snapshot"
)

// FieldError says what in a file cannot be read, and where.
type FieldError struct {
	File string
	Line int // 0: not known
	// Object is "Kind namespace/name" as far as it is known.
	Object string
	Field  string
	Text   string
}

// Error is "file:line: object: field: text", without what is not known.
func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	for _, s := range []string{e.Object, e.Field, e.Text} {
		if s != "" {
			b.WriteString(": " + s)
		}
	}
	return b.String()
}

// document is one object of a file, with the place of each of its fields.
type document struct {
	change snapshot.Change
	advice []*FieldError
	line   int
}

// maxDocuments bounds what one file can make of a List of Lists.
const maxDocuments = 1 << 20

// decodeFile reads every document of a file. Kinds that are not watched are left
// out: a directory of manifests holds more than Services. The errors are all
// FieldErrors; with an error nothing of the file is used.
func decodeFile(file string, data []byte) ([]document, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var docs []document
	var errs []error
	for {
		var root yaml.Node
		err := dec.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			errs = append(errs, yamlError(file, err))
			break // the parser is lost: what follows would be guesses
		}
		if len(root.Content) == 1 {
			d, err := decodeNode(file, root.Content[0], maxListDepth)
			docs, errs = append(docs, d...), append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return docs, nil
}

const maxListDepth = 4

func decodeNode(file string, n *yaml.Node, depth int) ([]document, error) {
	n = follow(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil, nil // an empty document
	}
	if n.Kind != yaml.MappingNode {
		return nil, &FieldError{File: file, Line: n.Line, Text: "want an object (a mapping with apiVersion, kind and metadata)"}
	}
	kind, version := scalarAt(n, "kind"), scalarAt(n, "apiVersion")
	if kind == "" || version == "" {
		return nil, &FieldError{File: file, Line: n.Line, Field: "kind, apiVersion", Text: "both are required"}
	}
	if strings.HasSuffix(kind, "List") {
		return decodeList(file, kind, n, depth)
	}
	obj, wantVersion := newObject(kind)
	if obj == nil {
		return nil, nil
	}
	if version != wantVersion {
		if kind == "Ingress" && !strings.HasPrefix(version, groupIngress+"/") {
			return nil, nil // a kind of that name that belongs to others
		}
		line := n.Line
		if v := child(n, "apiVersion"); v != nil {
			line = v.Line
		}
		return nil, &FieldError{File: file, Line: line, Object: kind, Field: "apiVersion", Text: fmt.Sprintf("%.100q is not supported; write %s", version, wantVersion)}
	}
	d, err := decodeObject(file, kind, n, obj)
	if err != nil {
		return nil, err
	}
	return []document{d}, nil
}

func decodeList(file, kind string, n *yaml.Node, depth int) ([]document, error) {
	items := follow(child(n, "items"))
	if items == nil || items.Kind == yaml.ScalarNode && items.Tag == "!!null" {
		return nil, nil
	}
	if items.Kind != yaml.SequenceNode || depth == 0 {
		return nil, &FieldError{File: file, Line: items.Line, Object: kind, Field: "items", Text: fmt.Sprintf("want a list of objects (at most %d lists deep)", maxListDepth)}
	}
	var docs []document
	var errs []error
	for _, it := range items.Content {
		d, err := decodeNode(file, it, depth-1)
		docs, errs = append(docs, d...), append(errs, err)
		if len(docs) > maxDocuments {
			return nil, &FieldError{File: file, Line: it.Line, Object: kind, Field: "items", Text: fmt.Sprintf("more than %d objects", maxDocuments)}
		}
	}
	return docs, errors.Join(errs...)
}

// newObject returns an empty object of a kind that is read, and its apiVersion.
func newObject(kind string) (metav1.Object, string) {
	switch kind {
	case "Service":
		return &corev1.Service{}, "v1"
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}, "discovery.k8s.io/v1"
	case "Pod":
		return &corev1.Pod{}, "v1"
	case "Node":
		return &corev1.Node{}, "v1"
	case "Ingress":
		return &networkingv1.Ingress{}, "networking.k8s.io/v1"
	}
	return nil, ""
}

func decodeObject(file, kind string, n *yaml.Node, obj metav1.Object) (document, error) {
	name := scalarAt(child(n, "metadata"), "name")
	fail := func(line int, field, text string) *FieldError {
		object := kind
		if name != "" {
			object += " " + printable(name)
		}
		return &FieldError{File: file, Line: line, Object: object, Field: field, Text: text}
	}
	var generic any
	if err := n.Decode(&generic); err != nil {
		return document{}, yamlError(file, err)
	}
	data, err := json.Marshal(generic)
	if err != nil { // a key that is not a string, .nan
		return document{}, fail(n.Line, "", "not JSON: "+err.Error())
	}
	strict, err := kjson.UnmarshalStrict(data, obj)
	var errs []error
	if err != nil {
		errs = append(errs, jsonError(n, err, fail))
	}
	for _, e := range strict {
		errs = append(errs, jsonError(n, e, fail))
	}
	if len(errs) > 0 {
		return document{}, errors.Join(errs...)
	}
	if obj.GetName() == "" {
		return document{}, fail(lineOf(n, "metadata.name"), "metadata.name", "required")
	}
	if kind != "Node" && obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	change, ps := convert(obj)
	ps = append(badNames(kind, obj), ps...)
	d := document{change: change, line: n.Line}
	for _, p := range ps {
		e := fail(lineOf(n, p.field), p.field, p.text)
		if p.advice {
			d.advice = append(d.advice, e)
		} else {
			errs = append(errs, e)
		}
	}
	return d, errors.Join(errs...)
}

// printable keeps a name that is not one from breaking the line it is shown in.
func printable(name string) string {
	if quoted := fmt.Sprintf("%.100q", name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// badNames judges an object's name and namespace as the API server would. Its objects need no such look, but those of a file do:
// the names go into resource names and into the hosts file of a sandbox, where a line break would make a line.
func badNames(kind string, obj metav1.Object) problems {
	var ps problems
	valid := validation.IsDNS1123Subdomain
	if kind == "Service" {
		valid = validation.IsDNS1123Label
	}
	if msgs := valid(obj.GetName()); len(msgs) > 0 {
		ps.add("metadata.name", "%.100q: %s", obj.GetName(), msgs[0])
	}
	if ns := obj.GetNamespace(); ns != "" {
		if msgs := validation.IsDNS1123Label(ns); len(msgs) > 0 {
			ps.add("metadata.namespace", "%.100q: %s", ns, msgs[0])
		}
	}
	return ps
}

// jsonError finds the field in the decoder's error and its line in the file.
func jsonError(n *yaml.Node, err error, fail func(int, string, string) *FieldError) error {
	if fe, ok := errors.AsType[kjson.FieldError](err); ok {
		path := fe.FieldPath()
		return fail(lineOf(n, path), path, strings.TrimSuffix(strings.Replace(err.Error(), fmt.Sprintf(" %q", path), "", 1), " "))
	}
	// encoding/json's type, or the copy of it in sigs.k8s.io/json: both are told
	// apart only by their text.
	const marker = "Go struct field "
	text := err.Error()
	before, rest, ok := strings.Cut(text, marker)
	if !ok {
		return fail(n.Line, "", strings.TrimPrefix(text, "json: "))
	}
	_, path, _ := strings.Cut(strings.SplitN(rest, " ", 2)[0], ".")
	what := strings.TrimPrefix(before, "json: cannot unmarshal ")
	what = strings.TrimSuffix(what, " into ")
	want := ""
	if _, t, ok := strings.Cut(rest, "of type "); ok {
		want = t
	}
	return fail(lineOfWrong(n, path, what), path, fmt.Sprintf("%s where %s belongs", what, want))
}

func yamlError(file string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	var line int
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, err := fmt.Sscanf(rest, "%d:", &line); err == nil {
			if _, after, ok := strings.Cut(rest, ": "); ok {
				text = after
			}
		}
	}
	return &FieldError{File: file, Line: line, Text: text}
}
