// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"unique"
)

// Labels are pairs sorted by key: the labels of a Pod, or a Service's selector.
// It is comparable and as large as a pointer: the Pods of a ReplicaSet, which have
// the same labels, share them. The zero value has none.
type Labels struct {
	h unique.Handle[string] // key NUL value NUL key …
}

// NewLabels returns the pairs of m. A pair with a NUL in it, which Kubernetes
// would not take, is left out.
func NewLabels(m map[string]string) Labels {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.IndexByte(k, 0) >= 0 || strings.IndexByte(m[k], 0) >= 0 {
			continue
		}
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(m[k])
		b.WriteByte(0)
	}
	if b.Len() == 0 {
		return Labels{}
	}
	return Labels{unique.Make(b.String())}
}

// IsZero reports whether there are none.
func (l Labels) IsZero() bool { return l == Labels{} }

// All are the pairs in the order of their keys.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for pair := range l.pairs() {
			if k, v, _ := strings.Cut(pair, "\x00"); !yield(k, v) {
				return
			}
		}
	}
}

// pairs are "key NUL value", as they are compared.
func (l Labels) pairs() iter.Seq[string] {
	return func(yield func(string) bool) {
		for pair, rest := l.first(); pair != ""; pair, rest = cutPair(rest) {
			if !yield(pair) {
				return
			}
		}
	}
}

// first returns the first pair, empty if there is none, and the rest for cutPair.
func (l Labels) first() (pair, rest string) {
	if l.IsZero() {
		return "", ""
	}
	return cutPair(l.h.Value())
}

func cutPair(text string) (pair, rest string) {
	if text == "" {
		return "", ""
	}
	k := strings.IndexByte(text, 0) + 1
	end := k + strings.IndexByte(text[k:], 0)
	return text[:end], text[end+1:]
}

// selects reports whether a selector selects what has the labels: every pair is
// one of theirs. A selector without pairs selects nothing, as of a Service.
func (l Labels) selects(labels Labels) bool {
	if l.IsZero() {
		return false
	}
	have, rest := labels.first()
	for want := range l.pairs() {
		for have != "" && have != want {
			have, rest = cutPair(rest)
		}
		if have == "" {
			return false
		}
	}
	return true
}
