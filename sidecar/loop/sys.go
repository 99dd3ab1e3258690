// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the hot path, raw: none of them can block, so the
// scheduler is not told (see doc.go).

func epollWait(epfd int, events []unix.EpollEvent) (int, unix.Errno) {
	// epoll_pwait, as arm64 has no epoll_wait.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return int(n), errno
}

// recvfrom and sendto rather than read and write: no trip through the VFS, and
// MSG_NOSIGNAL spares the process a SIGPIPE for each peer that has gone.

func recv(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func send(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Read reads once from a socket. Zero bytes without an error: the end.
func (f *FD) Read(p []byte) (int, unix.Errno) {
	for {
		if n, errno := recv(f.fd, p); errno != unix.EINTR {
			return n, errno
		}
	}
}

// Write writes once to a socket.
func (f *FD) Write(p []byte) (int, unix.Errno) {
	for {
		if n, errno := send(f.fd, p); errno != unix.EINTR {
			return n, errno
		}
	}
}

// ShutdownWrite sends the end of the stream; reading goes on.
func (f *FD) ShutdownWrite() error { return unix.Shutdown(f.fd, unix.SHUT_WR) }
