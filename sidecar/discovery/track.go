// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

const (
	// coalesce is the least time between two reports of changes on a stream.
	coalesce = 50 * time.Millisecond
	// farewell bounds how long a replica is given to take the last report.
	farewell = 500 * time.Millisecond
)

// trackDesc is Rollout.Track, from xds/api/rollout.proto.
var trackDesc = grpc.StreamDesc{StreamName: "Track", ServerStreams: true, ClientStreams: true}

// track keeps a stream of reports to one replica. Its run is a goroutine; the
// rest belongs to Client.Run.
type track struct {
	target string
	cancel context.CancelFunc
	live   bool // it said something, and its stream has not ended since
}

// heard is what a track tells Client.Run: a status, or nil when the stream has
// ended.
type heard struct {
	from   *track
	status *api.PodStatus
}

// tracker is what all tracks share.
type tracker struct {
	cfg    *Config
	who    *api.Sidecar
	ledger *ledger
	stats  *stats
	heard  chan heard
}

// run keeps the stream up until ctx ends.
func (t *tracker) run(ctx context.Context, tr *track, rnd *rand.Rand) {
	pause := pauses{min: t.cfg.MinBackoff, max: t.cfg.MaxBackoff, rnd: rnd}
	var quiet complaint
	for failures := 1; ; failures++ {
		spoke, err := t.stream(ctx, tr, func(name string) {
			quiet.connected(t.cfg.Logger, tr.target, name)
		})
		if ctx.Err() != nil || t.ledger.left() {
			return
		}
		if spoke {
			failures = 1
		}
		wait := pause.next(failures)
		t.stats.trackEnds.Add(1)
		quiet.disconnectedReplica(ctx, t.cfg.Logger, time.Now(), tr.target, err, wait)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// stream is the life of one stream. spoke says that the replica said something.
func (t *tracker) stream(ctx context.Context, tr *track, connected func(replica string)) (spoke bool, err error) {
	conn, err := dial(t.cfg, tr.target)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	header, err := authorization(t.cfg)
	if err != nil {
		return false, err
	}
	whole := ctx // of the track
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(metadata.NewOutgoingContext(ctx, header), &trackDesc, api.RolloutTrack)
	if err != nil {
		return false, fmt.Errorf("open the stream of reports: %w", err)
	}
	b := t.ledger.open(t.who)
	defer t.ledger.close(b)

	// Sending blocks while the replica does not read, so it has a goroutine of
	// its own; it ends with ctx.
	sent := make(chan error, 1)
	go func() { sent <- t.send(ctx, stream, b) }()
	defer func() {
		cancel()
		sendErr := <-sent
		if err == nil {
			err = sendErr
		}
		if spoke {
			t.stats.tracks.Add(-1)
			t.tell(whole, heard{from: tr})
		}
	}()
	for {
		ps := new(api.PodStatus)
		if err := stream.RecvMsg(ps); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the control plane ended the stream")
			}
			return spoke, err
		}
		if !spoke {
			spoke = true
			t.stats.tracks.Add(1)
			connected(ps.GetReplica())
			t.ledger.hear(b)
		}
		select {
		case t.heard <- heard{tr, ps}:
		case <-ctx.Done():
			return spoke, ctx.Err()
		}
	}
}

// send tells the replica what it has not been told, and something each
// xds.ReportInterval.
func (t *tracker) send(ctx context.Context, stream grpc.ClientStream, b *book) error {
	beat := time.NewTimer(0) // the first page: at once
	defer beat.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		case <-b.wake:
			if wait := coalesce - time.Since(last); wait > 0 {
				beat.Reset(wait)
				select {
				case <-ctx.Done():
					return nil
				case <-beat.C:
				}
			}
		}
		last = time.Now()
		beat.Reset(xds.ReportInterval)
		page, record := t.ledger.take(b)
		for _, r := range page.reports(record) {
			if err := stream.SendMsg(r); err != nil {
				t.ledger.untold(record)
				return nil // the reason is what RecvMsg returns
			}
			t.stats.reports.Add(1)
		}
		if page.leaving {
			return stream.CloseSend()
		}
	}
}

// disconnectedReplica is disconnected for a stream of reports.
func (q *complaint) disconnectedReplica(ctx context.Context, log *slog.Logger, now time.Time, target string, err error, wait time.Duration) {
	text := "no stream of reports to a replica of the control plane"
	if status.Code(err) == codes.Unimplemented {
		text = "the control plane is older than this sidecar and takes no reports: rollouts do not wait for it"
	}
	q.complain(ctx, log, now, text, target, err, wait)
}

// tell hands over that the stream has ended, unless the track is to end: then
// nobody listens.
func (t *tracker) tell(ctx context.Context, h heard) {
	select {
	case t.heard <- h:
	case <-ctx.Done():
	}
}
