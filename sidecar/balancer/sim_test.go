// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// sim drives balancers against endpoints with a virtual clock: each client
// keeps so many RPCs in flight (a closed loop) or starts one each gap (an open
// loop), each endpoint serves any number at once, each at its own cost.
type sim struct {
	policy      Policy
	clients     int
	endpoints   int
	perClient   int // RPCs of each client
	concurrency int // in flight of each client; zero: open loop
	gap         time.Duration
	cost        func(endpoint int, rnd *rand.Rand) time.Duration
	seed        uint64
}

type outcome struct {
	perEndpoint []int
	latency     []time.Duration // sorted
}

type completion struct {
	at     time.Time
	client int
	e      *Endpoint // nil: an open-loop arrival
	start  time.Time
	order  int // arrivals at one instant keep their order
}

type queue []completion

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].order < q[j].order
	}
	return q[i].at.Before(q[j].at)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(completion)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

func equalCost(int, *rand.Rand) time.Duration { return time.Millisecond }

// exponentialCost has the mean of equalCost.
func exponentialCost(_ int, rnd *rand.Rand) time.Duration {
	return time.Duration(rnd.ExpFloat64() * float64(time.Millisecond))
}

// skewedCost is cheap mostly and dear rarely, with the mean of equalCost.
func skewedCost(_ int, rnd *rand.Rand) time.Duration {
	if rnd.IntN(20) == 0 {
		return 10*time.Millisecond + 5*time.Millisecond/10
	}
	return 500 * time.Microsecond
}

// slowFirst makes endpoint 0 ten times slower.
func slowFirst(cost func(int, *rand.Rand) time.Duration) func(int, *rand.Rand) time.Duration {
	return func(e int, rnd *rand.Rand) time.Duration {
		d := cost(e, rnd)
		if e == 0 {
			d *= 10
		}
		return d
	}
}

func endpointAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 50051)
}

func index(e *Endpoint) int {
	a := e.Addr().Addr().As4()
	return int(a[2])<<8 | int(a[3])
}

func specOf(n int, policy Policy) *Spec {
	s := &Spec{Service: "shop/pricing:50051", Policy: policy, Version: "1"}
	for i := range n {
		s.Endpoints = append(s.Endpoints, EndpointSpec{Addr: endpointAddr(i), State: Ready})
	}
	return s
}

func (s sim) run(t testing.TB) outcome {
	t.Helper()
	rnd := rand.New(rand.NewPCG(s.seed, 1))
	now := time.Unix(0, 0)
	balancers := make([]*Balancer, s.clients)
	for i := range balancers {
		balancers[i] = New("shop/pricing:50051", rand.New(rand.NewPCG(s.seed, uint64(i)+2)))
		balancers[i].Update(specOf(s.endpoints, s.policy))
	}
	out := outcome{perEndpoint: make([]int, s.endpoints)}
	left := make([]int, s.clients)
	var q queue
	order := 0
	push := func(c completion) {
		order++
		c.order = order
		heap.Push(&q, c)
	}
	start := func(client int) {
		if left[client] == 0 {
			return
		}
		left[client]--
		e, err := balancers[client].Pick(now, nil)
		if err != nil {
			t.Fatal(err)
		}
		out.perEndpoint[index(e)]++
		push(completion{at: now.Add(s.cost(index(e), rnd)), client: client, e: e, start: now})
	}
	for c := range left {
		left[c] = s.perClient
	}
	if s.concurrency > 0 {
		for range s.concurrency {
			for c := range left {
				start(c)
			}
		}
	} else {
		for c := range left { // clients are not in phase
			push(completion{at: now.Add(time.Duration(rnd.Int64N(int64(s.gap)))), client: c})
		}
	}
	for len(q) > 0 {
		c := heap.Pop(&q).(completion)
		now = c.at
		if c.e == nil {
			start(c.client)
			if left[c.client] > 0 {
				push(completion{at: now.Add(s.gap), client: c.client})
			}
			continue
		}
		c.e.Done(now)
		out.latency = append(out.latency, now.Sub(c.start))
		if s.concurrency > 0 {
			start(c.client)
		}
	}
	slices.Sort(out.latency)
	return out
}

