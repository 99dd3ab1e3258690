// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
)

// processLog is where Evenkeel's own processes write: stderr with --verbose, else a file without a name, which is gone with the
// last process that has it, however that ended. Where something went wrong it gets a name.
type processLog struct {
	file    *os.File
	verbose bool
}

func openLog(verbose bool) (*processLog, error) {
	if verbose {
		return &processLog{file: os.Stderr, verbose: true}, nil
	}
	f, err := os.CreateTemp("", "evenkeel-*.log")
	if err != nil {
		return nil, fmt.Errorf("make a log file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a log file: %w", err)
	}
	return &processLog{file: f}, nil
}

func (l *processLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l.file, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// close ends the log: nothing went wrong.
func (l *processLog) close() {
	if !l.verbose {
		l.file.Close()
	}
}

// keep ends the log, gives it a name, and returns the sentence that tells it. "" if it is empty, or was on stderr all the time.
func (l *processLog) keep() string {
	if l.verbose {
		return ""
	}
	defer l.file.Close()
	kept, err := os.CreateTemp("", "evenkeel-*.log")
	if err != nil {
		return "\nevenkeel: the log of its processes is lost: " + err.Error()
	}
	defer kept.Close()
	n, err := io.Copy(kept, io.NewSectionReader(l.file, 0, 1<<62))
	if err != nil || n == 0 {
		os.Remove(kept.Name())
		return ""
	}
	return "\nevenkeel: the log of its processes is in " + kept.Name()
}
