// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package bpf holds the redirect's eBPF programs: the C, the headers it needs, and what bpf2go
// made of them, committed so that building needs no clang. Package redirect is its only user.
//
//	evenkeel.h     the contract with Go: configuration, state, getsockopt answers
//	maps.h         what is remembered, where, and for how long
//	connect.h      whose connection, and where to
//	sockops.h      handing the original destination over; the count of direct connections
//	getsockopt.h   answering, without disturbing all other calls
//	evenkeel.c     the programs
//
// After a change of any of them: raise EVK_ABI when a layout changed, then `go generate`
// (clang-14, llvm-14 and clang-format-14 of Debian 12) and commit what it wrote.
package bpf
