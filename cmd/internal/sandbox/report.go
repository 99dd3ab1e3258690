// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/sidecar"
)

// Report is what Evenkeel saw of one run. Its JSON form is a contract with users.
type Report struct {
	Command    []string `json:"command"`
	ExitStatus int      `json:"exit_status"`
	Seconds    float64  `json:"seconds"`
	Redirect   string   `json:"redirect"` // ebpf or none
	// Services are those that RPCs went to.
	Services []ServiceReport `json:"services"`
	// Other are the addresses that were reached without a service: relayed to where the command meant.
	Other []EndpointReport `json:"other"`
	// Connections is nil without the redirect.
	Connections *Connections `json:"connections,omitempty"`

	// Troubled says that a part of Evenkeel ended before the command did: its log tells why.
	Troubled bool `json:"-"`
}

// Connections is what became of connections to the outbound ports.
type Connections struct {
	// Redirected went to the sidecar.
	Redirected uint64 `json:"redirected"`
	// Direct went past it, because it was away.
	Direct uint64 `json:"direct"`
}

// ServiceReport is what went to one service, which is "namespace/name:port".
type ServiceReport struct {
	Service   string           `json:"service"`
	RPCs      uint64           `json:"rpcs"`
	Endpoints []EndpointReport `json:"endpoints"`
}

// EndpointReport is what went to one endpoint.
type EndpointReport struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	State   string `json:"state,omitempty"`
	// RPCs were sent to the endpoint.
	RPCs uint64 `json:"rpcs"`
	// Statuses counts those that have ended, by gRPC status.
	Statuses map[string]uint64 `json:"statuses,omitempty"`
}

// WriteJSON writes the report as one line of JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	var total uint64
	for _, svc := range r.Services {
		total += svc.RPCs
	}
	for _, ep := range r.Other {
		total += ep.RPCs
	}
	fmt.Fprintf(&b, "evenkeel: %s through the sidecar in %s\n", plural(total, "RPC"), seconds(r.Seconds))
	for _, svc := range r.Services {
		fmt.Fprintf(&b, "  %s\n", svc.Service)
		writeEndpoints(&b, svc.Endpoints)
	}
	if len(r.Other) > 0 {
		b.WriteString("  not a known Service: relayed to where the command meant\n")
		writeEndpoints(&b, r.Other)
	}
	switch c := r.Connections; {
	case c == nil:
	case c.Direct > 0:
		fmt.Fprintf(&b, "  %s went past the sidecar, while it was away\n", plural(c.Direct, "connection"))
	case c.Redirected == 0:
		b.WriteString("  no connection was redirected: did the command dial a Service at one of the --outbound-ports?\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeEndpoints(b *strings.Builder, endpoints []EndpointReport) {
	var total uint64
	for _, ep := range endpoints {
		total += ep.RPCs
	}
	for _, ep := range endpoints {
		line := fmt.Sprintf("    %-24s %-9s %10d  %5.1f %%  %s", ep.Address, ep.State, ep.RPCs, percent(ep.RPCs, total), ep.Pod)
		b.WriteString(strings.TrimRight(line, " ") + failures(ep.Statuses) + "\n")
	}
}

// failures names what did not end well.
func failures(statuses map[string]uint64) string {
	var named []string
	for _, status := range slices.Sorted(maps.Keys(statuses)) {
		if status != "OK" {
			named = append(named, strconv.FormatUint(statuses[status], 10)+" "+status)
		}
	}
	if len(named) == 0 {
		return ""
	}
	return "  failed: " + strings.Join(named, ", ")
}

func percent(n, of uint64) float64 { return 100 * float64(n) / float64(max(of, 1)) }

func plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatUint(n, 10) + " " + what + "s"
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) + " s" }

// snapshot asks the sidecar what it knows and does.
func (p *Pod) snapshot(ctx context.Context) (*sidecar.Snapshot, error) {
	var snap sidecar.Snapshot
	if err := p.get(ctx, "/debug/endpoints", &snap); err != nil {
		return nil, err
	}
	return &snap, nil
}

// get reads a JSON document from the sidecar's debug port.
func (p *Pod) get(ctx context.Context, path string, into any) error {
	body, err := p.debug(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("sidecar's %s: %w", path, err)
	}
	return nil
}

func (p *Pod) debug(ctx context.Context, path string) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	body, err := fetch(ctx, p.ports.debug, path, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return &cancelOnClose{body, cancel}, nil
}

// fetch asks one of the sidecar's ports. An answer that is not 200 is an error with its text.
func fetch(ctx context.Context, port uint16, path string, header http.Header) (io.ReadCloser, error) {
	url := "http://127.0.0.1:" + strconv.Itoa(int(port)) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	// One request, no connection kept: nothing is left to close.
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
		res.Body.Close()
		return nil, fmt.Errorf("GET %s: %s: %s", url, res.Status, cmp.Or(strings.TrimSpace(string(text)), "no reason given"))
	}
	return res.Body, nil
}

type cancelOnClose struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cancelOnClose) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}
