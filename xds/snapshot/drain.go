// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

// Drain says whether a Pod drains although it is not being deleted.
type Drain uint8

// The Pod's endpoints are what its slices and conditions say, or DRAINING.
const (
	DrainOff Drain = iota
	DrainOn
)

// SetDraining makes the endpoints of the Pod of that UID DRAINING in all its
// services, or no longer. It is forgotten when the Pod is gone; a Pod that is not
// known is not remembered at all.
func (s *Store) SetDraining(uid string, draining Drain) {
	p := s.podOf[uid]
	if p == nil || s.isDraining(uid) == (draining == DrainOn) {
		return
	}
	if draining == DrainOn {
		s.draining[uid] = struct{}{}
	} else {
		delete(s.draining, uid)
	}
	s.changed[Topic{kind: topicPod, key: p.Key}] = struct{}{}
	s.touchReferrers(s.byPod[p.Key])
}

func (s *Store) isDraining(uid string) bool {
	if len(s.draining) == 0 || uid == "" {
		return false
	}
	_, on := s.draining[uid]
	return on
}
