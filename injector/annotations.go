// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationPrefix is that of the annotations on a namespace or a pod which
// configure injection. The pod's value of one wins over its namespace's.
const AnnotationPrefix = "config.evenkeel.dev/"

// annotations that this version reads, and what one does to the configuration.
var annotations = map[string]func(c *Config, value string) error{
	"outbound-ports": func(c *Config, v string) error {
		ports, err := parsePorts(v)
		if err == nil {
			c.OutboundPorts = ports
		}
		return err
	},
	"start-timeout": durationOf(time.Millisecond, maxStartTimeout, func(c *Config, d time.Duration) { c.StartTimeout.Duration = d }),
	"ready-timeout": durationOf(time.Millisecond, maxHold, func(c *Config, d time.Duration) { c.ReadyTimeout.Duration = d }),
	"drain-timeout": durationOf(0, maxHold, func(c *Config, d time.Duration) { c.DrainTimeout = &metav1.Duration{Duration: d} }),
	"drain-streams": durationOf(time.Millisecond, maxDrainStreams, func(c *Config, d time.Duration) { c.DrainStreams.Duration = d }),
	"drain-min": func(c *Config, v string) error {
		err := checkDrainMin(v)
		if err == nil {
			c.DrainMin = v
		}
		return err
	},
	"log-level": func(c *Config, v string) error {
		if err := checkLogLevel(v); err != nil {
			return err
		}
		c.LogLevel = v
		return nil
	},
	"sidecar-cpu":          quantityOf("above 0", func(c *Config) *resource.Quantity { return &c.Resources.CPURequest }),
	"sidecar-cpu-limit":    quantityOf("above 0", func(c *Config) *resource.Quantity { return &c.Resources.CPULimit }),
	"sidecar-memory":       quantityOf("above 0", func(c *Config) *resource.Quantity { return &c.Resources.MemoryRequest }),
	"sidecar-memory-limit": quantityOf("at least "+minMemoryLimit, func(c *Config) *resource.Quantity { return &c.Resources.MemoryLimit }),
}

// durationOf makes the setter of a duration.
func durationOf(lo, hi time.Duration, set func(*Config, time.Duration)) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is no duration such as 10s", v)
		}
		if err := checkBetween(d, lo, hi); err != nil {
			return err
		}
		set(c, d)
		return nil
	}
}

// quantityOf makes the setter of a resource. want is "above 0" or "at least X".
func quantityOf(want string, field func(*Config) *resource.Quantity) func(*Config, string) error {
	return func(c *Config, v string) error {
		q, err := resource.ParseQuantity(v)
		if err != nil {
			return fmt.Errorf("%q is no quantity such as 200m or 64Mi", v)
		}
		if least, ok := strings.CutPrefix(want, "at least "); q.Sign() <= 0 || ok && q.Cmp(resource.MustParse(least)) < 0 {
			return fmt.Errorf("%s, want %s", q.String(), want)
		}
		*field(c) = q
		return nil
	}
}

// configure applies the annotations of the namespace and then of the pod to a
// copy of base. What cannot be used is a warning and leaves the value as it was:
// nobody's pod stays away because of a typing error.
func configure(base *Config, ns, pod map[string]string) (*Config, []Warning) {
	cfg := *base
	cfg.OutboundPorts = slices.Clone(base.OutboundPorts)
	var warnings []Warning
	for _, source := range []struct {
		name        string
		annotations map[string]string
	}{{"namespace", ns}, {"pod", pod}} {
		for _, key := range slices.Sorted(maps.Keys(source.annotations)) {
			name, ours := strings.CutPrefix(key, AnnotationPrefix)
			if !ours {
				continue
			}
			set, known := annotations[name]
			switch {
			case known:
				value := strings.TrimSpace(source.annotations[key])
				if err := set(&cfg, value); err != nil {
					warnings = append(warnings, warnf(ReasonBadAnnotation, name, "%s annotation %s: %s; ignored", source.name, key, err))
				}
			default:
				warnings = append(warnings, warnf(ReasonBadAnnotation, "unknown", "%s annotation %s: not known%s; ignored", source.name, key, suggestion(name)))
			}
		}
	}
	r := &cfg.Resources
	// A request that was raised above a limit which nobody touched means: more.
	if r.CPURequest.Cmp(r.CPULimit) > 0 {
		r.CPULimit = r.CPURequest
	}
	if r.MemoryRequest.Cmp(r.MemoryLimit) > 0 {
		r.MemoryLimit = r.MemoryRequest
	}
	// A floor that was raised above a bound which nobody touched means: more.
	if least, err := time.ParseDuration(cfg.DrainMin); err == nil && cfg.DrainTimeout.Duration > 0 && least > cfg.DrainTimeout.Duration {
		cfg.DrainTimeout = &metav1.Duration{Duration: least}
	}
	return &cfg, warnings
}

// parsePorts reads "50051,50052". The order stays: a name without a port means the
// first.
func parsePorts(v string) ([]uint16, error) {
	if v == "" {
		return nil, errors.New("no port; to leave a pod out, use the label evenkeel.dev/inject: disabled")
	}
	var ports []uint16
	for s := range strings.SplitSeq(v, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is no port from 1 to 65535", strings.TrimSpace(s))
		}
		ports = append(ports, uint16(n))
	}
	return ports, checkPorts(ports)
}

// suggestion names the annotation that was probably meant.
func suggestion(name string) string {
	best, least := "", 3 // further away than that is another word
	for _, known := range slices.Sorted(maps.Keys(annotations)) {
		if d := distance(name, known); d < least {
			best, least = known, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
