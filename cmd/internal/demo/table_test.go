// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func tableOf(t *testing.T, colour Colour, with *Outcome) string {
	t.Helper()
	var out strings.Builder
	plan := DefaultPlan()
	d := Demo{Plan: plan, Colour: colour, Stdout: &out}
	without := &Outcome{Spread: 1.4142, Failed: 57, RPCs: []int{4000, 3990, 0, 0, 0, 1}}
	if err := d.table(&Result{With: with, Without: without}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTable(t *testing.T) {
	share := seconds(80 * time.Millisecond)
	good := &Outcome{Spread: 0.004, FairShare: &share, RPCs: []int{1333, 1330, 1335, 1340, 1331, 1329}, rate: 1000}
	const want = `
RPCs per server in the 8s after all 6 were ready (8 clients, one channel each):

                    without Evenkeel                  with Evenkeel
pricing-0              4000 ████████████████████████     1333 ████████
pricing-1              3990 ████████████████████████     1330 ████████
pricing-2 (late)          0                              1335 ████████
pricing-3 (late)          0                              1340 ████████
pricing-4 (late)          0                              1331 ████████
pricing-5 (late)          1 ▏                            1329 ████████

spread                141.4 %                           0.4 %  (at most 5.0 %)
fair share after      never                             0.08 s  (at most 1.00 s)
failed RPCs           57                                0  (none)

spread: standard deviation of the RPCs per server over their mean; 0 % is perfect.
fair share: every late server gets at least 80 % of the mean, in every second from then on.
failed RPCs: nearly all of them in the rolling restart at the end, of servers that exit at once on SIGTERM.

PASS  with Evenkeel every server has its share and a rollout loses nothing, with no change to the programs.
`
	plain := tableOf(t, Plain, good)
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// Colours change nothing but colours.
	ansi := tableOf(t, ANSI, good)
	if !strings.Contains(ansi, green+"PASS"+normal) {
		t.Errorf("no green PASS in %q", ansi)
	}
	if stripped := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(ansi, ""); stripped != plain {
		t.Errorf("without its colours the table is another one:\n%s", cmp.Diff(plain, stripped))
	}

	bad := &Outcome{Spread: 0.2, Failed: 3, RPCs: []int{1, 2, 3, 4, 5, 6}, rate: 1000, firstError: "rpc error: code = Unavailable"}
	for _, want := range []string{
		"FAIL  the spread is 20.0 %, more than 5.0 %; a late server never had its fair share; 3 RPCs failed.\n",
		"first failed RPC with Evenkeel: rpc error: code = Unavailable\n",
	} {
		if got := tableOf(t, Plain, bad); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