func (o outcome) total() int {
	n := 0
	for _, v := range o.perEndpoint {
		n += v
	}
	return n
}

// spread is the coefficient of variation over the endpoints.
func (o outcome) spread() float64 {
	mean := float64(o.total()) / float64(len(o.perEndpoint))
	var sum float64
	for _, v := range o.perEndpoint {
		d := float64(v) - mean
		sum += d * d
	}
	return math.Sqrt(sum/float64(len(o.perEndpoint))) / mean
}

func (o outcome) p99() time.Duration { return o.latency[len(o.latency)*99/100] }

// meanSpread is the root mean square of the spread over seeds.
func (s sim) meanSpread(t testing.TB, seeds int) float64 {
	var sum float64
	for i := range seeds {
		s.seed = uint64(i) + 1
		v := s.run(t).spread()
		sum += v * v
	}
	return math.Sqrt(sum / float64(seeds))
}

func (s sim) String() string {
	loop := fmt.Sprintf("%d in flight", s.concurrency)
	if s.concurrency == 0 {
		loop = "each " + s.gap.String()
	}
	return fmt.Sprintf("%s %d clients %d endpoints %d RPCs %s", s.policy, s.clients, s.endpoints, s.perClient, loop)
}

// multinomialFloor is the spread of RPCs thrown at endpoints at random: what a
// policy without memory cannot beat, and least_request should not be worse than.
func (s sim) multinomialFloor() float64 {
	return math.Sqrt(float64(s.endpoints-1) / float64(s.clients*s.perClient))
}

// roundRobinFloor is the spread of clients that are each perfectly even: only
// the RPCs of the last, incomplete round fall at random.
func (s sim) roundRobinFloor() float64 {
	p := float64(s.perClient%s.endpoints) / float64(s.endpoints)
	return math.Sqrt(float64(s.clients)*p*(1-p)) / (float64(s.clients*s.perClient) / float64(s.endpoints))
}

// seedsFor keeps the statistics about as good in every row: the root mean
// square of a spread over k degrees of freedom is off by 1/sqrt(2k).
func (s sim) seedsFor() int { return max(3, 80/(s.endpoints-1)) }

func TestSpreadIsNearTheFloor(t *testing.T) {
	for _, clients := range []int{1, 8, 50, 200} {
		for _, endpoints := range []int{2, 6, 30, 100} {
			for _, perClient := range []int{3, 50, 500} {
				if clients*perClient > 3_000 {
					continue
				}
				for _, concurrency := range []int{0, 4} {
					s := sim{
						clients: clients, endpoints: endpoints, perClient: perClient,
						concurrency: concurrency, gap: 20 * time.Millisecond, cost: equalCost,
					}
					for policy, floor := range map[Policy]float64{
						LeastRequest: s.multinomialFloor(), RoundRobin: s.roundRobinFloor(),
					} {
						s.policy = policy
						if got := s.meanSpread(t, s.seedsFor()); got > 1.2*floor {
							t.Errorf("%s: spread %.4f is above 1.2 × the floor %.4f", s, got, floor)
						}
					}
				}
			}
		}
	}
}

// TestDesignSpread is the figure of DESIGN section 10.
func TestDesignSpread(t *testing.T) {
	for policy, bound := range map[Policy]float64{RoundRobin: 0.02, LeastRequest: 0.05} {
		for what, cost := range map[string]func(int, *rand.Rand) time.Duration{
			"equal": equalCost, "exponential": exponentialCost, "skewed": skewedCost,
		} {
			for _, concurrency := range []int{0, 1, 8, 50} {
				s := sim{
					policy: policy, clients: 8, endpoints: 6, perClient: 10_000 / 8,
					concurrency: concurrency, gap: 2 * time.Millisecond, cost: cost, seed: 11,
				}
				if got := s.run(t).spread(); got > bound {
					t.Errorf("%s, %s cost: spread %.4f, want at most %.2f", s, what, got, bound)
				}
			}
		}
	}
}

