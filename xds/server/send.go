// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"cmp"
	"slices"
	"time"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// setState is what a client was sent of a collection.
type setState struct {
	answered bool
	sent     *snapshot.Set // nil: gone
}

// hasWork reports whether there is something to send and the client has room
// for it. Without room, changes are coalesced until ACKs come.
func (st *stream) hasWork() bool {
	if len(st.unacked) >= st.srv.cfg.MaxUnacked {
		return false
	}
	return len(st.work) > 0 || st.owed() != ""
}

func (st *stream) owed() string {
	for t, ts := range st.types {
		if ts.owesAnswer {
			return t
		}
	}
	return ""
}

// sendSome sends all destinations or one collection: a destination first, since
// it is what makes the client ask for a collection.
func (st *stream) sendSome() error {
	for k := range st.work {
		if k.typeURL == xds.DestinationType {
			return st.sendDestinations()
		}
	}
	for k, v := range st.work {
		delete(st.work, k)
		return st.sendCollection(k, v)
	}
	t := st.owed()
	return st.sendAll(encode(&st.srv.frames.nonces, t, st.srv.cfg.MaxResponseBytes, nil, nil), time.Time{})
}

func (st *stream) sendDestinations() error {
	var resources []*snapshot.Resource
	var removed []string
	var since time.Time
	for k, v := range st.work {
		if k.typeURL != xds.DestinationType {
			continue
		}
		delete(st.work, k)
		su := st.subs[k]
		version := ""
		if v.destination != nil {
			version = v.destination.Version
		}
		if su.told && su.version == version {
			continue
		}
		su.told, su.version = true, version
		if v.destination != nil {
			resources = append(resources, v.destination)
		} else {
			removed = append(removed, k.name)
		}
		if !v.since.IsZero() && (since.IsZero() || v.since.Before(since)) {
			since = v.since
		}
	}
	if len(resources) == 0 && len(removed) == 0 {
		return nil
	}
	slices.SortFunc(resources, func(a, b *snapshot.Resource) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(removed)
	return st.sendAll(encode(&st.srv.frames.nonces, xds.DestinationType, st.srv.cfg.MaxResponseBytes, resources, removed), since)
}

func (st *stream) sendCollection(k subscription, v value) error {
	su := st.subs[k]
	var frames []*frame
	switch {
	case !su.set.answered && su.have != nil:
		frames = st.srv.frames.resume(k.name, v.set, su.have)
	case !su.set.answered:
		frames = st.srv.frames.of(step{kind: stepAnswer, to: v.set, name: k.name})
	case su.set.sent == v.set:
		return nil
	case su.set.sent == nil: // it is back
		frames = st.srv.frames.of(step{kind: stepAnswer, to: v.set, name: k.name})
	default:
		frames = st.srv.frames.of(step{kind: stepChange, from: su.set.sent, to: v.set, name: k.name})
	}
	su.have = nil
	su.set = setState{answered: true, sent: v.set}
	return st.sendAll(frames, v.since)
}

func (st *stream) sendAll(frames []*frame, since time.Time) error {
	for _, f := range frames {
		if err := st.send(f); err != nil {
			return err
		}
	}
	if len(frames) > 0 && !since.IsZero() {
		st.srv.metrics.propagation.Observe(time.Since(since).Seconds())
	}
	return nil
}

// send blocks while the client's flow control window is full, at most until the
// stall timer closes the connection.
func (st *stream) send(f *frame) error {
	if len(st.unacked) == 0 {
		st.stall.begin()
	}
	st.unacked = append(st.unacked, unacked{f.nonce, f.typeURL})
	if err := st.grpc.SendMsg(f); err != nil {
		return err
	}
	if ts := st.types[f.typeURL]; ts != nil {
		ts.owesAnswer = false
	}
	label := typeLabel(f.typeURL)
	st.srv.metrics.pushes.WithLabelValues(label).Inc()
	st.srv.metrics.bytes.WithLabelValues(label).Add(float64(len(f.wire)))
	return nil
}

func typeLabel(typeURL string) string {
	if typeURL == xds.EndpointType {
		return "endpoint"
	}
	return "destination"
}
