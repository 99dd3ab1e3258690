// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTexts(t *testing.T) {
	many := warming
	many.Clients, many.Answered = 40, 25
	many.Missing = nil
	for i := range 10 {
		many.Missing = append(many.Missing, fmt.Sprintf("shop/cart-%d", i))
	}
	for _, tc := range []struct {
		kind  Kind
		until time.Duration
		steps []step
		want  string
	}{
		{Ready, 0, nil, "the data plane does not run yet"},
		{Ready, 0, all(serves(0)), "waiting for the first word of the control plane"},
		{Ready, sec, all(serves(0), says(0, "r1", notReady), lost(sec, "r1")), "the control plane is silent"},
		{Ready, sec, all(serves(0), says(0, "r1", notReady)), "waiting for the app's containers to be ready"},
		{Ready, sec, all(serves(0), says(0, "r1", unsettled)), "the control plane has just started and waits for its clients to come back"},
		{Ready, sec, all(serves(0), says(0, "r1", warming)), "1 of 3 clients connected; waiting for shop/b, shop/c"},
		{Ready, sec, all(serves(0), says(0, "r1", many)), "25 of 40 clients connected; waiting for shop/cart-0, shop/cart-1, shop/cart-2, shop/cart-3, shop/cart-4, shop/cart-5, shop/cart-6, shop/cart-7, shop/cart-8, shop/cart-9 and 5 more"},
		{Ready, sec, all(serves(0), says(0, "r1", Status{Settled: true, AppReady: true, Clients: 3, Answered: 1})), "1 of 3 clients connected; waiting for 2 clients"},
		{Ready, sec, all(serves(0), says(0, "r1", Status{Settled: true, AppReady: true})), "waiting for the control plane's word that the clients have it"},
		{Ready, sec, all(serves(0), says(sec, "r1", propagated)), "over after 0s"},
		{Ready, 20 * sec, all(serves(0), keeps(sec, 20*sec, "r1", warming)), "the bound ended it after 15s without shop/b, shop/c"},
		{Ready, 4 * sec, all(serves(0)), "over after 3s: the control plane is silent"},
		{Start, sec, all(serves(0), synced(0)), "waiting for the control plane's word about the pod"},
		{Start, sec, all(serves(0), synced(0), learned(0, Learned{Missing: []string{"shop/x:1 on shop/x-1"}}), says(0, "r1", notReady)), "waiting for shop/x:1 on shop/x-1"},
		{Start, sec, all(serves(0), synced(0), says(0, "r1", notReady)), "over after 0s"},
		{Drain, 0, nil, "the hook was not called"},
		{Drain, sec, all(hook(0)), "the control plane is silent"},
		{Drain, sec, all(hook(0), says(0, "r1", terminating(65*sec, ExposureExternal, true))), "drained; waiting for clients outside the mesh until 10s have passed"},
		{Drain, sec, all(hook(0), says(0, "r1", terminating(65*sec, ExposureService, false))), "1 of 2 clients have let go; waiting for shop/slow"},
		{Drain, 4 * sec, all(hook(0), says(0, "r1", terminating(65*sec, ExposureService, true))), "over after 3s"},
	} {
		_, m := play(t, defaults, tc.until, tc.steps)
		if got := m.Text(tc.kind, epoch.Add(tc.until)); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.kind, got, tc.want)
		}
	}
	latched := defaults
	latched.Ready = true
	if _, m := play(t, latched, 0, all(serves(0))); m.Text(Ready, epoch) != "it was over before this restart" {
		t.Error(m.Text(Ready, epoch))
	}
}

func TestView(t *testing.T) {
	_, m := play(t, defaults, 2*sec, all(serves(0), synced(0), says(0, "r2", unsettled), says(sec, "r1", warming), hook(sec), says(1500*ms, "r1", terminating(65*sec, ExposureExternal, false))))
	text, err := json.Marshal(m.View(epoch.Add(2 * sec)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"hold":"start","state":"over",`, `"reason":"answered"`,
		`{"hold":"ready","state":"held",`, `"waited":"2s"`,
		`{"hold":"drain","state":"held",`, `"missing":["shop/slow"]`,
		`{"name":"r1","counts":true,"settled":true,"app_ready":true,"propagated":false,"drained":false,"age":"500ms"},{"name":"r2"`,
		`"terminating":true,"deletion_grace":"1m5s","exposure":"external"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	idle, err := json.Marshal(New(defaults, epoch).View(epoch).Holds[Drain])
	if err != nil || string(idle) != `{"hold":"drain","state":"idle","text":"the hook was not called"}` {
		t.Errorf("%s %v", idle, err)
	}
}
