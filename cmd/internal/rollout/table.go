// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// maxNamed is how many missing clients a line names.
const maxNamed = 2

// WriteTable writes the status for people.
func (s *Status) WriteTable(w io.Writer, now time.Time) error {
	state := "in progress"
	if s.Complete {
		state = "complete"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s in %s: %s, %d of %d updated, %d ready\n\n", s.Workload, s.Namespace, state, s.Updated, s.Desired, s.Ready)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POD\tSTATE\tCLIENTS\tSTART\tREADY\tDRAIN\tREPLAYED\tFAILED\tAGE\tWAITING FOR")
	for i := range s.Pods {
		p := &s.Pods[i]
		if !p.Sidecar {
			fmt.Fprintf(table, "%s\t%s\t-\t-\t-\t-\t-\t-\t%s\tno sidecar\n", p.Name, p.State, age(p.Created, now))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%d/%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", p.Name, p.State, p.Answered, p.Clients,
			p.hold("start"), p.hold("ready"), p.hold("drain"), p.Replayed, p.Failed, age(p.Created, now), waiting(p.Missing, p.Clients-p.Answered))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	before := b.Len()
	for i := range s.Pods {
		for _, h := range s.Pods[i].Holds {
			if len(h.Missing) > 0 {
				fmt.Fprintf(&b, "\n%s: the %s hold ended after %.1fs without %s", s.Pods[i].Name, h.Hold, h.Seconds, waiting(h.Missing, len(h.Missing)))
			}
		}
	}
	for _, note := range s.Notes {
		fmt.Fprintf(&b, "\nnote: %s", note)
	}
	if b.Len() > before {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// hold is how long a hold took, with a word if something else than the answer ended it.
func (p *Pod) hold(name string) string {
	for _, h := range p.Holds {
		if h.Hold != name {
			continue
		}
		text := strconv.FormatFloat(h.Seconds, 'f', 1, 64) + "s"
		if h.Reason != "answered" {
			text += " (" + h.Reason + ")"
		}
		return text
	}
	return "-"
}

func waiting(names []string, n int) string {
	switch {
	case len(names) == 0 && n <= 0:
		return ""
	case len(names) == 0:
		return strconv.Itoa(n)
	}
	shown := names[:min(len(names), maxNamed)]
	text := strings.Join(shown, ", ")
	if more := max(n, len(names)) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// age is kubectl's: the largest unit.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(0, now.Sub(t)); {
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	default:
		return strconv.Itoa(int(d.Hours()/24)) + "d"
	}
}
