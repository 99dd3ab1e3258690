// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"golang.org/x/term"
)

// row is one line of results.json: the medians of one proxy under one load shape.
type row struct {
	Proxy        string  `json:"proxy"`
	Shape        string  `json:"shape"`
	RPCs         uint64  `json:"rpcs"`           // of all rounds, counted at the backends
	Rate         float64 `json:"rpcs_per_s"`     // reached; an open loop's load is only what its name says if this is too
	CPUPerRPC    float64 `json:"cpu_us_per_rpc"` // µs of the proxy's processes
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	RSS          uint64  `json:"rss_kib"`                   // of all of the proxy's processes; pages that they share count for each
	LargestRSS   uint64  `json:"rss_largest_kib"`           // of the largest: the worker
	BytesPerCPUs float64 `json:"bytes_per_cpu_s,omitempty"` // message bytes relayed, both ways, per second of CPU; the large shape only
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := fs.Int("rounds", 5, "rounds; each measures every proxy once for every shape")
	only := fs.String("proxies", "evenkeel,nghttpx,haproxy,nginx", "comma-separated proxies to measure")
	shapeNames := fs.String("shapes", "", "comma-separated shapes; empty: all")
	bin := fs.String("bin", "bin", "folder of the built sidecar and xds")
	outFile := fs.String("o", "e2e/bench/results.json", "where the rows go")
	scale := fs.Float64("scale", 1, "multiplies the number of requests of each shape")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || *scale <= 0 {
		return errors.New("--rounds and --scale must be positive")
	}
	selected, err := selectShapes(*shapeNames, *scale)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "evenkeel-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	fleets := map[int]*fleet{}
	defer func() {
		for _, f := range fleets {
			f.stop()
		}
	}()
	for _, s := range selected {
		n := s.endpoints()
		if fleets[n] != nil {
			continue
		}
		if fleets[n], err = startFleet(ctx, n, strings.Split(*only, ","), dir, *bin); err != nil {
			return err
		}
	}

	tty := term.IsTerminal(int(os.Stderr.Fd()))
	progress := func(line string) {
		if tty {
			fmt.Fprintf(os.Stderr, "\r\033[K%s", line)
		}
	}
	results := map[[2]string][]sample{}
	for r := range *rounds {
		if !tty { // a line per round is enough for a file
			fmt.Fprintf(os.Stderr, "round %d of %d\n", r+1, *rounds)
		}
		for _, s := range selected {
			f := fleets[s.endpoints()]
			for _, p := range f.proxies {
				progress(fmt.Sprintf("round %d/%d  %-12s %-10s", r+1, *rounds, s.name, p.name))
				m, err := measure(ctx, dir, p, s, f.backends)
				if err != nil {
					return fmt.Errorf("round %d, %s through %s: %w", r+1, s.name, p.name, err)
				}
				key := [2]string{s.name, p.name}
				results[key] = append(results[key], m)
			}
		}
	}
	progress("")
	rows := summarise(selected, fleets, results)
	printTable(out, rows)
	return writeResults(*outFile, rows)
}

// fleet is a number of backends, and the proxies before them.
type fleet struct {
	backends backendSet
	proxies  proxySet
}

func startFleet(ctx context.Context, n int, names []string, dir, bin string) (*fleet, error) {
	dir = filepath.Join(dir, fmt.Sprint(n))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	backends, err := startBackends(n)
	if err != nil {
		return nil, err
	}
	f := &fleet{backends: backends}
	if f.proxies, err = startProxies(ctx, names, proxyEnv{dir: dir, bin: bin, backends: backends.addrs()}); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

func (f *fleet) stop() {
	f.proxies.stop()
	f.backends.stop()
}

func summarise(shapes []shape, fleets map[int]*fleet, results map[[2]string][]sample) []row {
	var rows []row
	for _, s := range shapes {
		for _, p := range fleets[s.endpoints()].proxies {
			ms := results[[2]string{s.name, p.name}]
			r := row{
				Proxy: p.name, Shape: s.name,
				Rate:      median(ms, func(m sample) float64 { return float64(m.rpcs) / m.took.Seconds() }),
				CPUPerRPC: median(ms, func(m sample) float64 { return float64(m.cpu.Nanoseconds()) / 1e3 / float64(m.rpcs) }),
				P50:       median(ms, func(m sample) float64 { return m.p50 }),
				P99:       median(ms, func(m sample) float64 { return m.p99 }),
				RSS:       uint64(median(ms, func(m sample) float64 { return float64(m.rss) })),

				LargestRSS: uint64(median(ms, func(m sample) float64 { return float64(m.largestRSS) })),
			}
			for _, m := range ms {
				r.RPCs += m.rpcs
			}
			if s.body > 1024 {
				r.BytesPerCPUs = median(ms, func(m sample) float64 { return 2 * float64(s.body) * float64(m.rpcs) / m.cpu.Seconds() })
			}
			rows = append(rows, r)
		}
	}
	return rows
}

func median(ms []sample, f func(sample) float64) float64 {
	v := make([]float64, len(ms))
	for i, m := range ms {
		v[i] = f(m)
	}
	slices.Sort(v)
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

func printTable(out io.Writer, rows []row) {
	base := map[string]row{}
	for _, r := range rows {
		if r.Proxy == "nghttpx" {
			base[r.Shape] = r
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SHAPE\tPROXY\tRPCS\tRPC/s\tCPU µs/RPC\tvs nghttpx\tp50 µs\tp99 µs\tp99 vs\tRSS KiB\tlargest\tMB per CPU s\tvs")
	last := ""
	for _, r := range rows {
		if last != "" && r.Shape != last {
			fmt.Fprintln(w)
		}
		last = r.Shape
		b, known := base[r.Shape]
		ratio := func(x, y float64) string {
			if !known || y == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2f", x/y)
		}
		mb, mbRatio := "-", "-"
		if r.BytesPerCPUs > 0 {
			mb, mbRatio = fmt.Sprintf("%.0f", r.BytesPerCPUs/1e6), ratio(r.BytesPerCPUs, b.BytesPerCPUs)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%.2f\t%s\t%.0f\t%.0f\t%s\t%d\t%d\t%s\t%s\n", r.Shape, r.Proxy, r.RPCs, r.Rate, r.CPUPerRPC, ratio(r.CPUPerRPC, b.CPUPerRPC),
			r.P50, r.P99, ratio(r.P99, b.P99), r.RSS, r.LargestRSS, mb, mbRatio)
	}
	w.Flush()
}

func writeResults(path string, rows []row) error {
	b, err := json.MarshalIndent(struct {
		Rows []row `json:"rows"`
	}{rows}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
