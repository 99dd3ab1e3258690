// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"strings"
	"sync"
)

// maxInterned bounds what is remembered: more names than a cluster has of
// namespaces, nodes and zones. Beyond it, it starts anew.
const maxInterned = 1 << 16

// interner gives the same string for the same text, so that a hundred thousand
// Pods do not each hold a copy of their namespace's and node's names.
type interner struct {
	mu   sync.Mutex
	seen map[string]string
}

var names = interner{seen: map[string]string{}}

func (in *interner) of(s string) string {
	if s == "" {
		return ""
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if have, ok := in.seen[s]; ok {
		return have
	}
	if len(in.seen) >= maxInterned {
		clear(in.seen)
	}
	s = strings.Clone(s) // it may be a part of something larger
	in.seen[s] = s
	return s
}
