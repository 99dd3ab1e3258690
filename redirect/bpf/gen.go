// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package bpf

// The compiler and its version are fixed (Debian 12's clang-14), so that generating again gives
// the same bytes; stripping removes DWARF, which would hold the path of the build.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf Evenkeel evenkeel.c -- -O2 -g -Wall -Wextra -Werror -mcpu=v3 -nostdinc
