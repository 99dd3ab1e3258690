// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// peerSettings is what the peer's SETTINGS allow us.
type peerSettings struct {
	initialWindow int32
	maxFrameSize  uint32
	maxStreams    uint32 // Client only
	maxHeaderList uint32
}

func defaultPeerSettings() peerSettings {
	return peerSettings{
		initialWindow: initialWindow,
		maxFrameSize:  minMaxFrameSize,
		maxStreams:    1<<32 - 1, // "Initially, there is no limit" (RFC 9113 section 6.5.2)
		maxHeaderList: 1<<32 - 1,
	}
}

// PeerMaxHeaderListSize returns the longest field section that the peer said it
// takes (SETTINGS_MAX_HEADER_LIST_SIZE, advisory); 2^32-1 if it did not say.
func (s *Session) PeerMaxHeaderListSize() uint32 { return s.peer.maxHeaderList }

// start queues the preface: our SETTINGS, and the connection's window.
func (s *Session) start() {
	if s.role == Client {
		s.out.buf = append(s.pool.getBuffer(0), http2.ClientPreface...)
	} else {
		s.recv.prefaceLeft = len(http2.ClientPreface)
	}
	set := []http2.Setting{
		{ID: http2.SettingInitialWindowSize, Val: uint32(s.cfg.StreamWindow)},
		{ID: http2.SettingMaxHeaderListSize, Val: s.cfg.MaxHeaderListSize},
	}
	if s.cfg.MaxFrameSize != minMaxFrameSize {
		set = append(set, http2.Setting{ID: http2.SettingMaxFrameSize, Val: s.cfg.MaxFrameSize})
	}
	if s.cfg.DecoderTableSize != 4096 {
		set = append(set, http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(s.cfg.DecoderTableSize)})
	}
	if s.role == Client {
		set = append(set, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	} else {
		set = append(set, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.cfg.MaxConcurrentStreams})
	}
	s.frame(6*len(set), http2.FrameSettings, 0, 0)
	for _, v := range set {
		s.out.buf = binary.BigEndian.AppendUint16(s.out.buf, uint16(v.ID))
		s.out.buf = binary.BigEndian.AppendUint32(s.out.buf, v.Val)
	}
	if more := s.cfg.ConnWindow - initialWindow; more > 0 {
		s.writeWindowUpdate(0, uint32(more))
		s.recvWindow += more
	}
	s.timers.start(&s.cfg)
}

func (s *Session) handleSettings(f frameHeader, p []byte) error {
	if f.id != 0 {
		return connError(http2.ErrCodeProtocol, "SETTINGS on a stream")
	}
	if f.has(http2.FlagSettingsAck) {
		if len(p) != 0 {
			return connError(http2.ErrCodeFrameSize, "SETTINGS acknowledgement with a payload")
		}
		return s.settingsAcked()
	}
	if len(p)%6 != 0 {
		return connError(http2.ErrCodeFrameSize, "SETTINGS is not a multiple of 6 bytes long")
	}
	if err := s.spendOn(AbuseSettings); err != nil {
		return err
	}
	// The windows of all streams move once, by the last value: 2,700 values in a
	// frame must not mean 2,700 walks over the streams.
	window := s.peer.initialWindow
	for ; len(p) > 0; p = p[6:] {
		id, v := http2.SettingID(binary.BigEndian.Uint16(p)), binary.BigEndian.Uint32(p[2:])
		if id == http2.SettingInitialWindowSize {
			if v > maxWindow {
				return connError(http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is beyond 2^31-1")
			}
			window = int32(v)
			continue
		}
		if err := s.applySetting(id, v); err != nil {
			return err
		}
	}
	if err := s.moveSendWindows(window); err != nil {
		return err
	}
	s.frame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	s.wrote()
	s.recv.gotSettings = true
	s.established = true
	s.timers.preface = 0
	s.h.SettingsReceived()
	s.tellCapacity()
	return nil
}

func (s *Session) applySetting(id http2.SettingID, v uint32) error {
	switch id {
	case http2.SettingHeaderTableSize:
		s.enc.setMaxTableSize(v)
	case http2.SettingEnablePush:
		// "A client MUST treat receipt of a SETTINGS frame with
		// SETTINGS_ENABLE_PUSH set to 1 as a connection error" (RFC 9113
		// section 6.5.2)
		if v > 1 || v == 1 && s.role == Client {
			return connError(http2.ErrCodeProtocol, "SETTINGS_ENABLE_PUSH has a forbidden value")
		}
	case http2.SettingMaxConcurrentStreams:
		s.peer.maxStreams = v
	case http2.SettingMaxFrameSize:
		if v < minMaxFrameSize || v > maxMaxFrameSize {
			return connError(http2.ErrCodeProtocol, "SETTINGS_MAX_FRAME_SIZE is out of range")
		}
		// A frame is a stream's turn: longer ones would only let one stream
		// hold up the others.
		s.peer.maxFrameSize = min(v, maxSendFrame)
	case http2.SettingMaxHeaderListSize:
		s.peer.maxHeaderList = v
	}
	return nil // "An endpoint that receives ... an unknown or unsupported identifier MUST ignore"
}

// maxSendFrame is the longest frame we send.
const maxSendFrame = 16 << 10

// moveSendWindows applies a new SETTINGS_INITIAL_WINDOW_SIZE to all streams. It
// can make windows negative (RFC 9113 section 6.9.2).
func (s *Session) moveSendWindows(window int32) error {
	delta := int64(window) - int64(s.peer.initialWindow)
	s.peer.initialWindow = window
	if delta == 0 {
		return nil
	}
	for _, st := range s.streams.slots {
		if st == nil {
			continue
		}
		w := int64(st.sendWindow) + delta
		if w > maxWindow {
			return connError(http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream's window")
		}
		st.sendWindow = int32(w)
		s.markReady(st)
	}
	for st := s.unsent.first; st != nil; st = st.next {
		st.sendWindow = window
	}
	return nil
}

// settingsAcked: from here on the peer keeps to what we advertised.
func (s *Session) settingsAcked() error {
	if s.timers.acked {
		return connError(http2.ErrCodeProtocol, "SETTINGS acknowledgement that nothing asked for")
	}
	s.timers.acked = true
	s.timers.settings = 0
	s.dec.allow(uint32(s.cfg.DecoderTableSize), true)
	delta := s.cfg.StreamWindow - s.recvInitial
	s.recvInitial = s.cfg.StreamWindow
	for _, st := range s.streams.slots {
		if st != nil {
			st.recvWindow += delta
			st.giveBack(0) // what is owed may be worth a frame by the new measure
		}
	}
	for st := s.unsent.first; st != nil; st = st.next {
		st.recvWindow += delta
	}
	return nil
}
