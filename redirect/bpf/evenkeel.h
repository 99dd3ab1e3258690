/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
/*
 * The contract between the programs, the library `redirect` (through the generated Go types)
 * and `redirect/origdst` (which mirrors what getsockopt returns by hand, since it may import no
 * eBPF library; redirect's tests compare the two).
 *
 * Every change of a map's layout or of what a getsockopt returns must raise EVK_ABI: a new
 * version of the library takes over the maps, and so the live connections, of an attached copy
 * only when both have the same number.
 */
#ifndef EVENKEEL_H
#define EVENKEEL_H

#include "include/helpers.h"

#define EVK_ABI		 1
#define EVK_MAGIC	 0x4c4b5645 /* "EVKL" in memory */
#define EVK_MAX_PORTS	 64
#define EVK_HOOKS	 8
#define EVK_DIRECT_SLOTS 512

/*
 * Our own getsockopt level. No protocol of the kernel has it, so without our program every
 * call ends with ENOPROTOOPT or EOPNOTSUPP: an answer is the proof that the redirect is there.
 */
#define EVK_LEVEL	0x45564b4c
#define EVK_OPT_INFO	1      /* struct evk_info */
#define EVK_OPT_ORIGDST 2      /* struct evk_addr, for an accepted and redirected socket */
#define EVK_OPT_PROBE	3      /* __u32: arms the socket, then tells which programs saw it */
#define EVK_OPT_DIRECT	0x1000 /* + slot: struct evk_direct */

/* Bits of EVK_OPT_PROBE and indexes into prog_ids. */
enum evk_hook {
	EVK_CONNECT4,
	EVK_CONNECT6,
	EVK_GETPEERNAME4,
	EVK_GETPEERNAME6,
	EVK_POST_BIND4,
	EVK_POST_BIND6,
	EVK_SOCKOPS,
	EVK_GETSOCKOPT,
};

/* Always in IPv6 form, IPv4 as ::ffff:a.b.c.d: one key for both families and the mapped form. */
struct evk_addr {
	__be32 addr[4];
	__u16 port; /* host byte order */
	__u16 pad;
};

/* Written by the library, read by the programs. */
struct evk_config {
	__u32 magic;
	__u16 abi;
	__u16 listener_port;
	/*
	 * 0 until all programs are attached. So a copy whose attaching was cut short does
	 * nothing, for ever, and cannot disturb the copy that the next attempt attaches.
	 */
	__u32 enabled;
	__u32 n_ports;
	/* Late attach: the sidecar's cgroup, in whatever network namespace. 0: only post_bind. */
	__u64 sidecar_cgroup;
	__u32 prog_ids[EVK_HOOKS];
	__u16 ports[EVK_MAX_PORTS];
};

/* Written by the programs. */
struct evk_state {
	__u64 redirected;   /* connects rewritten to the listener */
	__u64 direct;	    /* connections established past the sidecar, because it was away */
	__u64 lost;	    /* original destinations that could not be kept: out of memory */
	__u32 direct_slots; /* slots of evk_direct in use, slot 0 (all others) included */
	__u32 recorded;	    /* 1: a sidecar's bind was seen, or its cgroup was given */
};

struct evk_direct {
	struct evk_addr dst;
	__u32 used; /* 1: dst is written */
	__s64 open;
	__u64 total;
};

/* What EVK_OPT_INFO returns. */
struct evk_info {
	struct evk_config config;
	struct evk_state state;
	__u64 netns;	     /* cookie of the calling socket's network namespace */
	__u64 sidecar;	     /* cgroup id of the sidecar known for that namespace, or 0 */
	__u64 caller_cgroup; /* cgroup id of the calling process */
};

#endif
