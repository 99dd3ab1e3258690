// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command hold runs a container's own preStop command once the pod is drained:
//
//	hold --port=15952 --secret=S --timeout=35s -- ARGV…
//
// It asks the pod's sidecar (GET /hold on loopback), which answers when nobody
// uses the pod any more, and then becomes ARGV (execve), so that the command has
// this process's id, environment, descriptors and end. It gets into containers
// that may hold nothing else, a shell least of all, so it is static and small: no
// net/http, no fmt.
//
// # Failures
//
// The container's command matters more than the hold: whatever goes wrong with
// the hold is one line on stderr, and then the command runs all the same.
//
//	nothing listens            at once: the sidecar is gone
//	refused (403), 5xx, junk   at once
//	no answer                  after --timeout
//	the answer is cut off      asked again within --timeout: the sidecar's worker was
//	                           restarted, and knows when the drain began
//	ARGV is not found          exit status 127, as a shell; not executable: 126
//	a signal                   its default action: the command is not run
package main

import (
	"errors"
	"os"
	"time"
)

// Exit statuses, as of a shell.
const (
	statusMisused  = 2
	statusNoExec   = 126
	statusNotFound = 127
)

var errNoCommand = errors.New("no command after --")

func main() { os.Exit(run(os.Args[1:])) }

// run returns only when there is no command to become.
func run(args []string) int {
	cfg, argv, err := parse(args)
	if err != nil {
		complain("", err)
	} else if err := ask(&cfg, time.Now()); err != nil {
		complain("the command runs without the sidecar's word: ", err)
	}
	if len(argv) == 0 {
		complain("", errNoCommand)
		return statusMisused
	}
	status, err := become(argv, os.Environ())
	complain(argv[0]+": ", err)
	return status
}

// complain is one line, whatever the sidecar said.
func complain(what string, err error) {
	text := []byte("evenkeel hold: " + what + err.Error())
	for i, c := range text {
		if c < ' ' {
			text[i] = ' '
		}
	}
	_, _ = os.Stderr.Write(append(text, '\n')) // nobody else to tell
}
