// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2spec

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// clientEnv has this test's own binary be the client that h2specd runs for each case: its value is the sidecar's address, its last
// argument the URL.
const clientEnv = "EVENKEEL_H2SPEC_CLIENT"

// clientTimeout is below the 3 s that h2specd gives its client: it ends all when a client takes longer. In cases that break the
// connection the sidecar rightly tries another for longer than that.
const clientTimeout = 1500 * time.Millisecond

// sections of h2specd with their number of cases. They run side by side, as a case may take clientTimeout and they mostly wait.
var sections = []struct {
	name  string
	cases int
}{
	{"1", 1},
	{"4", 7},
	{"5.1", 11},
	{"5.4", 2},
	{"5.5", 1},
	{"6.1", 3},
	{"6.2", 3},
	{"6.3", 2},
	{"6.4", 3},
	{"6.5", 8},
	{"6.7", 4},
	{"6.8", 1},
	{"6.9", 5},
	{"6.10", 6},
}

// argued are the cases in which the sidecar does other than h2specd expects, and why.
var argued = map[string]string{
	// h2specd goes by RFC 7540: "An endpoint that receives any frames after receiving a frame with the END_STREAM flag set MUST treat
	// that as a connection error". RFC 9113 section 5.1, which obsoletes it, leaves the choice: "An endpoint MAY treat receipt of any
	// other type of frame on a closed stream as a connection error (Section 5.4.1) of type STREAM_CLOSED". A connection to a server
	// carries the RPCs of many; the fault of one of them must not end all, so RST_STREAM(STREAM_CLOSED) is sent.
	"5.1/closed: Sends a DATA frame":    "RFC 9113 section 5.1: MAY, not MUST",
	"5.1/closed: Sends a HEADERS frame": "RFC 9113 section 5.1: MAY, not MUST",
}

// TestClient judges the side of the servers: h2specd is the server, and the sidecar its client.
func TestClient(t *testing.T) {
	listen := freePorts(t, 1)
	cases := 0
	for _, s := range sections {
		cases += s.cases
	}
	first := freePorts(t, cases)
	var routes []route
	for p := range cases {
		routes = append(routes, route{first + p, first + p})
	}
	startEvenkeel(t, listen, routes)
	verdicts := make([][]verdict, len(sections))
	var all sync.WaitGroup
	for i, s := range sections {
		from := first
		first += s.cases
		all.Go(func() { verdicts[i] = runH2specd(t, "client/"+s.name, listen, from) })
	}
	all.Wait()
	for i, s := range sections {
		if len(verdicts[i]) != s.cases {
			t.Errorf("h2specd ran %d cases, section %s has %d", len(verdicts[i]), s.name, s.cases)
		}
		for _, v := range verdicts[i] {
			t.Run(v.name, func(t *testing.T) { v.judge(t) })
		}
	}
}

// A verdict is what h2specd printed for a case.
type verdict struct {
	name   string // section/description
	passed bool
	detail string
}

func (v verdict) judge(t *testing.T) {
	why, ok := argued[v.name]
	switch {
	case ok && v.passed:
		t.Errorf("passes, though the case is argued: %s", why)
	case ok && !strings.Contains(v.detail, "RST_STREAM Frame"):
		t.Errorf("argued is RST_STREAM (%s), but:\n%s", why, v.detail)
	case !ok && !v.passed:
		t.Error(v.detail)
	}
}

func runH2specd(t *testing.T, section string, listen, from int) []verdict {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Error(err)
		return nil
	}
	cmd := exec.CommandContext(ctx, programs.h2specd, "--host=localhost", "--strict", "--from-port="+strconv.Itoa(from), "--exec="+self, section)
	cmd.Env = append(os.Environ(), clientEnv+"=localhost:"+strconv.Itoa(listen))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("h2specd: %v\n%s", err, out.String())
	}
	return parseH2specd(out.String())
}

var (
	sectionLine = regexp.MustCompile(`^\s*([0-9.]+)\. `)
	caseLine    = regexp.MustCompile(`^\s*(✔|×) \d+: (.*)$`)
)

// parseH2specd reads the lines that h2specd prints while it goes.
func parseH2specd(out string) []verdict {
	var all []verdict
	section := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(strings.TrimPrefix(line, "\r"), "\n")
		if strings.HasPrefix(line, "Failures:") || strings.HasPrefix(line, "Finished in") {
			break // see doc.go, Limitations
		}
		if m := caseLine.FindStringSubmatch(line); m != nil {
			all = append(all, verdict{name: section + "/" + m[2], passed: m[1] == "✔"})
		} else if m := sectionLine.FindStringSubmatch(line); m != nil {
			section = m[1]
		} else if n := len(all); n > 0 && !all[n-1].passed {
			all[n-1].detail += line + "\n"
		}
	}
	return all
}

// TestParse: a failed case must not be lost.
func TestParse(t *testing.T) {
	got := parseH2specd("Generic tests\n  5. Streams\n    5.1. Stream States\n\r      ✔ 1: idle: Sends\n\r      × 2: closed: Sends\n" +
		"        -> The endpoint MUST\n             Actual: RST_STREAM Frame\n      5.1.1. Identifiers\n\r        ✔ 1: Sends an id\n\n" +
		"Failures: \n      × 9: not a verdict\n")
	want := []verdict{
		{name: "5.1/idle: Sends", passed: true},
		{name: "5.1/closed: Sends", detail: "        -> The endpoint MUST\n             Actual: RST_STREAM Frame\n"},
		{name: "5.1.1/Sends an id", passed: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// clientMain makes one request through the sidecar. Its exit status does not count: h2specd judges.
func clientMain(sidecar, url string) int {
	client := http.Client{Transport: h2c(sidecar), Timeout: clientTimeout}
	resp, err := client.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return 0
}
