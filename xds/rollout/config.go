// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// Config configures a Tracker.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// Replica is the name of this one, for people. Required.
	Replica string
	// Recorder writes Events. Nil: nobody does.
	Recorder Recorder
	// Settle is how long nothing is claimed after Serving. Default: xds.Settle.
	Settle time.Duration
	// MaxServices and MaxEndpoints bound what is kept of one sidecar's Reports;
	// endpoints of all services together. Default: 4,096 and 65,536.
	MaxServices, MaxEndpoints int
}

// Recorder writes Events of pods. Event is called by Run and must not wait.
type Recorder interface {
	Event(pod snapshot.ObjectKey, uid, reason, message string)
}

// Directory knows what the API server says. Its methods are called by Run,
// without the Tracker's lock.
type Directory interface {
	// Membership is what is known of a Pod and of the services that it is in.
	Membership(pod snapshot.ObjectKey) (snapshot.Membership, bool)
	// SetDraining makes the endpoints of the Pod of that UID DRAINING for everyone, or no longer.
	SetDraining(uid string, draining snapshot.Drain)
	// ServicesAt are the Services that an address which an app dialled belongs to.
	ServicesAt(dst netip.AddrPort) []snapshot.ObjectKey
}

// Sink takes the statuses of one stream. Put must not block: a newer status
// replaces one that was not sent yet. What it is given is not written again.
type Sink interface {
	Put(*api.PodStatus)
}

// validate sets the defaults and returns every mistake at once.
func (c *Config) validate() error {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("field Logger: required"))
	}
	if c.Replica == "" {
		errs = append(errs, errors.New("field Replica: required"))
	}
	if c.Settle == 0 {
		c.Settle = xds.Settle
	}
	if c.MaxServices == 0 {
		c.MaxServices = 4096
	}
	if c.MaxEndpoints == 0 {
		c.MaxEndpoints = 65536
	}
	for name, v := range map[string]int64{"Settle": int64(c.Settle), "MaxServices": int64(c.MaxServices), "MaxEndpoints": int64(c.MaxEndpoints)} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("field %s: %d is negative", name, v))
		}
	}
	return errors.Join(errs...)
}
