// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"encoding/json"
	"math"
	"sort"
	"strconv"
	"time"
)

// The bar, from the design: spread within 5 % for least_request, and in every 1 s window from 1 s after a server became ready,
// at 500 RPCs a second or more, at least 80 % of the mean.
const (
	maxSpread    = 0.05
	maxFairShare = time.Second
	fairWindow   = time.Second
	fairFraction = 0.8
	minRate      = 500
	// windowStep is how finely the window slides.
	windowStep = 10 * time.Millisecond
)

// arrivals are the times, since the start of the run, at which RPCs reached each server; each list ascends.
type arrivals [][]time.Duration

// Outcome is what one run showed. Its JSON form is a contract with users.
type Outcome struct {
	// Spread is the coefficient of variation of RPCs over the servers, from the moment all were ready.
	Spread ratio `json:"spread"`
	// FairShare is how long after a late server became ready it had its fair share for good: the slowest one. Nil: never.
	FairShare *seconds `json:"fair_share_seconds"`
	// Failed counts the RPCs that did not succeed, over the whole run, the rolling restart included.
	Failed int `json:"failed_rpcs"`
	// RPCs counts what reached each server from the moment all were ready.
	RPCs []int `json:"rpcs_per_server"`

	rate       float64 // RPCs a second in that time
	firstError string
}

// seconds is a duration that is a number of seconds in JSON.
type seconds time.Duration

// MarshalJSON writes seconds with three decimals.
func (s seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(math.Round(time.Duration(s).Seconds()*1000) / 1000)
}

// ratio is a number that is infinite where nothing was counted; JSON has null for that.
type ratio float64

// MarshalJSON writes the ratio with four decimals.
func (r ratio) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(r), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(float64(r)*10000) / 10000)
}

// meets tells whether the outcome is within the bar, and if not, what is not.
func (o *Outcome) meets() (ok bool, why []string) {
	if o.rate < minRate {
		why = append(why, "only "+formatRate(o.rate)+" reached the servers, too few to judge (at least 500): is the machine busy?")
	}
	if o.Spread > maxSpread {
		why = append(why, "the spread is "+formatSpread(float64(o.Spread))+", more than "+formatSpread(maxSpread))
	}
	switch {
	case o.FairShare == nil:
		why = append(why, "a late server never had its fair share")
	case time.Duration(*o.FairShare) > maxFairShare:
		why = append(why, "the late servers had their fair share after "+formatSeconds(time.Duration(*o.FairShare))+", later than "+formatSeconds(maxFairShare))
	}
	if o.Failed > 0 {
		why = append(why, strconv.Itoa(o.Failed)+" RPCs failed")
	}
	return len(why) == 0, why
}

// judge makes an Outcome of a run in which ready holds when each server became ready, and which ended at end.
func judge(got arrivals, ready []time.Duration, late []int, end time.Duration) *Outcome {
	allReady := time.Duration(0)
	for _, at := range ready {
		allReady = max(allReady, at)
	}
	o := &Outcome{RPCs: make([]int, len(got))}
	total := 0
	for i := range got {
		o.RPCs[i] = got.count(i, allReady, end)
		total += o.RPCs[i]
	}
	o.Spread = ratio(spread(o.RPCs))
	o.rate = float64(total) / (end - allReady).Seconds()
	worst := time.Duration(0)
	for _, i := range late {
		after, ok := got.fairShare(i, ready[i], end)
		if !ok {
			return o
		}
		worst = max(worst, after)
	}
	o.FairShare = (*seconds)(&worst)
	return o
}

// count is the number of RPCs that reached server i in [from, to).
func (a arrivals) count(i int, from, to time.Duration) int {
	at := a[i]
	first := sort.Search(len(at), func(k int) bool { return at[k] >= from })
	last := sort.Search(len(at), func(k int) bool { return at[k] >= to })
	return last - first
}

// fairShare returns how long after ready server i had its fair share for good: in every window from then until end, and not before
// its first RPC. It is false when the last window still lacked it.
func (a arrivals) fairShare(i int, ready, end time.Duration) (time.Duration, bool) {
	last := end - fairWindow
	if last < ready || !a.fair(i, last) {
		return 0, false
	}
	from := last
	for from-windowStep >= ready && a.fair(i, from-windowStep) {
		from -= windowStep
	}
	if from-windowStep < ready {
		from = ready // the steps need not meet it
	}
	first := a[i][sort.Search(len(a[i]), func(k int) bool { return a[i][k] >= ready })]
	return max(from, first) - ready, true
}

// fair tells whether server i had its fair share in the window that begins at from.
func (a arrivals) fair(i int, from time.Duration) bool {
	total := 0
	for k := range a {
		total += a.count(k, from, from+fairWindow)
	}
	return total > 0 && float64(a.count(i, from, from+fairWindow)) >= fairFraction*float64(total)/float64(len(a))
}

// spread is the coefficient of variation: the standard deviation over the mean. All zero: nothing was balanced, so it is
// infinite, not perfect.
func spread(counts []int) float64 {
	n, sum := float64(len(counts)), 0.0
	for _, c := range counts {
		sum += float64(c)
	}
	if sum == 0 {
		return math.Inf(1)
	}
	mean, squares := sum/n, 0.0
	for _, c := range counts {
		squares += (float64(c) - mean) * (float64(c) - mean)
	}
	return math.Sqrt(squares/n) / mean
}
