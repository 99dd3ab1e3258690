// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"io"
	"log/slog"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
)

type adsStream = discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

var (
	errPodGone  = status.Error(codes.Unauthenticated, "evenkeel: the pod that this stream belongs to is gone")
	errShutdown = status.Error(codes.Unavailable, "evenkeel: this control plane is shutting down; connect to another")
)

// stream is one sidecar's ADS stream. All but the mailbox, the stall timer's
// flag and what receive does is owned by the goroutine of run.
type stream struct {
	srv  *Server
	log  *slog.Logger
	grpc adsStream
	seq  uint64
	node xds.Node
	mb   *mailbox

	requests chan *discoverypb.DeltaDiscoveryRequest // from receive; closed after recvErr is set
	recvErr  error

	subs  map[subscription]*sub
	types map[string]*typeState  // asked about so far
	work  map[subscription]value // taken from the mailbox, not sent yet

	unacked []unacked
	stall   stall
	logged  int // malformed names and NACKs that were logged
}

// typeState is what a stream keeps of a resource type.
type typeState struct {
	// owesAnswer: the first request of a type is answered in any case, if need be
	// with an empty response: a client that has everything learns that it has.
	owesAnswer bool
}

// sub is what the client was told of a subscription.
type sub struct {
	told    bool
	version string            // of a destination; empty: told that it is unknown
	set     setState          // of a collection
	have    map[string]string // versions it brought along, until the first answer
}

// unacked is a response on the way.
type unacked struct {
	nonce   string
	typeURL string
}

// DeltaAggregatedResources serves one stream: it authenticates the sidecar, then
// sends what it subscribes to until either side ends.
func (s *Server) DeltaAggregatedResources(g adsStream) error {
	ctx := g.Context()
	st := &stream{
		srv:      s,
		log:      s.log,
		grpc:     g,
		seq:      s.streams.Add(1),
		mb:       newMailbox(),
		requests: make(chan *discoverypb.DeltaDiscoveryRequest),
		subs:     map[subscription]*sub{},
		types:    map[string]*typeState{},
		work:     map[subscription]value{},
	}
	first, err := st.open(ctx)
	if err != nil {
		return err
	}
	defer s.hub.unbindPod(&st.mb.outlet, st.node.UID)
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	if o := s.cfg.Observer; o != nil {
		o.StreamOpened(st.seq, st.node)
		defer o.StreamClosed(st.seq)
	}
	defer st.unsubscribeAll()

	st.log.Debug("sidecar connected")
	err = st.run(ctx, first)
	st.log.Debug("sidecar disconnected", "reason", err)
	return err
}

// run is the stream's one goroutine beside receive.
func (st *stream) run(ctx context.Context, first *discoverypb.DeltaDiscoveryRequest) error {
	st.stall.watch(st.grpc.Context(), st.srv.cfg.StallTimeout)
	defer st.stall.end()

	go st.receive(ctx)
	if err := st.handle(first); err != nil {
		return err
	}
	for {
		st.collect()
		if st.hasWork() {
			if err := st.sendSome(); err != nil {
				return st.sendError(err)
			}
			select { // let ACKs, names that are dropped and the end come in between
			case req, ok := <-st.requests:
				if err := st.received(req, ok); err != nil {
					return clean(err)
				}
			case <-st.mb.ended:
				return st.mb.endReason()
			case <-st.srv.stop:
				return errShutdown
			default:
			}
			continue
		}
		select {
		case <-st.mb.notify:
		case req, ok := <-st.requests:
			if err := st.received(req, ok); err != nil {
				return clean(err)
			}
		case <-st.mb.ended:
			return st.mb.endReason()
		case <-st.srv.stop:
			return errShutdown
		case <-ctx.Done():
			return st.sendError(status.FromContextError(ctx.Err()).Err())
		}
	}
}

// receive hands requests to run. It ends when the stream does, which the return
// of the handler brings about.
func (st *stream) receive(ctx context.Context) {
	defer close(st.requests)
	for {
		req, err := st.grpc.Recv()
		if err != nil {
			st.recvErr = err
			return
		}
		select {
		case st.requests <- req:
		case <-ctx.Done():
			st.recvErr = ctx.Err()
			return
		}
	}
}

func (st *stream) received(req *discoverypb.DeltaDiscoveryRequest, ok bool) error {
	if !ok {
		if st.stall.fired.Load() {
			return st.sendError(st.recvErr)
		}
		return st.recvErr
	}
	return st.handle(req)
}

// clean turns the client's own end of the stream into success.
func clean(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (st *stream) sendError(err error) error {
	if !st.stall.fired.Load() {
		return err
	}
	st.srv.metrics.slow.Inc()
	st.log.Warn("closed a slow sidecar's connection: it left responses unread or without their ACK",
		"for", st.srv.cfg.StallTimeout, "unacked", len(st.unacked), "waiting", len(st.work))
	return status.Errorf(codes.ResourceExhausted, "evenkeel: %s did not read or ACK for %s", st.node.ID(), st.srv.cfg.StallTimeout)
}

func (st *stream) unsubscribeAll() {
	keys := make([]subscription, 0, len(st.subs))
	for k := range st.subs {
		keys = append(keys, k)
		st.srv.metrics.subscriptions.WithLabelValues(typeLabel(k.typeURL)).Dec()
	}
	st.srv.hub.unsubscribe(st.mb, keys...)
}
