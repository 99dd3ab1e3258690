// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import "os"

// LifelineFD is the descriptor of the lifeline in the children of the harness:
// the reading end of a pipe that the harness holds open. When it reads EOF, the
// harness is gone, whatever ended it, and the node ends itself.
const LifelineFD = 3

// Detach is what the harness writes into the lifeline to let the node live on
// without it.
const Detach = 'd'

// watchLifeline calls gone when the harness ends without having detached.
func watchLifeline(gone func()) {
	f := os.NewFile(LifelineFD, "lifeline")
	go func() {
		defer f.Close()
		b := make([]byte, 1)
		if n, _ := f.Read(b); n == 1 && b[0] == Detach {
			return
		}
		gone()
	}()
}
