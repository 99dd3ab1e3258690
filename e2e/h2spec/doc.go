// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package h2spec holds the sidecar against h2spec (https://github.com/summerwind/h2spec), a judge of HTTP/2 that was not written
// here, on both of its sides:
//
//	h2spec ──frames──▶ sidecar ───▶ backend     TestServer: the app's side, every case, also the strict ones
//	client ───▶ sidecar ◀──frames── h2specd     TestClient: the server's side, a case at each port
//
//	go test ./e2e/h2spec
//
// It is black box: the real control plane on a folder of manifests, the real sidecar, no package of the product. It needs neither
// root nor the redirect. A connection that comes straight to the sidecar is routed by :authority, and h2spec sends its target's:
// so the Service is called "localhost", in the sidecar's own namespace, and its port is the sidecar's.
//
// The backend of TestServer is net/http's, and counts its requests: a sidecar that answered every case by itself would pass for
// conforming otherwise.
//
// # Failures
//
//	a case fails               the test named after it fails; what h2spec expected and saw is in its output
//	the module cannot be had   the go command's own message
//	an argued case passes      that fails too: the argument (see argued) is out of date
//
// # Limitations
//
// h2spec judges by RFC 7540, which RFC 9113 obsoletes. Where the two differ the newer one holds; argued quotes it.
//
// h2specd takes each connection that the sidecar makes for one more run of the case, also when the sidecar only keeps a connection
// warm after the case is over. Its final summary counts those too, so the verdict is taken from the line that it prints for the case
// while the client runs.
package h2spec
