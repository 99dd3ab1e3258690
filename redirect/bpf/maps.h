/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
#ifndef EVENKEEL_MAPS_H
#define EVENKEEL_MAPS_H

#include "evenkeel.h"

/* What every program returns: none of them ever refuses a call. */
#define GO_ON 1

/* What is remembered of a socket, for as long as it lives. */
enum evk_kind {
	EVK_CLIENT_REDIRECTED = 1, /* dst: where the app meant to connect */
	EVK_CLIENT_DIRECT,	   /* dst: the same; slot: where it is counted + 1, 0: not yet */
	EVK_ACCEPTED,		   /* dst: where the app at the other end meant to connect */
	EVK_PROBE,		   /* seen: bit per hook that ran for this socket */
};

struct evk_socket {
	struct evk_addr dst;
	__u32 kind;
	__u32 slot;
	__u32 seen;
};

/*
 * The client's side of a redirected connection, from its ACTIVE_ESTABLISHED to the listener's
 * PASSIVE_ESTABLISHED, which on loopback follows within microseconds. The network namespace is
 * part of the key because a pod may hold others (kind, docker in docker) where the same
 * loopback address and port exist again.
 */
struct evk_pending_key {
	__u64 netns;
	struct evk_addr src;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, __u32);
	__type(value, struct evk_config);
} evk_config SEC(".maps");

/*
 * The redirected destination ports; evk_config.ports only tells them. A hash and not that array:
 * with CAP_BPF but not CAP_PERFMON the verifier allows no variable offset into a map's value in
 * a loop ("pointer arithmetic with it prohibited for !root"), and it is quicker, too.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVK_MAX_PORTS * 2); /* old and new ones, while they are changed */
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, __u16);
	__type(value, __u8);
} evk_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct evk_state);
} evk_state SEC(".maps");

/* Cgroup id of the sidecar by network namespace cookie; see record_sidecar(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u64);
} evk_sidecars SEC(".maps");

/* Dies with the socket: no LRU that could evict a live connection, nothing to clean up. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __s32);
	__type(value, struct evk_socket);
} evk_sockets SEC(".maps");

/*
 * Bounded by the connections whose client is established and whose server side is not, and
 * those by the listener's SYN queue (net.core.somaxconn, 4096 by default).
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_pending_key);
	__type(value, struct evk_addr);
} evk_pending SEC(".maps");

/*
 * Direct connections by original destination: an index from destination to slot, and the slots
 * as an array, so that getsockopt can hand them out one by one. A slot is never taken back (its
 * total is a counter of a metric); destinations beyond the last slot share slot 0.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EVK_DIRECT_SLOTS - 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct evk_addr);
	__type(value, __u32);
} evk_direct_ix SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EVK_DIRECT_SLOTS);
	__type(key, __u32);
	__type(value, struct evk_direct);
} evk_direct SEC(".maps");

static __always_inline struct evk_config *enabled_config(void)
{
	__u32 zero = 0;
	struct evk_config *cfg = bpf_map_lookup_elem(&evk_config, &zero);

	return cfg && cfg->enabled ? cfg : 0;
}

static __always_inline struct evk_state *shared_state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&evk_state, &zero);
}

static __always_inline struct evk_socket *socket_of(void *sk)
{
	return bpf_sk_storage_get(&evk_sockets, sk, 0, 0);
}

#define MAPPED_PREFIX bpf_htonl(0x0000ffff)
#define LOOPBACK4     bpf_htonl(0x7f000001)
#define LOOPBACK6_LOW bpf_htonl(0x00000001)

static __always_inline int is_mapped(const struct evk_addr *a)
{
	return a->addr[0] == 0 && a->addr[1] == 0 && a->addr[2] == MAPPED_PREFIX;
}

static __always_inline void set_addr4(struct evk_addr *a, __be32 ip, __u16 port)
{
	a->addr[0] = 0;
	a->addr[1] = 0;
	a->addr[2] = MAPPED_PREFIX;
	a->addr[3] = ip;
	a->port = port;
	a->pad = 0;
}

#endif
