// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package interop runs the gRPC project's interop clients through Evenkeel: every test case that needs no credentials, under `evenkeel
// sandbox` with its redirect, against interop servers.
//
//	go test ./e2e/interop
//	go test ./e2e/interop -run TestLanguages -timeout 1h -soak 10000
//
//	TestInterop     grpc-go's client, each case in a sandbox of its own, over three of grpc-go's servers
//	TestLanguages   clients of Java (netty: IPv4-mapped sockets), Python (grpcio) and Node (@grpc/grpc-js) over three of grpc-go's
//	                servers; grpc-go's client on a server of each; compression and messages of 10 MiB on Java's server
//
// Java's programs are the gRPC project's own (io.grpc:grpc-interop-testing). Python's and Node's are not published: python/ and node/
// have ours, over the messages in proto/, on the released libraries.
//
// The cases are described in https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md. A client that passes has
// seen compression flags, trailers, status messages, deadlines, cancellation, large messages and both kinds of metadata arrive as
// they were sent. That the RPCs did pass the sidecar, and did not reach a server by another way, is read from the sandbox's report.
//
// It is black box: it imports no package of the product. What comes from others is installed once, by version, into the user's cache
// directory ($XDG_CACHE_HOME/evenkeel/interop); evenkeel is built from this tree.
//
// # Failures
//
//	not root                       the tests fail and say so: skipping would prove nothing
//	a registry is away             the installer's own message
//	a toolchain is missing         it is installed from Debian
//	a case hangs                   it is killed after caseTimeout; its output is in the test's
//
// # Limitations
//
// Left out are the cases that need Google's credentials or infrastructure: compute_engine_creds, service_account_creds,
// jwt_token_creds, per_rpc_creds, oauth2_auth_token, google_default_credentials, compute_engine_channel_credentials.
//
// So is pick_first_unary: it wants the server to tell its id, which grpc-go's does not do, so that it fails without Evenkeel as well.
//
// orca_oob reads load reports on a stream of its own and expects them to be those of the server that its RPCs went to. That is about
// clients that balance by themselves, so it runs against a service with one server.
package interop
