// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"fmt"
	"log/slog"
	"os"
)

// processLog is where Evenkeel's own processes write: a file that is removed when all went well, or with --verbose stderr.
type processLog struct {
	file *os.File
	keep bool // stderr
}

func openLog(verbose bool) (*processLog, error) {
	if verbose {
		return &processLog{file: os.Stderr, keep: true}, nil
	}
	f, err := os.CreateTemp("", "evenkeel-*.log")
	if err != nil {
		return nil, fmt.Errorf("make a log file: %w", err)
	}
	return &processLog{file: f}, nil
}

func (l *processLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l.file, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// remove removes the log: nothing went wrong.
func (l *processLog) remove() {
	if l.keep {
		return
	}
	l.file.Close()
	os.Remove(l.file.Name())
}

// hint names the log in an error, where there is something in it.
func (l *processLog) hint(err error) error {
	if l.keep {
		return err
	}
	defer l.file.Close()
	info, statErr := l.file.Stat()
	if statErr != nil || info.Size() == 0 {
		os.Remove(l.file.Name())
		return err
	}
	return fmt.Errorf("%w\nevenkeel: the log of its processes is in %s", err, l.file.Name())
}
