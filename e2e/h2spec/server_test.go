// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2spec

import (
	"context"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serverCases is how many cases h2spec has in its three parts; strict ones are among them.
const serverCases = 146

// TestServer judges the side of the app: h2spec is the app, and the sidecar its server.
func TestServer(t *testing.T) {
	backend := startBackend(t)
	listen := freePorts(t, 1)
	startEvenkeel(t, listen, []route{{port: listen, target: backend.port}})
	authority := "localhost:" + strconv.Itoa(listen)
	client := http.Client{Transport: h2c(authority), Timeout: 10 * time.Second}
	within(t, 20*time.Second, "a request reaches the backend", func() error {
		resp, err := client.Get("http://" + authority + "/")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	client.CloseIdleConnections()
	for name, args := range map[string][]string{"default": nil, "strict": {"--strict"}} {
		t.Run(name, func(t *testing.T) {
			before := backend.requests.Load()
			suites := runH2spec(t, listen, args...)
			ran := 0
			for _, suite := range suites {
				for _, c := range suite.Cases {
					ran++
					t.Run(suite.Package+"/"+c.Name, func(t *testing.T) { c.judge(t) })
				}
			}
			if name == "strict" && ran != serverCases {
				t.Errorf("h2spec ran %d cases, it has %d", ran, serverCases)
			}
			// Most of the cases are whole requests, or begin with one.
			if n := backend.requests.Load() - before; n < uint64(ran)/4 {
				t.Errorf("the backend saw %d requests in %d cases: the sidecar answers by itself", n, ran)
			} else {
				t.Logf("%d cases, %d requests at the backend", ran, n)
			}
		})
	}
}

// A suite is a section of h2spec's JUnit report.
type suite struct {
	Package string       `xml:"package,attr"`
	Cases   []serverCase `xml:"testcase"`
}

type serverCase struct {
	Name    string    `xml:"classname,attr"`
	Failure *string   `xml:"failure"`
	Error   *string   `xml:"error"`
	Skipped *struct{} `xml:"skipped"`
}

func (c serverCase) judge(t *testing.T) {
	switch {
	case c.Failure != nil:
		t.Error(*c.Failure)
	case c.Error != nil:
		t.Error(*c.Error)
	case c.Skipped != nil:
		// h2spec skips a case whose premise the server does not meet, for example a response with too short a body.
		t.Error("h2spec skipped it")
	}
}

func runH2spec(t *testing.T, port int, args ...string) []suite {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.xml")
	// A case that waits for nothing to happen takes the whole timeout; a slow machine needs some.
	args = append([]string{"--host=localhost", "--port=" + strconv.Itoa(port), "--timeout=5", "--junit-report=" + report}, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, runErr := exec.CommandContext(ctx, programs.h2spec, args...).CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("h2spec wrote no report: %v\n%s", runErr, out)
	}
	var all struct {
		Suites []suite `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &all); err != nil {
		t.Fatalf("report: %v\n%s", err, text)
	}
	if runErr != nil { // some case failed
		t.Logf("%s", out)
	}
	return all.Suites
}

type backend struct {
	port     int
	requests atomic.Uint64
}

// startBackend serves HTTP/2 by net/http, with a body that is long enough for h2spec's cases of flow control.
func startBackend(t *testing.T) *backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{port: ln.Addr().(*net.TCPAddr).Port}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.requests.Add(1)
			// What becomes of a request that h2spec breaks off is not for the backend to say.
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, strings.Repeat("0123456789abcdef", 64))
		}),
	}
	go func() { _ = server.Serve(ln) }() // ends by Close
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// h2c speaks HTTP/2 without TLS to addr, whatever host the URL names.
func h2c(addr string) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}
}
