// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func hooks(t *testing.T, format string, args ...any) map[string]hook {
	t.Helper()
	h, err := parseHooks(fmt.Sprintf(format, args...))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// app is a container's own server.
func app(t *testing.T, start func(*httptest.Server), h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	start(s)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func TestHTTPGetHook(t *testing.T) {
	var got *http.Request
	echo := func(w http.ResponseWriter, r *http.Request) {
		got = r
		switch r.URL.Path {
		case "/broken":
			http.Error(w, "still busy\n", http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/bye", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}
	}
	plain, secure := app(t, (*httptest.Server).Start, echo), app(t, (*httptest.Server).StartTLS, echo)
	perform := func(action string) (string, error) {
		t.Helper()
		h := hooks(t, `{"app":{"httpGet":%s}}`, action)["app"]
		if err := h.validate("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		return h.perform(t.Context(), "127.0.0.1")
	}
	said, err := perform(`{"scheme":"HTTP","host":"","port":` + plain + `,"path":"/bye?a=b","headers":[{"name":"X","value":"y"},{"name":"X","value":"z"},{"name":"host","value":"app.example"}]}`)
	if err != nil || said != "GET http://127.0.0.1:"+plain+"/bye?a=b: 200 OK" {
		t.Errorf("%q %v", said, err)
	}
	if got.Host != "app.example" || got.URL.RawQuery != "a=b" || strings.Join(got.Header.Values("X"), ",") != "y,z" || got.Header.Get("Accept") != "*/*" {
		t.Errorf("%s %s %v", got.Host, got.URL, got.Header)
	}
	// The certificate is for nobody that we know.
	if said, err := perform(`{"scheme":"HTTPS","host":"localhost","port":` + secure + `,"path":"bye"}`); err != nil || !strings.Contains(said, "/bye: 200") {
		t.Errorf("%q %v", said, err)
	}
	if said, err := perform(`{"port":` + plain + `,"path":"/moved"}`); err != nil || got.URL.Path != "/bye" {
		t.Errorf("%q %v, at %s", said, err, got.URL)
	}
	// To another host it does not follow, and that is no failure.
	if said, err := perform(`{"port":` + plain + `,"path":"/away"}`); err != nil || !strings.Contains(said, "302 Found") {
		t.Errorf("%q %v", said, err)
	}
	if _, err := perform(`{"port":` + plain + `,"path":"/broken"}`); err == nil || !strings.HasSuffix(err.Error(), "503 Service Unavailable: still busy") {
		t.Errorf("%v", err)
	}
	if _, err := perform(`{"port":1,"path":"/"}`); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

func TestSleepHook(t *testing.T) {
	h := hooks(t, `{"b":{"sleepSeconds":1}}`)["b"]
	begin := time.Now()
	if said, err := h.perform(t.Context(), ""); err != nil || said != "slept 1s" || time.Since(begin) < time.Second {
		t.Errorf("%q %v after %s", said, err, time.Since(begin))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := h.perform(ctx, ""); err == nil {
		t.Error("a sleep that is cut is no failure")
	}
}

func TestHooksRunAfterTheDrain(t *testing.T) {
	called := make(chan time.Time, 10)
	status := http.StatusOK
	port := app(t, (*httptest.Server).Start, func(w http.ResponseWriter, _ *http.Request) {
		called <- time.Now()
		http.Error(w, "as you wish", status)
	})
	b := newPodBench(t, func(c *Config) {
		c.Hooks = hooks(t, `{"app":{"httpGet":{"port":%s,"path":"/bye"}},"dead":{"httpGet":{"port":1}},"nap":{"sleepSeconds":1}}`, port)
	})
	b.up()
	b.say(gone(false))
	type answer struct {
		code int
		body string
		at   time.Time
	}
	call := func(name string) chan answer {
		c := make(chan answer, 1)
		go func() {
			code, body := b.call(t.Context(), secret, "?container="+name)
			c <- answer{code, body, time.Now()}
		}()
		return c
	}
	own, dead, nap, none := call("app"), call("dead"), call("nap"), call("other")
	time.Sleep(200 * time.Millisecond)
	if len(called) > 0 {
		t.Error("the app was told before the drain was over")
	}
	released := time.Now()
	b.say(gone(true))
	if a := <-own; a.code != 200 || !strings.HasSuffix(a.body, "; GET http://127.0.0.1:"+port+"/bye: 200 OK") || len(called) != 1 {
		t.Errorf("%+v", a)
	}
	if a := <-dead; a.code != 500 || !strings.Contains(a.body, "connection refused") {
		t.Errorf("%+v", a)
	}
	if a := <-none; a.code != 200 || strings.Contains(a.body, ";") {
		t.Errorf("%+v", a)
	}
	if a := <-nap; a.code != 200 || !strings.HasSuffix(a.body, "; slept 1s") || a.at.Sub(released) < time.Second {
		t.Errorf("%+v", a)
	}
	status = http.StatusBadGateway
	if a := <-call("app"); a.code != 500 || !strings.Contains(a.body, "502 Bad Gateway: as you wish") {
		t.Errorf("%+v", a)
	}
}
