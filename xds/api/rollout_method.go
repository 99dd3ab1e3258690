// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package api

// Names of the Rollout service of rollout.proto. It has one method, a stream in
// both directions, so both sides describe it by hand (grpc.ServiceDesc,
// grpc.StreamDesc) instead of generating code.
const (
	// RolloutService is the service's full name.
	RolloutService = "evenkeel.v1.Rollout"
	// RolloutTrack is the method's full name: rpc Track(stream Report) returns (stream PodStatus).
	RolloutTrack = "/evenkeel.v1.Rollout/Track"
)
