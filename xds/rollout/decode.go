// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unique"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// ErrReport is wrapped by every error about a malformed Report.
var ErrReport = errors.New("malformed report")

// Bounds on the parts of a Report whose number is not bounded by Config: far
// above what is needed of them. What is beyond is left out, as it is never what
// somebody waits for: a sidecar must not lose its stream for a long life.
const (
	maxDestinations = 256  // of one service
	maxDirect       = 4096 // destinations that were dialled past the sidecar
	maxHolds        = 64
	maxNames        = 64  // of a hold's missing
	maxText         = 512 // bytes of a name or a UID
)

// The holds, and how they end.
var (
	holdNames   = []string{holdStart, holdReady, holdDrain}
	holdReasons = []string{reasonAnswered, reasonTimeout, reasonSilent, reasonLatched, reasonWaiting}
)

const (
	holdStart = "start"
	holdReady = "ready"
	holdDrain = "drain"

	reasonAnswered = "answered"
	reasonTimeout  = "timeout"
	reasonSilent   = "silent"
	reasonLatched  = "latched"
	reasonWaiting  = "waiting" // it goes on
)

// report is a Report, checked.
type report struct {
	services []serviceReport
	direct   []endpointReport
	dialled  []dialled // nil: not set
	own      *own
	holds    []holdEnd
	leaving  bool
}

type serviceReport struct {
	svc          xds.Service
	gone         bool
	active       bool
	destinations []string
	endpoints    []endpointReport
}

type endpointReport struct {
	id   endpointID
	gone bool
	endpoint
}

// endpointID is an address and the pod that was behind it. The same endpoint is
// reported by thousands of sidecars: it is kept once.
type endpointID = unique.Handle[endpointKey]

type endpointKey struct {
	addr netip.AddrPort
	uid  string
}

func idOf(addr netip.AddrPort, uid string) endpointID { return unique.Make(endpointKey{addr, uid}) }

// endpoint is what a sidecar said of one.
type endpoint struct {
	answer           answer
	draining, picked bool
	inFlight         uint32
	youngest         time.Duration // of those in flight, its age when the drain began
	failed, replayed uint64
}

type answer uint8

const (
	none answer = iota
	connected
	failed
)

// dialled is an address that connections go to which did not pass the sidecar.
type dialled struct {
	addr  netip.AddrPort
	count uint64
}

// own is what a pod decided about itself.
type own struct {
	ready, draining, drained bool
	drainStreams             time.Duration
}

type holdEnd struct {
	hold    string
	waited  time.Duration
	reason  string
	missing []string
	record  bool
}

// decode checks a Report. The error names the field.
func decode(r *api.Report) (*report, error) {
	d := &decoder{}
	out := &report{leaving: r.GetLeaving()}
	for i, s := range r.GetServices() {
		out.services = append(out.services, d.service(i, s))
	}
	out.direct = d.endpoints(noService, r.GetDirect())
	if c := r.GetDirectConnections(); c != nil {
		out.dialled = d.dialled(c)
	}
	if o := r.GetOwn(); o != nil {
		out.own = &own{o.GetReady(), o.GetDraining(), o.GetDrained(), millis(o.GetDrainStreamsMs())}
	}
	first := max(0, len(r.GetHolds())-maxHolds) // the newest are of interest
	for i, h := range r.GetHolds()[first:] {
		out.holds = append(out.holds, d.hold(i, h))
	}
	return out, d.err
}

// decoder keeps the first mistake.
type decoder struct{ err error }

func (d *decoder) fail(err error, field string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s: %s", ErrReport, fmt.Sprintf(field, args...), err.Error())
	}
}

