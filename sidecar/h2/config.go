// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import "time"

// Role says which end of the connection a Session is.
type Role uint8

const (
	// Server: the peer is the application's HTTP/2 client (downstream).
	Server Role = iota
	// Client: the peer is a server pod (upstream).
	Client
)

func (r Role) String() string {
	if r == Client {
		return "client"
	}
	return "server"
}

// Config holds what a Session advertises and the bounds that it puts on its peer.
// It is read by New only through defaults; one Config may serve any number of Sessions.
type Config struct {
	// StreamWindow is the receive window of each stream, advertised as
	// SETTINGS_INITIAL_WINDOW_SIZE. 0: 256 KiB. At most 2^31-1.
	StreamWindow int32

	// ConnWindow is the receive window of the connection. 0: 1 MiB. Values
	// below 65535 (which no setting can lower: RFC 9113 section 6.9.2) mean 65535.
	ConnWindow int32

	// SessionBuffer bounds what this session's relays hold: the connection
	// window is given back at receipt while fewer bytes than this were
	// delivered and not yet Consumed, and withheld above it. 0: 2 MiB.
	SessionBuffer int64

	// MaxConcurrentStreams is what we advertise to a client (Server only).
	// 0: 1000. A stream beyond it is refused with REFUSED_STREAM.
	MaxConcurrentStreams uint32

	// AssumedMaxStreams bounds the streams that are opened before the peer's
	// SETTINGS are known (Client only). 0: 100, the least that RFC 9113
	// section 6.5.2 recommends to advertise.
	AssumedMaxStreams uint32

	// MaxFrameSize is the largest frame payload we accept. 0: 16384, the
	// protocol's least. At most 2^24-1.
	MaxFrameSize uint32

	// MaxHeaderListSize bounds a decoded field section, counted as RFC 9113
	// section 6.5.2 does (32 octets of overhead a field). 0: 64 KiB. A longer
	// one is a stream error, surfaced by SessionHandler.HeadersTooLarge.
	MaxHeaderListSize uint32

	// MaxHeaderBlock bounds the encoded bytes of one field block over all of
	// its frames. 0: 4 × MaxHeaderListSize, and
	// not less than 64 KiB. A longer one is a connection
	// error: it cannot be skipped, since HPACK's state would be lost.
	MaxHeaderBlock int

	// MaxContinuations bounds the CONTINUATION frames of one field block.
	// 0: 256 (byte by byte is legal; without end is CVE-2024-27316).
	MaxContinuations int

	// DecoderTableSize is the HPACK table the peer's encoder may use,
	// advertised as SETTINGS_HEADER_TABLE_SIZE. 0: 4096. Negative: none.
	DecoderTableSize int

	// EncoderTableSize bounds our encoder's table, whatever more the peer
	// offers. 0: 4096. Negative: none.
	EncoderTableSize int

	// OutputLimit bounds the DATA that waits in Output. 0: 128 KiB.
	OutputLimit int

	// ControlLimit bounds all else that waits in Output, beyond OutputLimit:
	// answers to a peer that never reads. 0: 512 KiB.
	ControlLimit int

	// PrefaceTimeout bounds the wait for the peer's preface and SETTINGS.
	// 0: 10 s. Negative: none.
	PrefaceTimeout time.Duration

	// SettingsTimeout bounds the wait for an acknowledgement of our SETTINGS.
	// 0: 10 s. Negative: none.
	SettingsTimeout time.Duration

	// HeaderTimeout bounds the time from HEADERS to the CONTINUATION with
	// END_HEADERS, while which nothing else may be sent. 0: 10 s. Negative: none.
	HeaderTimeout time.Duration

	// DrainDelay bounds the first step of a graceful GOAWAY, which otherwise
	// ends with the peer's PING acknowledgement. 0: 1 s.
	DrainDelay time.Duration

	// KeepaliveInterval is the silence after which a peer that owes us data
	// (a stream is open) is probed by PING. 0: never. gRPC servers close
	// connections with pings more often than each 5 minutes (too_many_pings).
	KeepaliveInterval time.Duration

	// KeepaliveTimeout is how long a PING, also one by Session.Ping, may stay
	// unanswered while nothing else arrives. 0: 20 s.
	KeepaliveTimeout time.Duration

	// Limits bounds each kind of abuse; see its fields.
	Limits Limits

	// Pool provides streams and buffers. It must be owned by the goroutine
	// that calls the Session. Nil: one of the session's own.
	Pool *Pool

	// Stats collects what the sessions that share it see; owned as Pool is.
	// Nil: one of the session's own.
	Stats *Stats
}

// withDefaults returns the config with each zero value replaced.
func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	setDefault(&d.StreamWindow, 256<<10)
	setDefault(&d.ConnWindow, 1<<20)
	d.ConnWindow = max(d.ConnWindow, initialWindow)
	setDefault(&d.SessionBuffer, 2<<20)
	setDefault(&d.MaxConcurrentStreams, 1000)
	setDefault(&d.AssumedMaxStreams, 100)
	setDefault(&d.MaxFrameSize, minMaxFrameSize)
	d.MaxFrameSize = min(max(d.MaxFrameSize, minMaxFrameSize), maxMaxFrameSize)
	setDefault(&d.MaxHeaderListSize, 64<<10)
	setDefault(&d.MaxHeaderBlock, int(min(max(4*int64(d.MaxHeaderListSize), 64<<10), 1<<30)))
	setDefault(&d.MaxContinuations, 256)
	setDefault(&d.DecoderTableSize, 4096)
	d.DecoderTableSize = max(d.DecoderTableSize, 0)
	setDefault(&d.EncoderTableSize, 4096)
	d.EncoderTableSize = max(d.EncoderTableSize, 0)
	setDefault(&d.OutputLimit, 128<<10)
	setDefault(&d.ControlLimit, 512<<10)
	setDefault(&d.PrefaceTimeout, 10*time.Second)
	setDefault(&d.SettingsTimeout, 10*time.Second)
	setDefault(&d.HeaderTimeout, 10*time.Second)
	setDefault(&d.DrainDelay, time.Second)
	setDefault(&d.KeepaliveTimeout, 20*time.Second)
	d.Limits = d.Limits.withDefaults()
	if d.Pool == nil {
		d.Pool = &Pool{}
	}
	if d.Stats == nil {
		d.Stats = &Stats{}
	}
	return d
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
