// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import "evenkeel.dev/sidecar"

// sink is the data plane as discovery sees it.
type sink struct{ *sidecar.Sidecar }

// Warm passes the wish on to a data plane that knows of it.
func (s sink) Warm(service string) {
	if w, ok := any(s.Sidecar).(interface{ Warm(service string) }); ok {
		w.Warm(service)
	}
}
