// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// child returns the value of a key of a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	n = follow(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalarAt(n *yaml.Node, key string) string {
	if c := follow(child(n, key)); c != nil && c.Kind == yaml.ScalarNode && c.Tag != "!!null" {
		return c.Value
	}
	return ""
}

func follow(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// lineOf returns the line of a field such as "spec.ports[0].port" or
// "metadata.annotations[a.b/c]": its own, or that of the deepest part that
// exists, which is where a missing field belongs.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for _, step := range splitPath(path) {
		next, at := descend(n, step)
		if next == nil {
			break
		}
		n, line = next, at
	}
	return line
}

// lineOfWrong is lineOf for a path that leaves out the indexes of lists, as the
// JSON decoder gives it: it looks for the element whose value has the wrong type.
func lineOfWrong(n *yaml.Node, path, wrong string) int {
	if line := findWrong(n, splitPath(path), wrong); line > 0 {
		return line
	}
	return lineOf(n, path)
}

func findWrong(n *yaml.Node, steps []string, wrong string) int {
	n = follow(n)
	if n == nil {
		return 0
	}
	if n.Kind == yaml.SequenceNode && (len(steps) > 0 || !strings.HasPrefix(wrong, "array")) {
		for _, e := range n.Content {
			if line := findWrong(e, steps, wrong); line > 0 {
				return line
			}
		}
		return 0
	}
	if len(steps) == 0 {
		if isJSON(n, wrong) {
			return n.Line
		}
		return 0
	}
	return findWrong(child(n, steps[0]), steps[1:], wrong)
}

// isJSON reports whether n is of the JSON type that the decoder names ("string",
// "number 1.5", "bool", "array", "object").
func isJSON(n *yaml.Node, typ string) bool {
	typ, literal, _ := strings.Cut(typ, " ")
	switch n.Kind {
	case yaml.MappingNode:
		return typ == "object"
	case yaml.SequenceNode:
		return typ == "array"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return typ == "number" && (literal == "" || literal == n.Value)
	case "!!bool":
		return typ == "bool"
	}
	return typ == "string"
}

func descend(n *yaml.Node, step string) (*yaml.Node, int) {
	n = follow(n)
	if n == nil {
		return nil, 0
	}
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
		return nil, 0
	}
	if n.Kind != yaml.MappingNode {
		return nil, 0
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i+1], n.Content[i].Line
		}
	}
	return nil, 0
}

// splitPath splits "a.b[0].c[x.y]" into a, b, 0, c, x.y.
func splitPath(path string) []string {
	var steps []string
	for path != "" {
		if path[0] == '[' {
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return append(steps, path[1:])
			}
			steps = append(steps, path[1:end])
			path = strings.TrimPrefix(path[end+1:], ".")
			continue
		}
		i := strings.IndexAny(path, ".[")
		if i < 0 {
			return append(steps, path)
		}
		steps = append(steps, path[:i])
		path = strings.TrimPrefix(path[i:], ".")
	}
	return steps
}
