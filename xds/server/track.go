// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/rollout"
)

// rolloutService describes evenkeel.v1.Rollout (xds/api/rollout.proto), which has
// one method.
var rolloutService = grpc.ServiceDesc{
	ServiceName: api.RolloutService,
	HandlerType: (*rolloutServer)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Track", ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, g grpc.ServerStream) error { return srv.(rolloutServer).track(g) },
	}},
	Metadata: "rollout.proto",
}

// rolloutServer is what grpc checks Server against.
type rolloutServer interface {
	track(g grpc.ServerStream) error
}

// statusBox holds the newest status that was not sent: a stream that is slow
// skips those in between, and nobody waits for it.
type statusBox struct {
	outlet
	newest *api.PodStatus
}

func newStatusBox() *statusBox {
	return &statusBox{outlet: newOutlet()}
}

// Put never blocks.
func (b *statusBox) Put(s *api.PodStatus) {
	b.mu.Lock()
	b.newest = s
	b.mu.Unlock()
	b.signal()
}

func (b *statusBox) take() *api.PodStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.newest
	b.newest = nil
	return s
}

// trackStream is one sidecar's Track stream. The goroutine of the RPC sends; a
// second one receives, so that a sidecar which does not read is still heard.
type trackStream struct {
	srv  *Server
	log  *slog.Logger
	grpc grpc.ServerStream
	seq  uint64
	node xds.Node
	box  *statusBox

	stall stall
}

// track serves one stream: it authenticates the sidecar, takes in its Reports and
// sends it statuses, until either side ends. Nothing here ends the stream of a
// sidecar that says nothing: its lease does not depend on the connection.
func (s *Server) track(g grpc.ServerStream) error {
	ctx := g.Context()
	st := &trackStream{srv: s, grpc: g, seq: s.streams.Add(1), box: newStatusBox()}
	first := &api.Report{}
	n, err := s.admit(ctx, &st.box.outlet, func() (xds.Node, error) {
		if err := g.RecvMsg(first); err != nil {
			return xds.Node{}, errHello{err}
		}
		return reporter(first)
	})
	if err != nil {
		return err
	}
	defer s.hub.unbindPod(&st.box.outlet, n.UID)
	st.node, st.log = n, s.log.With("sidecar", n.ID(), "stream", st.seq)
	t := s.cfg.Tracker
	t.TrackOpened(st.seq, n, st.box)
	defer t.TrackClosed(st.seq)
	if err := st.take(first); err != nil {
		return err
	}
	s.metrics.tracks.Inc()
	defer s.metrics.tracks.Dec()
	st.log.Debug("sidecar reports")
	err = st.run(ctx)
	st.log.Debug("sidecar reports no more", "reason", err)
	return err
}

// run sends. It returns when the stream is to end; receive ends with it.
func (st *trackStream) run(ctx context.Context) error {
	st.stall.watch(ctx, st.srv.cfg.StallTimeout)
	defer st.stall.end()
	received := make(chan error, 1)
	go func() { received <- st.receive() }()
	for {
		select {
		case <-st.box.notify:
			s := st.box.take()
			if s == nil {
				continue
			}
			st.stall.begin()
			err := st.grpc.SendMsg(s)
			st.stall.end()
			if err != nil {
				return st.sendError(err)
			}
		case err := <-received:
			return st.sendError(clean(err))
		case <-st.box.ended:
			return st.box.endReason()
		case <-st.srv.stop:
			return errShutdown
		case <-ctx.Done():
			return st.sendError(status.FromContextError(ctx.Err()).Err())
		}
	}
}

func (st *trackStream) receive() error {
	for {
		r := &api.Report{}
		if err := st.grpc.RecvMsg(r); err != nil {
			return err
		}
		if r.GetSidecar() != nil {
			return st.malformed("sidecar: only the first report of a stream says who it is from")
		}
		if err := st.take(r); err != nil {
			return err
		}
	}
}

func (st *trackStream) take(r *api.Report) error {
	err := st.srv.cfg.Tracker.TrackReport(st.seq, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rollout.ErrGone):
		return errPodGone
	}
	return st.malformed(err.Error())
}

func (st *trackStream) malformed(text string) error {
	st.srv.metrics.badReports.Inc()
	st.log.Warn("ended a sidecar's stream of reports: it cannot be read", "error", text)
	return status.Error(codes.InvalidArgument, "evenkeel: "+text)
}

func (st *trackStream) sendError(err error) error {
	if !st.stall.fired.Load() {
		return err
	}
	st.srv.metrics.slow.Inc()
	st.log.Warn("closed a slow sidecar's connection: it left statuses unread", "for", st.srv.cfg.StallTimeout)
	return status.Errorf(codes.ResourceExhausted, "evenkeel: %s did not read for %s", st.node.ID(), st.srv.cfg.StallTimeout)
}

// reporter reads who a stream's first Report is from.
func reporter(r *api.Report) (xds.Node, error) {
	c := r.GetSidecar()
	if c == nil {
		return xds.Node{}, status.Error(codes.InvalidArgument, "evenkeel: malformed report: sidecar: the first report of a stream says who it is from")
	}
	n := xds.Node{Namespace: c.GetNamespace(), Pod: c.GetPod(), UID: c.GetUid(), Workload: c.GetWorkload(), Node: c.GetNode(), Zone: c.GetZone()}
	n, err := xds.NodeFrom(n.ID(), n.Metadata())
	if err != nil {
		return xds.Node{}, status.Errorf(codes.InvalidArgument, "evenkeel: malformed report: sidecar: %s", err)
	}
	return n, nil
}
