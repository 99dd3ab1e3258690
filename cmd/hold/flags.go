// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// config is the command line.
type config struct {
	port    uint16
	secret  string
	timeout time.Duration
}

// parse reads it. argv is what comes after "--", also when the rest is wrong.
func parse(args []string) (cfg config, argv []string, err error) {
	cfg = config{port: 15952, timeout: 35 * time.Second}
	var errs []error
	for i, arg := range args {
		if arg == "--" {
			argv = args[i+1:]
			break
		}
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--port":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				errs = append(errs, errors.New("--port "+strconv.Quote(value)+" is not a number from 1 to 65535"))
			}
			cfg.port = uint16(n)
		case "--secret":
			cfg.secret = value
		case "--timeout":
			d, err := time.ParseDuration(value)
			if err != nil || d <= 0 {
				errs = append(errs, errors.New("--timeout "+strconv.Quote(value)+" is not a duration above zero"))
			}
			cfg.timeout = d
		default:
			errs = append(errs, errors.New("unknown argument "+strconv.Quote(arg)+"; want --port=P --secret=S --timeout=D -- ARGV"))
		}
	}
	if cfg.secret == "" || strings.ContainsAny(cfg.secret, "\r\n") {
		errs = append(errs, errors.New("--secret is missing"))
	}
	return cfg, argv, errors.Join(errs...)
}
