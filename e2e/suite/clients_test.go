// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// seen is what a test client says it saw (e2e/testapp/internal/stats).
type seen struct {
	SinceMS   int64            `json:"since_ms"`
	NowMS     int64            `json:"now_ms"`
	Started   int64            `json:"started"`
	Succeeded int64            `json:"succeeded"`
	Failed    int64            `json:"failed"`
	Skipped   int64            `json:"skipped"`
	ByServer  map[string]int64 `json:"by_server"`
	Connects  int64            `json:"connects"`
	Remotes   map[string]int64 `json:"remotes"`
	Errors    []struct {
		Code, Message string
		Count         int64
		FirstMS       int64 `json:"first_ms"`
		LastMS        int64 `json:"last_ms"`
	} `json:"errors"`
	Kinds    map[string]kindCounts `json:"kinds"`
	Failures []failure             `json:"failures"`
	Latency  struct {
		P50, P99, Max int64
	} `json:"latency_us"`
	Timeline []bucket `json:"timeline"`
}

type kindCounts struct{ Started, Succeeded, Failed int64 }

// failure is one failed RPC. Server is who had answered on a stream.
type failure struct {
	BeganMS int64 `json:"began_ms"`
	EndedMS int64 `json:"ended_ms"`
	Kind    string
	Code    string
	Message string
	Server  string
	Answers int
}

// bucket counts what ended in 100 ms.
type bucket struct {
	MS       int64            `json:"ms"`
	ByServer map[string]int64 `json:"by_server"`
	Failed   int64            `json:"failed"`
}

// spread is the coefficient of variation over the servers named.
func spread(by map[string]int64, servers []cluster.Pod) float64 {
	var sum, squares float64
	for _, p := range servers {
		n := float64(by[p.Name])
		sum += n
		squares += n * n
	}
	n := float64(len(servers))
	mean := sum / n
	return math.Sqrt(squares/n-mean*mean) / mean
}

// client asks one client pod.
type client struct {
	s   *suite
	pod cluster.Pod
}

// client waits until the app's one pod is ready.
func (s *suite) client(t *testing.T, namespace, app string) client {
	t.Helper()
	return client{s, s.pods(t, namespace, app, 1)[0]}
}

func (c client) run(t *testing.T, query string) seen {
	t.Helper()
	return c.ask(t, http.MethodPost, "/run?"+query)
}

func (c client) stats(t *testing.T) seen {
	t.Helper()
	return c.ask(t, http.MethodGet, "/stats?timeline=1")
}

func (c client) reset(t *testing.T) {
	t.Helper()
	if _, err := c.s.http(t.Context(), http.MethodPost, "http://"+c.pod.IP.String()+":8080/reset"); err != nil {
		t.Fatal(err)
	}
}

func (c client) ask(t *testing.T, method, path string) seen {
	t.Helper()
	b, err := c.s.http(t.Context(), method, "http://"+c.pod.IP.String()+":8080"+path)
	if err != nil {
		t.Fatal(err)
	}
	var v seen
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v: %s", path, err, b)
	}
	return v
}

// http asks something in the cluster's network.
func (s *suite) http(ctx context.Context, method, url string) ([]byte, error) {
	hc := http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: s.c.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, res.Status, b)
	}
	return b, nil
}

// wantAll checks that all RPCs of a run went well.
func wantAll(t *testing.T, who string, got seen, n int64) {
	t.Helper()
	if got.Succeeded != n || got.Failed != 0 {
		t.Fatalf("%s: %d of %d RPCs succeeded, %d failed: %+v", who, got.Succeeded, n, got.Failed, got.Errors)
	}
}

// wantSpread checks that the RPCs are spread evenly over the servers. It is for
// runs of few RPCs at a time: many would use up the machine, and then the servers
// are not of equal cost.
func wantSpread(t *testing.T, who string, got seen, servers []cluster.Pod) {
	t.Helper()
	cv, most := spread(got.ByServer, servers), maxSpread(got.ByServer, servers)
	if cv > most {
		t.Errorf("%s: spread %.1f %% over %d servers, want at most %.1f %%: %v", who, 100*cv, len(servers), 100*most, got.ByServer)
	} else {
		t.Logf("%s: spread %.2f %% over %d servers", who, 100*cv, len(servers))
	}
}

// maxSpread is DESIGN §10's 5 % for least_request. It is meant for many RPCs: n
// thrown at k servers at random have a spread of sqrt((k-1)/n), and where that is
// large, 2.5 times it is what no honest balancer exceeds in one run of 500.
func maxSpread(by map[string]int64, servers []cluster.Pod) float64 {
	n := int64(0)
	for _, p := range servers {
		n += by[p.Name]
	}
	return max(0.05, 2.5*math.Sqrt(float64(len(servers)-1)/float64(n)))
}

// wantShares is for servers that do not cost the same: each has half of the mean.
func wantShares(t *testing.T, who string, got seen, servers []cluster.Pod) {
	t.Helper()
	for _, p := range servers {
		if n := got.ByServer[p.Name]; n*int64(len(servers))*2 < got.Succeeded {
			t.Errorf("%s: %s got %d of %d RPCs, want at least half of the mean: %v", who, p.Name, n, got.Succeeded, got.ByServer)
		}
	}
}
