// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package api is evenkeel.v1, the resource type of our own that the control
// plane sends to sidecars beside Envoy's LbEndpoint.
//
// The Go code is generated from destination.proto and committed, so that a
// build needs no protoc. `go generate ./xds/api` wants Debian's
// protobuf-compiler; the Go plugin is built from the version of
// google.golang.org/protobuf in go.mod, so both always match.
//
// Fields are only ever added. A reader ignores fields it does not know and
// treats a kind it does not know as malformed: it NACKs that resource by name
// and goes on with the others.
package api

//go:generate sh -c "d=${DOLLAR}(mktemp -d) && go build -o ${DOLLAR}d/ google.golang.org/protobuf/cmd/protoc-gen-go && PATH=${DOLLAR}d:${DOLLAR}PATH protoc --go_out=. --go_opt=paths=source_relative destination.proto rollout.proto; s=${DOLLAR}?; rm -r ${DOLLAR}d; exit ${DOLLAR}s"
