// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// collector hears from pods what nobody can ask them: that a hook ran, that SIGTERM
// came, what a client had seen at its end. It listens on node1's address.
type collector struct {
	base string

	mu      sync.Mutex
	told    map[string][]told // by namespace
	reports map[string][]seen
}

// told is one report of a server or a hook.
type told struct {
	what, pod string
	at        time.Time
}

func (r *rollouts) collect(t *testing.T) {
	t.Helper()
	c := &collector{told: map[string][]told{}, reports: map[string][]seen{}}
	ln, err := r.c.Listen(t.Context(), cluster.ControlPlane, "tcp4", net.JoinHostPort(r.c.NodeIP(cluster.ControlPlane).String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	c.base = "http://" + ln.Addr().String() + "/"
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(ln) }() // until Close
	t.Cleanup(func() { _ = server.Close() })
	r.collector = c
}

// url is where the pods of a namespace report.
func (c *collector) url(namespace string) string { return c.base + namespace }

func (c *collector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	now, namespace := time.Now(), strings.Trim(req.URL.Path, "/")
	if req.Method == http.MethodGet {
		q := req.URL.Query()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told[namespace] = append(c.told[namespace], told{what: q.Get("what"), pod: q.Get("pod"), at: now})
		return
	}
	var v seen
	if err := json.NewDecoder(req.Body).Decode(&v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[namespace] = append(c.reports[namespace], v)
}

// when is when a pod has first told something; zero: never.
func (c *collector) when(namespace, pod, what string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.told[namespace] {
		if t.pod == pod && t.what == what {
			return t.at
		}
	}
	return time.Time{}
}

// ended are the final words of a namespace's clients.
func (c *collector) ended(namespace string) []seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]seen(nil), c.reports[namespace]...)
}
