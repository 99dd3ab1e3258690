// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command testapp is the server and the client of the end-to-end tests, in one
// static binary. They are ordinary gRPC programs and know nothing of Evenkeel.
//
//	testapp server [flags]
//	testapp client --target=pricing.shop:50051 [flags]
//
// python/client.py is the same client on grpcio, with the same flags and the
// same HTTP interface (package internal/client).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"evenkeel.dev/e2e/testapp/internal/client"
	"evenkeel.dev/e2e/testapp/internal/server"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: testapp server|client [flags]")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(stderr, nil))
	var err error
	switch args[0] {
	case "server":
		err = runServer(ctx, args[1:], log, stderr)
	case "client":
		err = runClient(ctx, args[1:], log, stderr)
	default:
		err = fmt.Errorf("unknown command %q: want server or client", args[0])
	}
	if err != nil {
		fmt.Fprintln(stderr, "testapp:", err)
		return 1
	}
	return 0
}

func runServer(ctx context.Context, args []string, log *slog.Logger, stderr io.Writer) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	fs := newFlagSet("server", stderr)
	cfg := server.Config{Logger: log}
	fs.StringVar(&cfg.Name, "name", host, "`name` told in every answer")
	fs.StringVar(&cfg.Listen, "listen", ":50051", "`address` of the service")
	fs.StringVar(&cfg.Admin, "http", ":8080", "`address` of /ready, /stats, /reset")
	protocol := fs.String("protocol", "grpc", "grpc or http1")
	exit := fs.String("exit", "now", "at SIGTERM: now or graceful")
	useTLS := fs.Bool("tls", false, "speak TLS with a self-made certificate")
	fs.DurationVar(&cfg.ReadyDelay, "ready-delay", 0, "not ready for this long after the start")
	fs.DurationVar(&cfg.MaxConnectionAge, "max-connection-age", 0, "close connections of this age with GOAWAY (0: never)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cfg.Protocol, cfg.Exit = server.Protocol(*protocol), server.Exit(*exit)
	if *useTLS {
		if cfg.Certificate, err = server.SelfSigned(cfg.Name, time.Now()); err != nil {
			return err
		}
	}
	if err := errors.Join(noArguments(fs), cfg.Validate()); err != nil {
		return err
	}
	return server.Run(ctx, cfg)
}

func runClient(ctx context.Context, args []string, log *slog.Logger, stderr io.Writer) error {
	fs := newFlagSet("client", stderr)
	cfg := client.Config{Logger: log}
	fs.StringVar(&cfg.Call.Target, "target", "", "`name:port` of the service")
	fs.StringVar(&cfg.HTTP, "http", ":8080", "`address` of /stats, /run, …")
	fs.IntVar(&cfg.Rate, "rate", 0, "RPCs per second")
	fs.IntVar(&cfg.Channels, "channels", 1, "channels that share the rate")
	fs.StringVar(&cfg.Call.Policy, "policy", "", "load-balancing policy (default: pick_first)")
	fs.StringVar(&cfg.Call.Protocol, "protocol", "grpc", "grpc or http1")
	kind := fs.String("kind", "unary", "unary, server-stream, client-stream, bidi or mix")
	fs.BoolVar(&cfg.Call.TLS, "tls", false, "speak TLS; the certificate is not checked")
	fs.DurationVar(&cfg.Call.Deadline, "deadline", 5*time.Second, "deadline of each RPC")
	fs.DurationVar(&cfg.Call.Delay, "delay", 0, "the server waits this long before each answer")
	fs.IntVar(&cfg.Call.Bytes, "bytes", 0, "size of the payload each way")
	md := fs.String("metadata", "", "comma-separated `key=value` pairs sent with each RPC")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cfg.Call.Kind = client.Kind(*kind)
	if *md != "" {
		cfg.Call.Metadata = strings.Split(*md, ",")
	}
	if cfg.Call.Target == "" {
		return errors.New("--target: missing")
	}
	if err := errors.Join(noArguments(fs), cfg.Validate()); err != nil {
		return err
	}
	return client.Run(ctx, cfg)
}

func newFlagSet(name string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("testapp "+name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	return fs
}

func noArguments(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return nil
}
