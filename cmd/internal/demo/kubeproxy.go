// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
)

// kubeProxy stands in for kube-proxy: it listens on the ClusterIP and gives each TCP connection to a ready server, picked at
// random, for as long as the connection lasts. (kube-proxy does the same with packets: "by default, kube-proxy in iptables mode
// chooses a backend at random", https://kubernetes.io/docs/reference/networking/virtual-ips/.)
type kubeProxy struct {
	ctx      context.Context // ends the dials
	logger   *slog.Logger
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	ready   []netip.AddrPort
	open    map[net.Conn]struct{}
	taken   int // connections accepted so far
	stopped bool
}

func startKubeProxy(ctx context.Context, clusterIP netip.AddrPort, logger *slog.Logger) (*kubeProxy, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", clusterIP.String())
	if err != nil {
		return nil, err
	}
	p := &kubeProxy{ctx: ctx, logger: logger, listener: ln, open: make(map[net.Conn]struct{})}
	p.wg.Go(p.accept)
	return p, nil
}

// setReady replaces the servers that new connections go to.
func (p *kubeProxy) setReady(ready []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
}

// connections is the number of connections that went this way.
func (p *kubeProxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

func (p *kubeProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.logger.Error("stand-in for kube-proxy: accept", "error", err)
			}
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *kubeProxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	if p.stopped || len(p.ready) == 0 {
		p.mu.Unlock()
		return
	}
	p.taken++
	to := p.ready[rand.IntN(len(p.ready))]
	p.mu.Unlock()
	var dialer net.Dialer
	server, err := dialer.DialContext(p.ctx, "tcp", to.String())
	if err != nil {
		return
	}
	defer server.Close()
	if !p.add(client, server) {
		return
	}
	defer p.remove(client, server)
	// Whichever side ends first ends both: gRPC closes connections whole.
	one := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		p.wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			one <- struct{}{}
		})
	}
	<-one
}

func (p *kubeProxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.open[c] = struct{}{}
	}
	return !p.stopped
}

func (p *kubeProxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.open, c)
	}
}

// stop ends every connection and waits for their goroutines.
func (p *kubeProxy) stop() {
	p.listener.Close()
	p.mu.Lock()
	p.stopped = true
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