// TestSlowEndpointGetsLess: where a client has RPCs in flight to compare, a ten
// times slower endpoint gets less than half its share, and the tail is better
// than with round_robin, which is blind.
func TestSlowEndpointGetsLess(t *testing.T) {
	for _, clients := range []int{1, 8, 50} {
		for _, endpoints := range []int{2, 3, 6, 20} {
			for _, cost := range []func(int, *rand.Rand) time.Duration{equalCost, exponentialCost} {
				s := sim{
					policy: LeastRequest, clients: clients, endpoints: endpoints, perClient: max(500, 6_000/clients),
					concurrency: max(4, endpoints/2), cost: slowFirst(cost), seed: 5,
				}
				o := s.run(t)
				fair := float64(o.total()) / float64(endpoints)
				if share := float64(o.perEndpoint[0]) / fair; share >= 0.5 {
					t.Errorf("%s: the slow endpoint has %.2f of its share, want less than 0.5", s, share)
				}
				mean := func(o outcome) time.Duration {
					var sum time.Duration
					for _, d := range o.latency {
						sum += d
					}
					return sum / time.Duration(len(o.latency))
				}
				s.policy = RoundRobin
				blind := s.run(t)
				if lr, rr := mean(o), mean(blind); lr >= rr {
					t.Errorf("%s: mean latency %s, round_robin has %s", s, lr, rr)
				}
				if lr, rr := o.p99(), blind.p99(); lr > rr {
					t.Errorf("%s: p99 %s, round_robin has %s", s, lr, rr)
				}
			}
		}
	}
}

// TestLowLoadDoesNotRank: with hardly ever an RPC in flight there is nothing
// to compare, and a slower endpoint must not lose (nor win) its share.
func TestLowLoadDoesNotRank(t *testing.T) {
	s := sim{
		policy: LeastRequest, clients: 4, endpoints: 5, perClient: 5_000,
		gap: 500 * time.Millisecond, seed: 7,
		cost: func(e int, _ *rand.Rand) time.Duration { return time.Duration(1+e) * time.Millisecond },
	}
	o := s.run(t)
	if got, bound := o.spread(), 1.2*s.multinomialFloor(); got > bound {
		t.Errorf("spread %.4f, want at most %.4f: %v", got, bound, o.perEndpoint)
	}
}

// TestClientsDoNotMarchInStep: many clients that start at once with few RPCs
// each, and get the same updates, must not all begin at the same endpoint.
func TestClientsDoNotMarchInStep(t *testing.T) {
	const clients, endpoints = 400, 20
	for _, policy := range []Policy{LeastRequest, RoundRobin} {
		balancers := make([]*Balancer, clients)
		for i := range balancers {
			balancers[i] = New("a/b:1", rand.New(rand.NewPCG(9, uint64(i))))
			balancers[i].Update(specOf(endpoints, policy))
		}
		for step := range 5 {
			counts := make([]int, endpoints)
			for _, b := range balancers {
				e, err := b.Pick(time.Unix(0, 0), nil)
				if err != nil {
					t.Fatal(err)
				}
				counts[index(e)]++
			}
			// 20 on average; 50 would be 6.9 standard deviations of a random throw.
			if most := slices.Max(counts); most > 50 {
				t.Errorf("%s, RPC %d of each of %d clients: %v", policy, step+1, clients, counts)
			}
		}
	}
}

// TestRoundRobinStaysEvenWhileEndpointsChange: joins, leaves and backoffs at
// random move endpoints around; those that stay must still get the same.
func TestRoundRobinStaysEvenWhileEndpointsChange(t *testing.T) {
	const stay, all = 8, 12
	rnd := rand.New(rand.NewPCG(1, 2))
	b := New("a/b:1", rand.New(rand.NewPCG(3, 4)))
	now := time.Unix(0, 0)
	counts := make([]int, all)
	for range 4000 {
		spec := specOf(stay, RoundRobin)
		spec.Version = ""
		for i := stay; i < all; i++ {
			if rnd.IntN(2) == 0 {
				spec.Endpoints = append(spec.Endpoints, EndpointSpec{Addr: endpointAddr(i), State: Ready})
			}
		}
		b.Update(spec)
		for range rnd.IntN(40) {
			e, err := b.Pick(now, nil)
			if err != nil {
				t.Fatal(err)
			}
			counts[index(e)]++
		}
	}
	if got := (outcome{perEndpoint: counts[:stay]}).spread(); got > 0.05 {
		t.Errorf("spread %.4f over the endpoints that stayed: %v", got, counts[:stay])
	}
}
