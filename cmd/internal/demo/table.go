// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// barWidth is the length of the bar of the busiest server.
const barWidth = 24

// The colours that the table uses (ECMA-48 select graphic rendition).
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

// table writes the result for people: what each server got, side by side.
func (d *Demo) table(r *Result) error {
	paint := func(colour, text string) string {
		if d.Colour == Plain || text == "" {
			return text
		}
		return colour + text + normal
	}
	most := max(slices.Max(r.Without.RPCs), slices.Max(r.With.RPCs), 1)
	var b strings.Builder
	fmt.Fprintf(&b, "\nRPCs per server in the %s after all %d were ready (%d clients, one channel each):\n\n", d.Plan.After, d.Plan.Servers, d.Plan.Clients)
	const column = 8 + barWidth
	fmt.Fprintf(&b, "%-18s  %s  %s\n", "", paint(bold, pad("without Evenkeel", column)), paint(bold, "with Evenkeel"))
	for i := range r.With.RPCs {
		name := "pricing-" + strconv.Itoa(i)
		if i >= d.Plan.Early {
			name += " (late)"
		}
		left, right := bar(r.Without.RPCs[i], most), bar(r.With.RPCs[i], most)
		fmt.Fprintf(&b, "%-18s  %7d %s  %7d %s\n", name,
			r.Without.RPCs[i], paint(red, pad(left, barWidth)), r.With.RPCs[i], paint(green, right))
	}
	b.WriteByte('\n')
	rows := []struct{ name, without, with, bar string }{
		{"spread", formatSpread(float64(r.Without.Spread)), formatSpread(float64(r.With.Spread)), "at most " + formatSpread(maxSpread)},
		{"fair share after", formatFairShare(r.Without.FairShare), formatFairShare(r.With.FairShare), "at most " + formatSeconds(maxFairShare)},
		{"failed RPCs", strconv.Itoa(r.Without.Failed), strconv.Itoa(r.With.Failed), "none"},
	}
	for _, row := range rows {
		note := ""
		if row.bar != "" {
			note = "  (" + row.bar + ")"
		}
		fmt.Fprintf(&b, "%-18s  %s  %s%s\n", row.name, pad("  "+row.without, column), "  "+row.with, note)
	}
	for m, o := range []*Outcome{without: r.Without, with: r.With} {
		if o.firstError != "" {
			fmt.Fprintf(&b, "\nfirst failed RPC %s: %s\n", mesh(m), o.firstError)
		}
	}
	b.WriteString("\nspread: standard deviation of the RPCs per server over their mean; 0 % is perfect.\n" +
		"fair share: every late server gets at least 80 % of the mean, in every second from then on.\n" +
		"failed RPCs: nearly all of them in the rolling restart at the end, of servers that exit at once on SIGTERM.\n\n")
	if ok, why := r.With.meets(); ok {
		b.WriteString(paint(green, "PASS") + "  with Evenkeel every server has its share and a rollout loses nothing, with no change to the programs.\n")
	} else {
		b.WriteString(paint(red, "FAIL") + "  " + join(why) + ".\n")
	}
	_, err := io.WriteString(d.Stdout, b.String())
	return err
}

// bar draws n, in eighths of a character.
func bar(n, most int) string {
	eighths := int(math.Round(float64(n) * barWidth * 8 / float64(most)))
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune(" ▏▎▍▌▋▊▉")[rest])
	} else if n > 0 && text == "" {
		text = "▏"
	}
	return text
}

// pad fills text to width characters; fmt's own padding counts them too, but not within colours.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-len([]rune(text))))
}

func join(why []string) string { return strings.Join(why, "; ") }

func formatSpread(s float64) string { return strconv.FormatFloat(100*s, 'f', 1, 64) + " %" }

func formatRate(r float64) string { return strconv.FormatFloat(r, 'f', 0, 64) + " RPCs a second" }

func formatSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
}

func formatFairShare(s *seconds) string {
	if s == nil {
		return "never"
	}
	return formatSeconds(time.Duration(*s))
}
