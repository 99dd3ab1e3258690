// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/h2"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// The first five are gRFC A66's, in Prometheus form; the rest are ours.
var (
	descStarted  = desc("grpc_client_attempt_started_total", "RPC attempts begun, also those that have not ended.", "grpc_method", "grpc_target")
	descAttempt  = desc("grpc_client_attempt_duration_seconds", "From the choice of an endpoint to the end of an attempt.", "grpc_method", "grpc_target", "grpc_status")
	descSent     = desc("grpc_client_attempt_sent_total_compressed_message_size_bytes", "Compressed message bytes sent in an attempt.", "grpc_method", "grpc_target", "grpc_status")
	descReceived = desc("grpc_client_attempt_rcvd_total_compressed_message_size_bytes", "Compressed message bytes received in an attempt.", "grpc_method", "grpc_target", "grpc_status")
	descCall     = desc("grpc_client_call_duration_seconds", "From the app's request to its outcome, all attempts and waits together.", "grpc_method", "grpc_target", "grpc_status")

	descEndpointRPCs     = desc("evenkeel_endpoint_rpcs_total", "RPC attempts that ended, by endpoint.", "service", "endpoint", "pod", "grpc_status")
	descEndpointInFlight = desc("evenkeel_endpoint_rpcs_in_flight", "RPCs picked for an endpoint and not ended.", "service", "endpoint", "pod")
	descEndpoints        = desc("evenkeel_service_endpoints", "Endpoints of a service by the control plane's state.", "service", "state")
	descConnected        = desc("evenkeel_service_endpoints_connected", "Endpoints of a service with an established session.", "service")

	descConns        = desc("evenkeel_connections_accepted_total", "Connections of the app by what they turned out to be.", "kind")
	descConnsClosed  = desc("evenkeel_connections_refused_total", "Connections of the app that were closed at once, and why.", "reason")
	descSessions     = desc("evenkeel_sessions", "HTTP/2 sessions that are open.", "side")
	descRaws         = desc("evenkeel_raw_connections", "Connections that are relayed as bytes.")
	descRawBytes     = desc("evenkeel_raw_bytes_total", "Bytes of such connections, read from the side named.", "side")
	descStreams      = desc("evenkeel_streams", "Streams that are open.")
	descWaiting      = desc("evenkeel_streams_waiting", "Streams that wait, and for what.", "reason")
	descWaits        = desc("evenkeel_waits_total", "Waits of streams, and for what.", "reason")
	descErrors       = desc("evenkeel_errors_total", "Responses that the sidecar made in the server's place.", "grpc_status")
	descReplays      = desc("evenkeel_replays_total", "Unprocessed requests that were sent to another endpoint.")
	descReplayGiven  = desc("evenkeel_replay_given_up_total", "Requests that grew beyond what is kept for a replay.")
	descReplayBytes  = desc("evenkeel_replay_bytes", "Request bytes kept for a replay.")
	descDials        = desc("evenkeel_upstream_dials_total", "Connects to servers.")
	descDialFailures = desc("evenkeel_upstream_dial_failures_total", "Connects to servers that brought no session.")
	descGoAways      = desc("evenkeel_upstream_goaways_total", "GOAWAYs from servers.")
	descDeadPeers    = desc("evenkeel_upstream_dead_peers_total", "Servers that vanished without a word.")
	descQueueFull    = desc("evenkeel_upstream_queue_full_total", "Streams turned away from an endpoint's full queue.")
	descH2Abuse      = desc("evenkeel_h2_abuse_total", "Connections ended for too much of one kind of frame.", "side", "kind")
	descH2Bounds     = desc("evenkeel_h2_bounds_total", "Other bounds that peers ran into: field blocks and lists that are too large, output that is not read, timeouts.", "side", "bound")
	descH2Errors     = desc("evenkeel_h2_connection_errors_total", "Connections ended for a breach of HTTP/2.", "side")
	descH2Streams    = desc("evenkeel_h2_streams_total", "HTTP/2 streams that ended, and how.", "side", "end")
	descH2Bytes      = desc("evenkeel_h2_sent_bytes_total", "Bytes written.", "side")
	descTurns        = desc("evenkeel_loop_turns_total", "Turns of the event loop.")

	descs = []*prometheus.Desc{
		descStarted, descAttempt, descSent, descReceived, descCall,
		descEndpointRPCs, descEndpointInFlight, descEndpoints, descConnected,
		descConns, descConnsClosed, descSessions, descRaws, descRawBytes, descStreams, descWaiting, descWaits,
		descErrors, descReplays, descReplayGiven, descReplayBytes, descDials, descDialFailures, descGoAways,
		descDeadPeers, descQueueFull, descH2Abuse, descH2Bounds, descH2Errors, descH2Streams, descH2Bytes, descTurns,
	}
)

type sink chan<- prometheus.Metric

