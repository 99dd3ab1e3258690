// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/rollout"
	"evenkeel.dev/xds/snapshot"
)

// Identity is what a token proves.
type Identity struct {
	Namespace string
	Pod       string
	UID       string // of the Pod
}

// Authenticator verifies a token. Errors are status errors or are answered as
// UNAUTHENTICATED; they reach the sidecar's log, so they say what is wrong.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (Identity, error)
}

// Observer is told who subscribes to which services. Its methods are called by
// the streams' goroutines and must not block. stream tells apart two streams of
// one sidecar, of which one may be a leftover.
type Observer interface {
	StreamOpened(stream uint64, n xds.Node)
	Subscribed(stream uint64, svc xds.Service)
	Unsubscribed(stream uint64, svc xds.Service)
	StreamClosed(stream uint64)
}

// Tracker is told what sidecars report, and tells each pod about itself. Its
// methods must not block. Streams are numbered like those of Observer, in one series.
type Tracker interface {
	// Serving: sidecars can connect from now on.
	Serving()
	// Changed: what Membership and ServicesAt answer may have changed; the UIDs are
	// those of Pods that are new and that are gone.
	Changed(came, left []string)
	TrackOpened(stream uint64, n xds.Node, sink rollout.Sink)
	// TrackReport returns an error that wraps rollout.ErrReport or rollout.ErrGone when the stream is to end.
	TrackReport(stream uint64, r *api.Report) error
	TrackClosed(stream uint64)
}

// open does what comes before the first answer.
func (st *stream) open(ctx context.Context) (*discoverypb.DeltaDiscoveryRequest, error) {
	var first *discoverypb.DeltaDiscoveryRequest
	n, err := st.srv.admit(ctx, &st.mb.outlet, func() (n xds.Node, err error) {
		if first, err = st.grpc.Recv(); err != nil {
			return xds.Node{}, errHello{err}
		}
		return nodeOf(first)
	})
	if err != nil {
		return nil, err
	}
	st.node, st.mb.node = n, n.Node
	st.log = st.srv.log.With("sidecar", n.ID(), "stream", st.seq)
	return first, nil
}

// errHello is that the first message did not come: the client's own doing.
type errHello struct{ error }

// admit is what every stream has to pass: token, first message, synced watch,
// Pod. Without an error o is bound to the Pod. hello receives the first message
// and says whom it is from.
func (s *Server) admit(ctx context.Context, o *outlet, hello func() (xds.Node, error)) (xds.Node, error) {
	var id *Identity
	if s.cfg.Authenticator != nil {
		i, err := s.authenticate(ctx)
		if err != nil {
			s.refused(ctx, "token", err)
			return xds.Node{}, err
		}
		id = &i
	}
	// A client that opens a stream and says nothing is not kept.
	silent := time.AfterFunc(s.cfg.StallTimeout, func() { closeConn(ctx) })
	n, err := hello()
	silent.Stop()
	if h, ok := errors.AsType[errHello](err); ok {
		if errors.Is(h.error, io.EOF) {
			h.error = status.Error(codes.InvalidArgument, "evenkeel: the stream ended before its first message")
		}
		return xds.Node{}, h.error
	}
	if err == nil && id != nil {
		err = id.check(&n)
	}
	if err != nil {
		s.refused(ctx, "node", err)
		return xds.Node{}, err
	}
	select {
	case <-s.hub.synced:
	case <-s.stop:
		return xds.Node{}, errShutdown
	case <-ctx.Done():
		return xds.Node{}, status.FromContextError(ctx.Err()).Err()
	}
	if id == nil {
		return n, nil
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.PodWait)
	defer cancel()
	node, ok := s.hub.bindPod(wait, o, snapshot.ObjectKey{Namespace: n.Namespace, Name: n.Pod}, n.UID)
	if !ok {
		err := status.Errorf(codes.Unauthenticated, "evenkeel: pod %s with UID %s does not exist (waited %s for it)", n.ID(), n.UID, s.cfg.PodWait)
		s.refused(ctx, "pod", err)
		return xds.Node{}, err
	}
	// The API server's word, not the client's; but a watch that is behind may have
	// seen the Pod only as it was before it was scheduled. The view of
	// internalTrafficPolicy Local is of this node as long as the stream lives.
	if node != "" {
		n.Node = node
	}
	return n, nil
}

func (s *Server) authenticate(ctx context.Context) (Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(xds.MetadataKeyAuth)
	if len(values) != 1 || len(values[0]) <= len(xds.AuthSchemeBearer) || values[0][:len(xds.AuthSchemeBearer)] != xds.AuthSchemeBearer {
		return Identity{}, status.Errorf(codes.Unauthenticated,
			"evenkeel: want one metadata entry %q with %q and a service-account token for the audience of this control plane", xds.MetadataKeyAuth, xds.AuthSchemeBearer)
	}
	id, err := s.cfg.Authenticator.Authenticate(ctx, values[0][len(xds.AuthSchemeBearer):])
	if err == nil {
		return id, nil
	}
	if _, ok := status.FromError(err); ok {
		return Identity{}, err
	}
	return Identity{}, status.Errorf(codes.Unauthenticated, "evenkeel: token: %s", err)
}

func nodeOf(req *discoverypb.DeltaDiscoveryRequest) (xds.Node, error) {
	if req.GetNode() == nil {
		return xds.Node{}, status.Error(codes.InvalidArgument, "evenkeel: the first request of a stream has no node")
	}
	meta := map[string]string{}
	for k, v := range req.GetNode().GetMetadata().GetFields() {
		meta[k] = v.GetStringValue()
	}
	n, err := xds.NodeFrom(req.GetNode().GetId(), meta)
	if err != nil {
		return xds.Node{}, status.Errorf(codes.InvalidArgument, "evenkeel: %s", err)
	}
	return n, nil
}

// check binds the stream to the pod of the token.
func (id Identity) check(n *xds.Node) error {
	if id.Namespace != n.Namespace || id.Pod != n.Pod || n.UID != "" && id.UID != n.UID {
		return status.Errorf(codes.PermissionDenied, "evenkeel: the token belongs to pod %s/%s (UID %s), but the node says %s (UID %s)",
			id.Namespace, id.Pod, id.UID, n.ID(), n.UID)
	}
	n.UID = id.UID
	return nil
}

func (s *Server) refused(ctx context.Context, reason string, err error) {
	s.metrics.refused.WithLabelValues(reason).Inc()
	from := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		from = fmt.Sprint(p.Addr)
	}
	s.log.Warn("refused a stream", "reason", reason, "from", from, "error", status.Convert(err).Message())
}
