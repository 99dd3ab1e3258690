// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"testing"

	"evenkeel.dev/xds"
)

func TestDestination(t *testing.T) {
	s := storeOf(
		clusterIP("pricing", "10.96.0.1,fd00::1", "grpc=50051>50051", "admin=8080>0"),
		svc("stock", func(s *Service) {
			*s = *clusterIP("stock", "10.96.0.2", "grpc=50051>50051").Service
			s.Policy = xds.PolicyRoundRobin
		}),
		clusterIP("bank/pricing", "10.96.0.9", "grpc=50051>50051"),
		clusterIP("web", "None", "grpc=80>50051"),
		clusterIP("named", "None", "grpc=80>0"),
		slice("web-a", "web", grpc, "10.0.0.10 ready pod=web-0#w0 host=web-0", "10.0.0.11 not pod=web-1#w1 host=web-1", "10.0.0.12 ready pod=x#x"),
		slice("named-a", "named", []string{"grpc=7000"}, "10.0.0.20 ready"),
		pod("web-0#w0", "10.0.0.10"), pod("web-1#w1", "10.0.0.11"), pod("x#x", "10.0.0.12,fd00::12"),
		pod("daemon#d", "192.168.0.1", "hostnet"),
		svc("mail", func(s *Service) { s.ExternalName = "smtp.example.com" }),
		svc("alias", func(s *Service) { s.ExternalName = "pricing.bank.svc.cluster.local" }),
		svc("loop", func(s *Service) { s.ExternalName = "loop.shop.svc.cluster.local" }),
		// A Service named like a StatefulSet's pod, in a namespace named like its Service.
		clusterIP("web/web-1", "10.96.0.7", "grpc=50051>50051"),
		clusterIP("web/web-7", "10.96.0.8", "grpc=50051>50051"),
	)
	for name, want := range map[string]string{
		"address/10.96.0.1:50051":   "service shop/pricing:50051",
		"address/[fd00::1]:50051":   "service shop/pricing:50051",
		"address/10.96.0.1:8080":    "service shop/pricing:8080",
		"address/10.96.0.1:8081":    "unknown",
		"address/10.96.0.2:50051":   "service shop/stock:50051 round_robin",
		"address/10.0.0.10:50051":   "pod 10.0.0.10:50051 shop/web-0",
		"address/10.0.0.10:1":       "pod 10.0.0.10:1 shop/web-0",
		"address/[fd00::12]:50051":  "pod [fd00::12]:50051 shop/x",
		"address/192.168.0.1:50051": "unknown", // the node's, not the pod's
		"address/192.0.2.1:50051":   "unknown",

		"name/shop/pricing:50051":                                 "service shop/pricing:50051",
		"name/bank/pricing:50051":                                 "service bank/pricing:50051",
		"name/shop/pricing.bank:50051":                            "service bank/pricing:50051",
		"name/shop/pricing.bank.svc:50051":                        "service bank/pricing:50051",
		"name/shop/pricing.bank.svc.cluster.local:50051":          "service bank/pricing:50051",
		"name/shop/pricing.bank.svc.cluster.example:50051":        "unknown",
		"name/shop/pricing:1":                                     "unknown",
		"name/other/pricing:50051":                                "unknown",
		"name/shop/10.96.0.1:50051":                               "service shop/pricing:50051",
		"name/shop/10.0.0.10:50051":                               "pod 10.0.0.10:50051 shop/web-0",
		"name/shop/[fd00::12]:50051":                              "pod [fd00::12]:50051 shop/x",
		"name/shop/web:50051":                                     "service shop/web:50051 headless",
		"name/shop/web:80":                                        "service shop/web:80 headless",
		"name/shop/web:81":                                        "unknown",
		"name/shop/named:7000":                                    "service shop/named:7000 headless",
		"name/shop/named:7001":                                    "unknown",
		"name/shop/web-0.web:50051":                               "pod 10.0.0.10:50051 shop/web-0",
		"name/shop/web-1.web:50051":                               "pod 10.0.0.11:50051 shop/web-1", // before the Service web-1 of namespace web
		"name/shop/web-7.web:50051":                               "service web/web-7:50051",
		"name/bank/web-0.web.shop:50051":                          "pod 10.0.0.10:50051 shop/web-0",
		"name/bank/web-0.web.shop.svc:50051":                      "pod 10.0.0.10:50051 shop/web-0",
		"name/bank/web-0.web.shop.svc.cluster.local:50051":        "pod 10.0.0.10:50051 shop/web-0",
		"name/shop/web-9.web:50051":                               "unknown",
		"name/shop/10-0-0-12.web:50051":                           "pod 10.0.0.12:50051 shop/x", // an endpoint without a hostname
		"name/shop/10-0-0-12.shop.pod:50051":                      "pod 10.0.0.12:50051 shop/x",
		"name/shop/10-0-0-12.bank.pod:50051":                      "unknown",
		"name/bank/fd00--12.shop.pod.cluster.local:50051":         "pod [fd00::12]:50051 shop/x",
		"name/shop/pricing-0.pricing:50051":                       "unknown", // not headless
		"name/shop/mail:25":                                       "external smtp.example.com",
		"name/shop/alias:50051":                                   "service bank/pricing:50051",
		"name/shop/loop:50051":                                    "external loop.shop.svc.cluster.local",
		"name/shop/www.example.com:443":                           "unknown",
		"name/shop/a.pricing.bank.svc.cluster.local:50051":        "unknown",
		"name/shop/svc:50051":                                     "unknown",
		"name/shop/_grpc._tcp.pricing.shop.svc.cluster.local:443": "unknown",
	} {
		if got := destination(t, s, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A name's topics must cover everything that can change its meaning.
func TestDestinationTopics(t *testing.T) {
	web := clusterIP("web", "None", "grpc=80>0")
	for _, tt := range []struct {
		name    string
		changes []Change // each must change what name means
		want    []string
	}{
		{
			"name/shop/pricing:50051",
			[]Change{clusterIP("pricing", "10.96.0.1", "grpc=50051>1"), svc("pricing", func(s *Service) { s.ExternalName = "x.example" }), gone(clusterIP("pricing", "None"))},
			[]string{"service shop/pricing:50051", "external x.example", "unknown"},
		},
		{
			"name/shop/web-0.web:50051",
			[]Change{
				clusterIP("web/web-0", "10.96.0.1", "grpc=50051>1"), // the second of the search list
				web,
				slice("a", "web", grpc, "10.0.0.1 ready pod=web-0#1 host=web-0"),
				slice("a", "web", grpc, "10.0.0.2 ready pod=web-0#2 host=web-0"),
				gone(slice("a", "web", nil)),
			},
			[]string{"service web/web-0:50051", "service web/web-0:50051", "pod 10.0.0.1:50051 shop/web-0", "pod 10.0.0.2:50051 shop/web-0", "service web/web-0:50051"},
		},
		{
			"name/shop/web:7000",
			[]Change{web, slice("a", "web", []string{"grpc=7000"}, "10.0.0.1 ready"), slice("a", "web", []string{"grpc=7001"}, "10.0.0.1 ready")},
			[]string{"unknown", "service shop/web:7000 headless", "unknown"},
		},
		{
			"name/shop/alias:50051",
			[]Change{
				svc("alias", func(s *Service) { s.ExternalName = "pricing.bank.svc.cluster.local" }),
				clusterIP("bank/pricing", "10.96.0.1", "grpc=50051>1"),
			},
			[]string{"external pricing.bank.svc.cluster.local", "service bank/pricing:50051"},
		},
		{
			"address/10.0.0.1:50051",
			[]Change{
				pod("a#1", "10.0.0.1"), pod("b#2", "10.0.0.1", "age=5"), gone(pod("b#2", "")),
				clusterIP("odd", "10.0.0.1", "grpc=50051>1"), gone(clusterIP("odd", "None")), gone(pod("a#1", "")),
			},
			[]string{
				"pod 10.0.0.1:50051 shop/a", "pod 10.0.0.1:50051 shop/b", "pod 10.0.0.1:50051 shop/a",
				"service shop/odd:50051", "pod 10.0.0.1:50051 shop/a", "unknown",
			},
		},
		{
			"name/shop/10-0-0-1.shop.pod:50051",
			[]Change{pod("a#1", "10.0.0.1"), gone(pod("a#1", ""))},
			[]string{"pod 10.0.0.1:50051 shop/a", "unknown"},
		},
	} {
		s := NewStore(Config{})
		n, err := xds.ParseDestinationName(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		_, topics := s.Destination(n)
		last := "unknown"
		for i, c := range tt.changes {
			s.Apply(c)
			delta := s.Drain()
			got := destination(t, s, tt.name)
			if got != tt.want[i] {
				t.Errorf("%s after change %d: %s, want %s", tt.name, i, got, tt.want[i])
			}
			touched := false
			for _, topic := range topics {
				if _, ok := delta.Topics[topic]; ok {
					touched = true
				}
			}
			if got != last && !touched {
				t.Errorf("%s: change %d made it %s, but touched none of its topics", tt.name, i, got)
			}
			last = got
			_, topics = s.Destination(n)
		}
	}
}