func (ch sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (ch sink) gauge(d *prometheus.Desc, v int, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
}

func (ch sink) histogram(d *prometheus.Desc, counts []uint64, bounds []float64, sum float64, labels ...string) {
	cumulative := make(map[float64]uint64, len(bounds))
	var n uint64
	for i, b := range bounds {
		n += counts[i]
		cumulative[b] = n
	}
	n += counts[len(bounds)]
	ch <- prometheus.MustNewConstHistogram(d, n, sum, cumulative, labels...)
}

func (n *numbers) send(to chan<- prometheus.Metric) {
	ch := sink(to)
	for i := range n.rpcs {
		n.rpcs[i].send(ch)
	}
	for i := range n.endpoints {
		e := &n.endpoints[i]
		ch.gauge(descEndpointInFlight, e.inFlight, e.service, e.addr, e.pod)
		for c, v := range e.rpcs {
			if v > 0 {
				ch.counter(descEndpointRPCs, v, e.service, e.addr, e.pod, code(c).String())
			}
		}
	}
	for _, s := range n.services {
		for st, v := range s.states {
			ch.gauge(descEndpoints, v, s.name, balancer.State(st).String())
		}
		ch.gauge(descConnected, s.up, s.name)
	}
	n.sendConns(ch)
	n.sendStreams(ch)
	sendH2(ch, "downstream", &n.down)
	sendH2(ch, "upstream", &n.up)
	ch.counter(descTurns, n.turns)
}

func (m *methodNumbers) send(ch sink) {
	if m.started > 0 {
		ch.counter(descStarted, m.started, m.method, m.target)
	}
	for i := range m.codes {
		c := &m.codes[i]
		l := func() []string { return []string{m.method, m.target, c.code.String()} }
		ch.histogram(descAttempt, c.duration.counts[:], latencyBounds[:], c.duration.sum, l()...)
		ch.histogram(descSent, c.sent.counts[:], sizeBounds[:], c.sent.sum, l()...)
		ch.histogram(descReceived, c.received.counts[:], sizeBounds[:], c.received.sum, l()...)
		ch.histogram(descCall, c.call.counts[:], latencyBounds[:], c.call.sum, l()...)
	}
}

func (n *numbers) sendConns(ch sink) {
	ch.counter(descConns, n.listener.HTTP2, "http2")
	ch.counter(descConns, n.stats.LateHTTP2, "http2_late")
	ch.counter(descConns, n.listener.Raw-n.stats.LateHTTP2, "raw")
	ch.counter(descConnsClosed, n.listener.NoDescriptor, "no_descriptor")
	ch.counter(descConnsClosed, n.listener.TooMany, "too_many_undecided")
	ch.counter(descConnsClosed, n.listener.AcceptErrors, "accept_error")
	ch.counter(descConnsClosed, n.stats.RawFailed, "raw_unreachable")
	ch.gauge(descSessions, n.downs, "downstream")
	ch.gauge(descSessions, n.pools.Sessions, "upstream")
	ch.gauge(descRaws, n.raws)
	ch.counter(descRawBytes, n.stats.RawBytesUp, "downstream")
	ch.counter(descRawBytes, n.stats.RawBytesDown, "upstream")
	ch.counter(descDials, n.pools.Dials)
	ch.counter(descDialFailures, n.pools.DialFailures)
	ch.counter(descGoAways, n.pools.GoAways)
	ch.counter(descDeadPeers, n.pools.DeadPeers)
	ch.counter(descQueueFull, n.pools.QueueFull)
}

func (n *numbers) sendStreams(ch sink) {
	ch.gauge(descStreams, n.relays)
	for w := waitRoute; w < numWaits; w++ {
		ch.gauge(descWaiting, n.waiting[w], w.String())
		ch.counter(descWaits, n.waits[w], w.String())
	}
	for c, v := range n.stats.Errors {
		if v > 0 {
			ch.counter(descErrors, v, code(c).String())
		}
	}
	ch.counter(descReplays, n.stats.Replays)
	ch.counter(descReplayGiven, n.stats.ReplayGivenUp)
	ch.gauge(descReplayBytes, n.kept)
}

func sendH2(ch sink, side string, s *h2.Stats) {
	for a, v := range s.Abuse {
		ch.counter(descH2Abuse, v, side, h2.Abuse(a).String())
	}
	ch.counter(descH2Bounds, s.HeaderFloods, side, "field_block")
	ch.counter(descH2Bounds, s.HeadersTooLarge, side, "field_list")
	ch.counter(descH2Bounds, s.OutputOverflows, side, "output")
	ch.counter(descH2Bounds, s.Timeouts, side, "time")
	for k, v := range s.StreamsClosed {
		ch.counter(descH2Streams, v, side, strings.ReplaceAll(h2.EndKind(k).String(), " ", "_"))
	}
	ch.counter(descH2Errors, s.ConnectionErrors, side)
	ch.counter(descH2Bytes, s.BytesSent, side)
}
