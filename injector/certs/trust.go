// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"bytes"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Trust passes the bundle from the Keeper to the Publisher.
type Trust struct {
	mu     sync.Mutex
	bundle []byte
	owner  *ownerRef
	// changed tells the Publisher; one waiting notice is as good as many.
	changed chan event.GenericEvent
}

// NewTrust returns an empty one.
func NewTrust() *Trust { return &Trust{changed: make(chan event.GenericEvent, 1)} }

// Set replaces the bundle and what owns the objects that hold it.
func (t *Trust) Set(bundle []byte, owner *ownerRef) {
	t.mu.Lock()
	same := bytes.Equal(t.bundle, bundle) && (owner == nil) == (t.owner == nil) && (owner == nil || owner.UID == t.owner.UID)
	t.bundle, t.owner = bundle, owner
	t.mu.Unlock()
	if same {
		return
	}
	select {
	case t.changed <- event.GenericEvent{}:
	default:
	}
}

// Get returns them; a nil bundle: there is none yet.
func (t *Trust) Get() ([]byte, *ownerRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bundle, t.owner
}
