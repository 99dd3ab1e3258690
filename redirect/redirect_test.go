// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"testing"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

func TestRedirectsAndTellsOriginal(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		if err := origdst.Verify(); err != nil {
			t.Fatal(err)
		}
		for _, to := range []struct{ name string }{{"v4"}} {
			_ = to
		}
		c := mustDial(t, service4())
		a := s.next()
		if a.err != nil || a.orig != service4() {
			t.Errorf("original destination: got %v, %v, want %v", a.orig, a.err, service4())
		}
		if got := c.RemoteAddr().String(); got != service4().String() {
			t.Errorf("getpeername: got %s", got)
		}
		c = mustDial(t, service6())
		a = s.next()
		if a.err != nil || a.orig != service6() {
			t.Errorf("original destination: got %v, %v, want %v", a.orig, a.err, service6())
		}
		if got := c.RemoteAddr().String(); got != service6().String() {
			t.Errorf("getpeername: got %s", got)
		}
	})
}
