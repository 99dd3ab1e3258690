// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// rereadTLS is TLS whose roots are read from their file at each handshake: the
// ConfigMap changes in place when the control plane rotates its root.
type rereadTLS struct {
	credentials.TransportCredentials // of an empty config: Info, protocol names
	caFile, serverName               string
}

func newTLS(cfg *Config) credentials.TransportCredentials {
	return &rereadTLS{
		TransportCredentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}),
		caFile:               cfg.CAFile,
		serverName:           cfg.ServerName,
	}
}

// ClientHandshake is called once for each connection.
func (r *rereadTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	pem, err := os.ReadFile(r.caFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("read the CA: %s holds no PEM certificate", r.caFile)
	}
	fresh := credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
	// grpc verifies the name that it calls the authority, whatever ServerName says.
	return fresh.ClientHandshake(ctx, r.serverName, raw)
}

// Clone is part of credentials.TransportCredentials.
func (r *rereadTLS) Clone() credentials.TransportCredentials {
	clone := *r
	clone.TransportCredentials = r.TransportCredentials.Clone()
	return &clone
}
