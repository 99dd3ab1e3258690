// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

//go:build !race

package rollout

const raced = false
