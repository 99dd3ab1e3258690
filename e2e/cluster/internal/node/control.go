// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Request is an order to a node; one per connection on its control socket.
type Request struct {
	// Daemon is one of the names in daemons.go.
	Daemon string
	// Verb is "start", "stop" (SIGTERM; it stays stopped), "signal" or "pid".
	Verb string
	// Signal is the number for "signal".
	Signal int
}

// Response is the node's answer.
type Response struct {
	// PID is the daemon's, in the node's PID namespace; 0 if it is stopped.
	PID int
	// Error is empty on success.
	Error string
}

// controlTimeout bounds one order, both its transfer and its execution.
const controlTimeout = 20 * time.Second

// Order sends req to the node whose control socket is socket.
func Order(socket string, req Request) (pid int, err error) {
	conn, err := net.DialTimeout("unix", socket, controlTimeout)
	if err != nil {
		return 0, fmt.Errorf("control socket of the node: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return 0, err
	}
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return 0, fmt.Errorf("order %s %s: %w", req.Verb, req.Daemon, err)
	}
	var res Response
	if err := json.NewDecoder(conn).Decode(&res); err != nil {
		return 0, fmt.Errorf("order %s %s: no answer: %w", req.Verb, req.Daemon, err)
	}
	if res.Error != "" {
		return 0, fmt.Errorf("order %s %s: %s", req.Verb, req.Daemon, res.Error)
	}
	return res.PID, nil
}

// registry has the daemons that were started so far.
type registry struct {
	mu      sync.Mutex
	daemons map[string]*daemon
}

func (r *registry) add(d *daemon) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.daemons[d.name] = d
}

func (r *registry) get(name string) (*daemon, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.daemons[name]; ok {
		return d, nil
	}
	var names []string
	for n := range r.daemons {
		names = append(names, n)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("no daemon %q on this node: it has %s", name, strings.Join(names, ", "))
}

// serveControl answers orders until the node ends.
func serveControl(socket string, r *registry, log *slog.Logger) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				log.Error("control socket", "error", err)
				return
			}
			go answer(conn, r)
		}
	}()
	return nil
}

func answer(conn net.Conn, r *registry) {
	defer conn.Close()
	// If the other side is gone, there is nobody to tell.
	_ = conn.SetDeadline(time.Now().Add(controlTimeout))
	var req Request
	if err := json.NewDecoder(io.LimitReader(conn, 1<<16)).Decode(&req); err != nil {
		_ = json.NewEncoder(conn).Encode(Response{Error: "malformed order: " + err.Error()})
		return
	}
	_ = json.NewEncoder(conn).Encode(r.carryOut(req))
}

func (r *registry) carryOut(req Request) Response {
	d, err := r.get(req.Daemon)
	if err != nil {
		return Response{Error: err.Error()}
	}
	reply := make(chan orderReply, 1)
	t := time.NewTimer(controlTimeout)
	defer t.Stop()
	select {
	case d.orders <- order{verb: req.Verb, signal: unix.Signal(req.Signal), reply: reply}:
	case <-t.C:
		return Response{Error: "the daemon's supervisor does not answer"}
	}
	res := <-reply
	if res.err != nil {
		return Response{Error: res.err.Error()}
	}
	return Response{PID: res.pid}
}