func (d *decoder) service(i int, s *api.ServiceReport) serviceReport {
	svc, err := xds.ParseService(s.GetService())
	if err != nil {
		d.fail(err, "services[%d].service", i)
	}
	out := serviceReport{svc: svc, gone: s.GetGone(), active: s.GetActive()}
	for _, name := range s.GetDestinations()[:min(len(s.GetDestinations()), maxDestinations)] {
		if _, err := xds.ParseDestinationName(name); err != nil {
			d.fail(err, "services[%d].destinations", i)
		}
		out.destinations = append(out.destinations, name)
	}
	out.endpoints = d.endpoints(i, s.GetEndpoints())
	return out
}

// noService stands for Report.direct.
const noService = -1

func (d *decoder) endpoints(service int, list []*api.EndpointReport) []endpointReport {
	if len(list) == 0 {
		return nil
	}
	fail := func(err error, i int, field string) {
		if service == noService {
			d.fail(err, "direct[%d].%s", i, field)
		} else {
			d.fail(err, "services[%d].endpoints[%d].%s", service, i, field)
		}
	}
	out := make([]endpointReport, len(list))
	for i, e := range list {
		addr, err := netip.ParseAddrPort(e.GetAddress())
		switch {
		case err != nil:
			fail(err, i, "address")
		case addr.Addr().Zone() != "" || addr.Port() == 0:
			fail(fmt.Errorf("%.100q is no address of another host", e.GetAddress()), i, "address")
		}
		if err := checkText(e.GetUid()); err != nil {
			fail(err, i, "uid")
		}
		out[i] = endpointReport{
			id:   idOf(unmap(addr), e.GetUid()),
			gone: e.GetGone(),
			endpoint: endpoint{
				answer: answerOf(e.GetAnswer()), draining: e.GetDraining(), picked: e.GetPicked(),
				inFlight: e.GetInFlight(), youngest: millis(e.GetYoungestMs()), failed: e.GetFailed(), replayed: e.GetReplayed(),
			},
		}
	}
	return out
}

// answerOf takes an answer of a later version for none.
func answerOf(a api.EndpointReport_Answer) answer {
	switch a {
	case api.EndpointReport_CONNECTED:
		return connected
	case api.EndpointReport_FAILED:
		return failed
	default:
		return none
	}
}

func (d *decoder) dialled(c *api.DirectConnections) []dialled {
	list := c.GetDestinations()[:min(len(c.GetDestinations()), maxDirect)]
	out := make([]dialled, 0, len(list))
	for i, dst := range list {
		addr, err := netip.ParseAddrPort(dst.GetAddress())
		if err != nil {
			d.fail(err, "direct_connections.destinations[%d].address", i)
			continue
		}
		if dst.GetCount() > 0 {
			out = append(out, dialled{unmap(addr), dst.GetCount()})
		}
	}
	return out
}

func (d *decoder) hold(i int, h *api.HoldEnd) holdEnd {
	if !slices.Contains(holdNames, h.GetHold()) {
		d.fail(fmt.Errorf("%.40q is none of %s", h.GetHold(), strings.Join(holdNames, ", ")), "holds[%d].hold", i)
	}
	if !slices.Contains(holdReasons, h.GetReason()) {
		d.fail(fmt.Errorf("%.40q is none of %s", h.GetReason(), strings.Join(holdReasons, ", ")), "holds[%d].reason", i)
	}
	missing := h.GetMissing()[:min(len(h.GetMissing()), maxNames)]
	for _, name := range missing { // they end up in Events
		if err := checkText(name); err != nil {
			d.fail(err, "holds[%d].missing", i)
		}
	}
	return holdEnd{h.GetHold(), millis(h.GetWaitedMs()), h.GetReason(), slices.Clone(missing), h.GetRecord()}
}

func checkText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(s), maxText)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return errors.New("it has characters that cannot be printed")
	}
	return nil
}

// millis is ms as a Duration: at most a day, which is as good as for ever.
func millis(ms uint64) time.Duration {
	const most = 24 * time.Hour
	if ms >= uint64(most/time.Millisecond) {
		return most
	}
	return time.Duration(ms) * time.Millisecond
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
