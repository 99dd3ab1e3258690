// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package run

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// LogConfig is the logging of a daemon. The zero value is level info as JSON.
type LogConfig struct {
	// Level is the least severe level that is written. Zero: info.
	Level slog.Level
	// Format is how lines look. Zero: JSON.
	Format LogFormat
}

// LogFormat is json or text. It is a flag.Value.
type LogFormat uint8

// The formats.
const (
	LogJSON LogFormat = iota
	LogText
)

// String is the flag's form.
func (f *LogFormat) String() string {
	if f != nil && *f == LogText {
		return "text"
	}
	return "json"
}

// Set reads the flag's form.
func (f *LogFormat) Set(s string) error {
	switch strings.ToLower(s) {
	case "json":
		*f = LogJSON
	case "text":
		*f = LogText
	default:
		return fmt.Errorf("log format %q is not known (json, text)", s)
	}
	return nil
}

// RegisterFlags declares --log-level and --log-format on fs.
func (c *LogConfig) RegisterFlags(fs *flag.FlagSet) {
	fs.Var(levelVar{&c.Level}, "log-level", "least severe `level` that is logged: debug, info, warn, error")
	fs.Var(&c.Format, "log-format", "`format` of log lines: json, text")
}

// New makes the logger.
func (c LogConfig) New(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.Level, ReplaceAttr: durationsAsText}
	if c.Format == LogText {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// durationsAsText writes durations as "1.5s"; in JSON they would be a number of
// nanoseconds, which nobody reads.
func durationsAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// levelVar gives slog.Level the names people type and an error that lists them.
type levelVar struct{ level *slog.Level }

func (v levelVar) String() string {
	if v.level == nil {
		return "info" // flag asks a zero value what the default looks like
	}
	return strings.ToLower(v.level.String())
}

func (v levelVar) Set(s string) error {
	name := s
	if strings.EqualFold(s, "warning") {
		name = "warn"
	}
	if err := v.level.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("log level %q is not known (debug, info, warn, error)", s)
	}
	return nil
}
