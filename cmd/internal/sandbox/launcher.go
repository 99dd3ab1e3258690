// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"runtime"
)

// launcher starts processes from one thread that lives as long as the scope.
//
// prctl(2), PR_SET_PDEATHSIG: "the 'parent' in this case is considered to be the thread that created this process. In other words, the
// signal will be sent when that thread terminates (via, for example, pthread_exit(3)), rather than after all of the threads in
// the parent process terminate." A goroutine may start a child on a thread that the runtime ends later; the child would die with it.
type launcher struct {
	calls chan func()
	done  chan struct{}
}

func newLauncher() *launcher {
	l := &launcher{calls: make(chan func()), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *launcher) run() {
	defer close(l.done)
	runtime.LockOSThread()
	// Unlocked again at the end: an ended goroutine that is locked takes its thread along, and with it, by the rule above, the
	// children that are still meant to end in their own way.
	defer runtime.UnlockOSThread()
	for call := range l.calls {
		call()
	}
}

// do runs start on the launcher's thread.
func (l *launcher) do(start func() error) error {
	result := make(chan error, 1)
	l.calls <- func() { result <- start() }
	return <-result
}

func (l *launcher) close() {
	close(l.calls)
	<-l.done
}
