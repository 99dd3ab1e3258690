// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"syscall"
)

// Ports are picked below the range from which Linux takes the ports of outgoing connections (ip_local_port_range, 32768 on), so
// that only another listener can get in between the pick and the sidecar's bind.
const (
	firstPort = 16000
	lastPort  = 32000
)

// freePorts picks n ports on which nothing listens now, on 127.0.0.1 and, where there is IPv6, on ::1.
func freePorts(ctx context.Context, n int) ([]uint16, error) {
	var ports []uint16
	var last error
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := uint16(firstPort + rand.IntN(lastPort-firstPort))
		if slices.Contains(ports, port) {
			continue
		}
		if err := portFree(ctx, port); err != nil {
			last = err
			continue
		}
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no free port found from %d to %d on loopback: %w", firstPort, lastPort, last)
}

func portFree(ctx context.Context, port uint16) error {
	for _, host := range []string{"127.0.0.1", "::1"} {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if host == "::1" && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue // no IPv6 here
		}
		if err != nil {
			return err
		}
		ln.Close()
	}
	return nil
}
