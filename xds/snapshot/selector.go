// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

// selectorPair is a label in a namespace.
type selectorPair struct{ namespace, pair string }

// choose puts a Service into bySelector under one pair of its selector. A Pod that
// it selects has this pair too, so it is found among the Services of the Pod's own
// labels. The pair with the fewest Services yet: some are in every selector.
func (s *Store) choose(svc *Service) {
	var best selectorPair
	fewest := -1
	for pair := range svc.Selector.pairs() {
		k := selectorPair{svc.Key.Namespace, pair}
		if n := len(s.bySelector[k]); fewest < 0 || n < fewest {
			best, fewest = k, n
		}
	}
	if fewest >= 0 {
		s.bySelector.add(best, svc.Key)
	}
}

func (s *Store) unselect(svc *Service) {
	for pair := range svc.Selector.pairs() {
		s.bySelector.remove(selectorPair{svc.Key.Namespace, pair}, svc.Key)
	}
}
