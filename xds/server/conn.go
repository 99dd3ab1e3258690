// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// connCreds remembers each connection in its AuthInfo. grpc has no way to close
// the connection of a stream whose client no longer reads: ending the RPC only
// queues trailers behind the data that is not read.
type connCreds struct {
	credentials.TransportCredentials
}

type connInfo struct {
	credentials.AuthInfo
	conn net.Conn
}

// rememberConn wraps creds; nil is plaintext.
func rememberConn(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return connCreds{creds}
}

func (c connCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return conn, connInfo{info, raw}, nil
}

func (c connCreds) Clone() credentials.TransportCredentials {
	return connCreds{c.TransportCredentials.Clone()}
}

// closeConn closes the connection that the RPC of ctx came on.
func closeConn(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	if info, ok := p.AuthInfo.(connInfo); ok {
		_ = info.conn.Close() // what is left to do with it is to forget it
	}
}
