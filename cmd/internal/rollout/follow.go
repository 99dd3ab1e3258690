// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// followEvery is how often Follow asks.
const followEvery = time.Second

// Screen says what Follow writes to.
type Screen uint8

// The screens.
const (
	Lines    Screen = iota // each status that differs is written below the one before
	Terminal               // the newest status takes the place of the one before
)

// Follow writes the status again and again until the rollout is complete or ctx ends. What cannot be asked for a moment
// (an API server that restarts) is said and asked again; the first answer must be one.
func (c *Cluster) Follow(ctx context.Context, w Workload, out io.Writer, screen Screen) error {
	// Home and clear to the end (ECMA-48 CUP, ED): less flicker than clearing first.
	const again = "\x1b[H\x1b[J"
	var last []byte
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		s, err := c.Status(ctx, w)
		var text bytes.Buffer
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintf(&text, "not known at the moment: %s\n", err)
		default:
			if err := s.WriteTable(&text, time.Now()); err != nil {
				return err
			}
		}
		if key := changes(s, err); screen == Terminal || !bytes.Equal(key, last) {
			last = key
			if screen == Terminal {
				text = *bytes.NewBuffer(append([]byte(again), text.Bytes()...))
			} else {
				text.WriteByte('\n')
			}
			if _, err := out.Write(text.Bytes()); err != nil {
				return err
			}
		}
		if s != nil && s.Complete {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// changes is what must differ for a status to be worth another table: all of it but the ages.
func changes(s *Status, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	key, err := json.Marshal(s)
	if err != nil {
		return []byte(err.Error())
	}
	return key
}
