// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resource is one named resource, marshalled once. It is immutable.
type Resource struct {
	Name    string
	Version string
	// Wire is the encoded envoy.service.discovery.v3.Resource, ready to be put
	// into any number of responses.
	Wire []byte
}

// newResource marshals m. The version is a hash of the content: the same on
// every replica, and the same again when a change is taken back.
func newResource(name, typeURL string, m proto.Message) *Resource {
	det := proto.MarshalOptions{Deterministic: true}
	body, err := det.Marshal(m)
	if err != nil {
		// Only invalid UTF-8 fails to marshal; every string in m comes from JSON
		// or a parsed name.
		panic(fmt.Sprintf("marshal %s: %v", name, err))
	}
	sum := sha256.Sum256(body)
	r := &Resource{Name: name, Version: hex.EncodeToString(sum[:8])}
	r.Wire, err = det.Marshal(&discoverypb.Resource{
		Name:     name,
		Version:  r.Version,
		Resource: &anypb.Any{TypeUrl: typeURL, Value: body},
	})
	if err != nil {
		panic(fmt.Sprintf("marshal %s: %v", name, err))
	}
	return r
}
