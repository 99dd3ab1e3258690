// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"time"
)

// again is the pause before the sidecar is asked again: its supervisor needs
// about as long for the next worker.
const again = 100 * time.Millisecond

var (
	errCut  = errors.New("the sidecar's answer was cut off")
	errLate = errors.New("the sidecar did not answer in time")
)

// ask asks the sidecar and returns nil when the pod is drained.
func ask(cfg *config, now time.Time) error {
	end := now.Add(cfg.timeout)
	for {
		err := askOnce(cfg, end)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, errCut):
			return err
		}
		if time.Until(end) < again {
			return err
		}
		time.Sleep(again)
	}
}

// askOnce is one request on one connection. Plain system calls: package net
// would be half of the program.
func askOnce(cfg *config, end time.Time) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("socket", err)
	}
	defer func() { _ = syscall.Close(fd) }()
	// socket(7): SO_SNDTIMEO bounds connect(2) as well.
	if err := limit(fd, syscall.SO_SNDTIMEO, end); err != nil {
		return err
	}
	to := &syscall.SockaddrInet4{Port: int(cfg.port), Addr: [4]byte{127, 0, 0, 1}}
	switch err := syscall.Connect(fd, to); {
	case errors.Is(err, syscall.EINTR):
		// By a signal of Go's runtime: signal(7), a socket call with a timeout is
		// never restarted. Nothing was asked yet, so the next socket will do.
		return err
	case err != nil:
		return failed("connect to the sidecar", err)
	}
	request := "GET /hold HTTP/1.1\r\nHost: localhost\r\nEvenkeel-Hold: " + cfg.secret + "\r\nConnection: close\r\n\r\n"
	for sent := 0; sent < len(request); {
		n, err := syscall.Write(fd, []byte(request[sent:]))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return errCut
		}
		sent += max(n, 0)
	}
	answer, err := read(fd, end)
	if err != nil {
		return err
	}
	return judge(answer)
}

// read takes the answer to its end, or as much of it as there is room for.
func read(fd int, end time.Time) ([]byte, error) {
	answer := make([]byte, 0, 4<<10)
	for len(answer) < cap(answer) {
		if err := limit(fd, syscall.SO_RCVTIMEO, end); err != nil {
			return nil, err
		}
		n, err := syscall.Read(fd, answer[len(answer):cap(answer)])
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return nil, errLate
		case err != nil:
			return nil, errCut
		case n == 0 && !bytes.Contains(answer, []byte("\r\n\r\n")):
			return nil, errCut
		case n == 0:
			return answer, nil
		default:
			answer = answer[:len(answer)+n]
		}
	}
	return answer, nil
}

// judge reads the status: "HTTP/1.1 200 OK" (RFC 9112, section 4).
func judge(answer []byte) error {
	head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	line, _, _ := strings.Cut(head, "\r\n")
	version, status, _ := strings.Cut(line, " ")
	switch {
	case !strings.HasPrefix(version, "HTTP/1."):
		return errors.New("what answers is not the sidecar")
	case strings.HasPrefix(status, "200"):
		return nil
	default:
		return errors.New("the sidecar answered " + status + ": " + strings.TrimSpace(body))
	}
}

// limit bounds the system calls on a socket.
func limit(fd, option int, end time.Time) error {
	left := time.Until(end)
	if left < time.Millisecond {
		return errLate // zero would mean no bound
	}
	tv := syscall.NsecToTimeval(left.Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &tv); err != nil {
		return failed("set a timeout", err)
	}
	return nil
}

func failed(what string, err error) error { return errors.New(what + ": " + err.Error()) }
