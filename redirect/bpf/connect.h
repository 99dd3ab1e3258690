/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
/*
 * connect(): whose connection, and where to. The hooks run in the context of the calling
 * process with the socket locked, before the kernel routes, and only for a socket in state
 * TCP_CLOSE (net/ipv4/af_inet.c, __inet_stream_connect).
 */
#ifndef EVENKEEL_CONNECT_H
#define EVENKEEL_CONNECT_H

#include "maps.h"

enum verdict {
	LEAVE,	  /* as if we were not there */
	REDIRECT, /* rewrite to the listener; the original is stored */
};

/*
 * Loopback is the pod itself, and connect() to the unspecified address means loopback. A
 * link-local IPv6 address means nothing without its zone, which would be lost on the way.
 */
static __always_inline int never_redirected(const struct evk_addr *dst)
{
	if (is_mapped(dst)) {
		__u8 first = dst->addr[3] & 0xff;

		return first == 127 || dst->addr[3] == 0;
	}
	if (dst->addr[0] == 0 && dst->addr[1] == 0 && dst->addr[2] == 0)
		return dst->addr[3] == 0 || dst->addr[3] == LOOPBACK6_LOW;
	return (dst->addr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/*
 * Is the sidecar's listener there, now? Asked at each connect and never remembered: an answer
 * from a moment ago is how a mesh breaks its app (merbridge#244). Only a listener on exactly the
 * loopback address counts: an app's own server that happens to use the port on all addresses
 * must not be handed connections meant for elsewhere.
 */
static __always_inline int listening4(struct bpf_sock_addr *ctx, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int found;

	tuple.ipv4.daddr = LOOPBACK4;
	tuple.ipv4.dport = bpf_htons(port);
	sk = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	found = sk->state == BPF_TCP_LISTEN && sk->src_ip4 == LOOPBACK4;
	bpf_sk_release(sk);
	return found;
}

static __always_inline int listening6(struct bpf_sock_addr *ctx, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int found;

	tuple.ipv6.daddr[3] = LOOPBACK6_LOW;
	tuple.ipv6.dport = bpf_htons(port);
	sk = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	found = sk->state == BPF_TCP_LISTEN && sk->src_ip6[3] == LOOPBACK6_LOW;
	bpf_sk_release(sk);
	return found;
}

static __always_inline int on_connect(struct bpf_sock_addr *ctx, const struct evk_addr *dst,
				      enum evk_hook hook)
{
	struct evk_config *cfg = enabled_config();
	struct bpf_sock *sk = ctx->sk;
	struct evk_state *state;
	struct evk_socket *s;
	__u64 netns, sidecar = 0, *recorded;
	int listening;

	if (!cfg || !sk)
		return LEAVE;
	/* UDP, SCTP and the rest are not ours; an MPTCP socket connects by its TCP subflows. */
	if (ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP)
		return LEAVE;

	s = socket_of(sk);
	if (s) {
		if (s->kind == EVK_PROBE) {
			s->seen |= 1U << hook;
			return LEAVE;
		}
		/*
		 * A socket that connects again (the first attempt failed, or it was
		 * disconnected by AF_UNSPEC): what was stored belongs to the former connect.
		 */
		bpf_sk_storage_delete(&evk_sockets, sk);
	}

	if (!bpf_map_lookup_elem(&evk_ports, &dst->port) || never_redirected(dst))
		return LEAVE;
	/* SO_BINDTODEVICE: the app chose its way out, and it is not the loopback device. */
	if (sk->bound_dev_if)
		return LEAVE;

	state = shared_state();
	if (!state)
		return LEAVE;
	netns = bpf_get_netns_cookie(ctx);
	recorded = bpf_map_lookup_elem(&evk_sidecars, &netns);
	if (recorded)
		sidecar = *recorded;
	else if (cfg->sidecar_cgroup)
		sidecar = cfg->sidecar_cgroup;
	else if (state->recorded)
		/*
		 * The sidecar lives in another network namespace than this socket: a
		 * namespace made inside the pod (kind, docker in docker). Not our app.
		 */
		return LEAVE;

	/* The sidecar's own connections go out as they are; else they came back to it. */
	if (sidecar && bpf_get_current_cgroup_id() == sidecar)
		return LEAVE;

	/*
	 * Both must hold: a listener whose owner is not known cannot be told from our app, and
	 * what it dials would be sent back to it, for ever.
	 */
	listening = hook == EVK_CONNECT4 || is_mapped(dst) ? listening4(ctx, cfg->listener_port)
							   : listening6(ctx, cfg->listener_port);
	listening = listening && sidecar;

	s = bpf_sk_storage_get(&evk_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!s) {
		/* No memory to remember the original: then it must not be changed. */
		__sync_fetch_and_add(&state->lost, 1);
		return LEAVE;
	}
	s->dst = *dst;
	s->slot = 0;
	s->seen = 0;
	if (!listening) {
		/* Fail open: the app reaches its Service without us. Counted once established. */
		s->kind = EVK_CLIENT_DIRECT;
		return LEAVE;
	}
	s->kind = EVK_CLIENT_REDIRECTED;
	__sync_fetch_and_add(&state->redirected, 1);
	return REDIRECT;
}

#endif
