// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import "slices"

// index is a counted set of objects under a key. The sets are lists: one of them
// has a few members, and there are as many as there are Pods.
type index[K comparable] map[K][]counted

type counted struct {
	key ObjectKey
	n   int
}

func (x index[K]) add(k K, o ObjectKey) {
	list := x[k]
	if i := indexOf(list, o); i >= 0 {
		list[i].n++
		return
	}
	if list == nil {
		list = make([]counted, 0, 1)
	}
	x[k] = append(list, counted{o, 1})
}

func (x index[K]) remove(k K, o ObjectKey) {
	list := x[k]
	i := indexOf(list, o)
	if i < 0 {
		return
	}
	if list[i].n--; list[i].n > 0 {
		return
	}
	if len(list) == 1 {
		delete(x, k)
		return
	}
	x[k] = slices.Delete(list, i, i+1)
}

func indexOf(list []counted, o ObjectKey) int {
	return slices.IndexFunc(list, func(c counted) bool { return c.key == o })
}
