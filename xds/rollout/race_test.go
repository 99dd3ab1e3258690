// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

//go:build race

package rollout

// raced: the race detector makes everything ten times slower, and finds nothing
// where there is one goroutine.
const raced = true
