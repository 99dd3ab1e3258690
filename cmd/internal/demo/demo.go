// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// Plan is what happens in each of the two runs.
type Plan struct {
	Clients int           // one channel each
	Rate    int           // RPCs a second of each client
	Servers int           // replicas of the service
	Early   int           // replicas that are ready before the clients start
	Before  time.Duration // from the start of the last client until the late servers are ready
	After   time.Duration // from then until the rolling restart
	Surge   int           // servers that are replaced at a time in it
}

// DefaultPlan is the first incident: eight client pods start while two of six servers are ready. A rolling restart follows.
func DefaultPlan() Plan {
	return Plan{Clients: 8, Rate: 125, Servers: 6, Early: 2, Before: 2 * time.Second, After: 8 * time.Second, Surge: 2}
}

// Format is how the result is written.
type Format uint8

// The formats.
const (
	Text Format = iota // a table for people
	JSON               // one object, and nothing else on stdout
)

// Demo plays the incidents twice, without and with Evenkeel. It must run inside the network namespace that Enter makes.
type Demo struct {
	// Plan is what happens. Required: see DefaultPlan.
	Plan Plan
	// Format is how the result is written. Zero: text.
	Format Format
	// Colour switches colours on in the table. Zero: plain text.
	Colour Colour
	// Stdout receives the result, Stderr the progress. Required.
	Stdout, Stderr io.Writer
	// Logger receives what the parts do, Log the output of Evenkeel's own processes. Required.
	Logger *slog.Logger
	Log    *os.File
}

// Colour says whether the table is coloured.
type Colour uint8

// The values of Colour.
const (
	Plain Colour = iota
	ANSI
)

// Result is what the demo found. Its JSON form is a contract with users.
type Result struct {
	With    *Outcome `json:"with"`
	Without *Outcome `json:"without"`
}

// ErrBar says that the run with Evenkeel was not good enough.
var ErrBar = errors.New("the run with Evenkeel does not meet the bar")

// Run plays the incidents twice and writes the result. It returns ErrBar when the run with Evenkeel is not within the bar.
func (d *Demo) Run(ctx context.Context) error {
	if err := prepareNetwork(addresses(d.Plan)...); err != nil {
		return err
	}
	began := time.Now()
	var result Result
	var err error
	if result.Without, err = d.play(ctx, without); err != nil {
		return fmt.Errorf("run %s: %w", without, err)
	}
	if result.With, err = d.play(ctx, with); err != nil {
		return fmt.Errorf("run %s: %w", with, err)
	}
	d.progress("both runs took %s", time.Since(began).Round(time.Second))
	switch d.Format {
	case JSON:
		err = json.NewEncoder(d.Stdout).Encode(&result)
	default:
		err = d.table(&result)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	if ok, why := result.With.meets(); !ok {
		return fmt.Errorf("%w: %s", ErrBar, join(why))
	}
	return nil
}

// progress tells what happens while it happens.
func (d *Demo) progress(format string, args ...any) {
	fmt.Fprintf(d.Stderr, format+"\n", args...)
}
