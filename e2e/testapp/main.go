// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command testapp is the server and the client of the end-to-end tests, in one
// static binary. They are ordinary gRPC programs and know nothing of Evenkeel.
//
//	testapp server [flags]
//	testapp client --target=pricing.shop:50051 [flags]
//	testapp job --target=pricing.shop:50051 --n=200    that many RPCs, then exit
//	testapp report --to=URL                            GET it, as a hook does
//
// A server's --exit says what SIGTERM does. With "none" there is no handler: the Go
// runtime then ends the process at once with status 2, also as PID 1 (runtime:
// dieFromSignal calls exit where raising the signal did nothing). The other
// languages' servers cannot be so: the kernel does not deliver a signal without a
// handler to PID 1, so they have one that does nothing but exit(0).
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
	log := slog.New(slog.NewTextHandler(stderr, nil))
	var err error
	switch args[0] {
	case "server":
		err = runServer(context.Background(), args[1:], log, stderr)
	case "client":
		ctx, stop := notify(context.Background())
		defer stop()
		err = runClient(ctx, args[1:], log, stderr)
	case "job":
		err = runJob(context.Background(), args[1:], log, stderr)
	case "report":
		err = runReport(context.Background(), args[1:], stderr)
	default:
		err = fmt.Errorf("unknown command %q: want server, client, job or report", args[0])
	}
	if err != nil {
		fmt.Fprintln(stderr, "testapp:", err)
		return 1
	}
	return 0
}

func notify(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
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
	fs.StringVar(&cfg.Admin, "http", ":8080", "`address` of /ready, /stats, /reset, /hook")
	protocol := fs.String("protocol", "grpc", "grpc or http1")
	exit := fs.String("exit", "now", "at SIGTERM: now, graceful, or none (no handler)")
	useTLS := fs.Bool("tls", false, "speak TLS with a self-made certificate")
	fs.DurationVar(&cfg.ReadyDelay, "ready-delay", 0, "not ready for this long after the start")
	fs.DurationVar(&cfg.MaxConnectionAge, "max-connection-age", 0, "close connections of this age with GOAWAY (0: never)")
	fs.StringVar(&cfg.Report, "report", "", "GET this `URL` with what=hook when /hook is asked, with what=term at SIGTERM")
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
	if cfg.Exit != server.ExitNone {
		var stop context.CancelFunc
		ctx, stop = notify(ctx)
		defer stop()
	}
	return server.Run(ctx, cfg)
}

func runClient(ctx context.Context, args []string, log *slog.Logger, stderr io.Writer) error {
	fs := newFlagSet("client", stderr)
	cfg := client.Config{Logger: log}
	callFlags(fs, &cfg.Call)
	fs.StringVar(&cfg.HTTP, "http", ":8080", "`address` of /stats, /run, …")
	fs.IntVar(&cfg.Rate, "rate", 0, "RPCs per second")
	fs.IntVar(&cfg.Channels, "channels", 1, "channels that share the rate")
	fs.Float64Var(&cfg.Streams.Rate, "stream-rate", 0, "lasting streams per second, besides")
	fs.Func("stream-length", "`MIN-MAX` of their random length: 1s-10s", func(v string) (err error) {
		low, high, ok := strings.Cut(v, "-")
		if !ok {
			return fmt.Errorf("%q: want MIN-MAX", v)
		}
		var err2 error
		cfg.Streams.Min, err = time.ParseDuration(low)
		cfg.Streams.Max, err2 = time.ParseDuration(high)
		return errors.Join(err, err2)
	})
	fs.DurationVar(&cfg.Linger, "linger", 0, "go on for this long after SIGTERM")
	fs.StringVar(&cfg.Report, "report", "", "POST what was seen to this `URL` at the end")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := errors.Join(checkTarget(cfg.Call), noArguments(fs), cfg.Validate()); err != nil {
		return err
	}
	return client.Run(ctx, cfg)
}

// callFlags are those that say what RPCs are sent.
func callFlags(fs *flag.FlagSet, call *client.Call) {
	fs.StringVar(&call.Target, "target", "", "`name:port` of the service")
	fs.StringVar(&call.Policy, "policy", "", "load-balancing policy (default: pick_first)")
	fs.StringVar(&call.Protocol, "protocol", "grpc", "grpc or http1")
	fs.StringVar((*string)(&call.Kind), "kind", string(client.Unary), "unary, server-stream, client-stream, bidi or mix")
	fs.BoolVar(&call.TLS, "tls", false, "speak TLS; the certificate is not checked")
	fs.DurationVar(&call.Deadline, "deadline", 5*time.Second, "deadline of each RPC; lasting streams have their length more")
	fs.DurationVar(&call.Delay, "delay", 0, "the server waits this long before each answer")
	fs.IntVar(&call.Bytes, "bytes", 0, "size of the payload each way")
	fs.BoolVar(&call.NoRetry, "no-retry", false, "the client retries nothing")
	fs.Func("metadata", "comma-separated `key=value` pairs sent with each RPC", func(v string) error {
		call.Metadata = strings.Split(v, ",")
		return nil
	})
}

func checkTarget(call client.Call) error {
	if call.Target == "" {
		return errors.New("--target: missing")
	}
	return nil
}

func runJob(ctx context.Context, args []string, log *slog.Logger, stderr io.Writer) error {
	fs := newFlagSet("job", stderr)
	var call client.Call
	callFlags(fs, &call)
	n := fs.Int("n", 1, "how many RPCs")
	also := fs.String("also", "", "`name:port` of another service, to which one RPC is sent that need not succeed")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := errors.Join(checkTarget(call), noArguments(fs), client.Config{Call: call}.Validate()); err != nil {
		return err
	}
	return client.Job(ctx, call, *n, *also, log)
}

// runReport is what an exec hook of an image without a shell can run.
func runReport(ctx context.Context, args []string, stderr io.Writer) error {
	fs := newFlagSet("report", stderr)
	to := fs.String("to", "", "`URL` to GET")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *to == "" {
		return errors.New("--to: missing")
	}
	return errors.Join(noArguments(fs), server.Report(ctx, *to))
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
