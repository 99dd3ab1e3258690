// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"errors"
	"strings"
	"syscall"
)

// defaultPath is what exec(3) searches without a PATH.
const defaultPath = "/bin:/usr/bin"

// become turns this process into argv. It returns only when that failed, with
// the exit status of a shell.
//
// exec(3): a name without a slash is looked for in PATH; "If permission is
// denied for a file (the attempted execve(2) failed with the error EACCES),
// these functions will continue searching the rest of the search path. If no
// other file is found, however, they will return with errno set to EACCES."
func become(argv, env []string) (status int, err error) {
	err = syscall.ENOENT
	for _, file := range candidates(argv[0], env) {
		e := syscall.Exec(file, argv, env)
		switch {
		case errors.Is(e, syscall.ENOENT), errors.Is(e, syscall.ENOTDIR):
		case errors.Is(e, syscall.EACCES):
			err = e
		default:
			return statusNoExec, e
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return statusNotFound, err
	}
	return statusNoExec, err
}

func candidates(name string, env []string) []string {
	if name == "" {
		return nil
	}
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path := defaultPath
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
			break
		}
	}
	var files []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "." // exec(3): a zero-length prefix is the current directory
		}
		files = append(files, dir+"/"+name)
	}
	return files
}
