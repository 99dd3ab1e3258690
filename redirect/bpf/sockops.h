/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
/* The life of a connection: handing the original destination over, counting the direct ones. */
#ifndef EVENKEEL_SOCKOPS_H
#define EVENKEEL_SOCKOPS_H

#include "maps.h"

static __always_inline void local_key(struct bpf_sock_ops *ops, struct evk_pending_key *key)
{
	key->netns = bpf_get_netns_cookie(ops);
	key->pad = 0;
	if (ops->family == AF_INET) {
		set_addr4(&key->src, ops->local_ip4, ops->local_port);
		return;
	}
	/* For an IPv4-mapped socket this is the mapped form: sk_rcv_saddr_set() sets both. */
	key->src.addr[0] = READ_ONCE(ops->local_ip6[0]);
	key->src.addr[1] = READ_ONCE(ops->local_ip6[1]);
	key->src.addr[2] = READ_ONCE(ops->local_ip6[2]);
	key->src.addr[3] = READ_ONCE(ops->local_ip6[3]);
	key->src.port = ops->local_port;
	key->src.pad = 0;
}

static __always_inline void remote_key(struct bpf_sock_ops *ops, struct evk_pending_key *key)
{
	__u16 port = bpf_ntohl(ops->remote_port);

	key->netns = bpf_get_netns_cookie(ops);
	key->pad = 0;
	if (ops->family == AF_INET) {
		set_addr4(&key->src, ops->remote_ip4, port);
		return;
	}
	key->src.addr[0] = READ_ONCE(ops->remote_ip6[0]);
	key->src.addr[1] = READ_ONCE(ops->remote_ip6[1]);
	key->src.addr[2] = READ_ONCE(ops->remote_ip6[2]);
	key->src.addr[3] = READ_ONCE(ops->remote_ip6[3]);
	key->src.port = port;
	key->src.pad = 0;
}

static __always_inline int local_is_loopback(struct bpf_sock_ops *ops)
{
	if (ops->family == AF_INET)
		return ops->local_ip4 == LOOPBACK4;
	return READ_ONCE(ops->local_ip6[0]) == 0 && READ_ONCE(ops->local_ip6[1]) == 0 &&
	       READ_ONCE(ops->local_ip6[2]) == 0 && READ_ONCE(ops->local_ip6[3]) == LOOPBACK6_LOW;
}

/* Asks for STATE_CB on this connection, and keeps what others asked for. */
static __always_inline void watch_state(struct bpf_sock_ops *ops)
{
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

static __always_inline __u32 direct_slot(const struct evk_addr *dst, struct evk_state *state)
{
	__u32 *known = bpf_map_lookup_elem(&evk_direct_ix, dst);
	struct evk_direct *d;
	__u32 slot;

	if (known)
		return *known;
	if (READ_ONCE(state->direct_slots) >= EVK_DIRECT_SLOTS)
		return 0;
	slot = __sync_fetch_and_add(&state->direct_slots, 1);
	d = bpf_map_lookup_elem(&evk_direct, &slot);
	if (!d)
		return 0;
	if (bpf_map_update_elem(&evk_direct_ix, dst, &slot, BPF_NOEXIST)) {
		/* Another CPU was first with the same destination; our slot stays unused. */
		known = bpf_map_lookup_elem(&evk_direct_ix, dst);
		return known ? *known : 0;
	}
	d->dst = *dst;
	WRITE_ONCE(d->used, 1);
	return slot;
}

static __always_inline void count_direct(struct evk_socket *s)
{
	struct evk_state *state = shared_state();
	struct evk_direct *d;
	__u32 slot;

	if (!state)
		return;
	__sync_fetch_and_add(&state->direct, 1);
	slot = direct_slot(&s->dst, state);
	d = bpf_map_lookup_elem(&evk_direct, &slot);
	if (!d)
		return;
	__sync_fetch_and_add(&d->open, 1);
	__sync_fetch_and_add(&d->total, 1);
	s->slot = slot + 1;
}

static __always_inline void uncount_direct(struct evk_socket *s)
{
	struct evk_direct *d;
	__u32 slot;

	if (!s->slot)
		return;
	slot = s->slot - 1;
	s->slot = 0;
	d = bpf_map_lookup_elem(&evk_direct, &slot);
	if (d)
		__sync_fetch_and_add(&d->open, -1);
}

/* The client's end is established: the SYN-ACK came, our ACK is not yet sent. */
static __always_inline void on_active(struct bpf_sock_ops *ops, struct evk_socket *s)
{
	struct evk_pending_key key;
	struct evk_state *state;

	if (s->kind == EVK_CLIENT_DIRECT) {
		count_direct(s);
		watch_state(ops);
		return;
	}
	if (s->kind != EVK_CLIENT_REDIRECTED)
		return;
	local_key(ops, &key);
	if (bpf_map_update_elem(&evk_pending, &key, &s->dst, BPF_ANY)) {
		state = shared_state();
		if (state)
			__sync_fetch_and_add(&state->lost, 1);
		return;
	}
	watch_state(ops);
}

/*
 * The listener's end is established. It is in the accept queue already, but locked until we are
 * through (tcp_child_process), and getsockopt takes that lock before it asks our program: so
 * whoever accepts cannot ask too early.
 */
static __always_inline void on_passive(struct bpf_sock_ops *ops, struct bpf_sock *sk,
				       struct evk_config *cfg)
{
	struct evk_pending_key key;
	struct evk_state *state;
	struct evk_addr *dst;
	struct evk_socket *s;

	if (ops->local_port != cfg->listener_port || !local_is_loopback(ops))
		return;
	remote_key(ops, &key);
	dst = bpf_map_lookup_elem(&evk_pending, &key);
	if (!dst)
		return; /* dialled directly, not redirected */
	s = bpf_sk_storage_get(&evk_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s) {
		s->dst = *dst;
		s->kind = EVK_ACCEPTED;
	} else {
		state = shared_state();
		if (state)
			__sync_fetch_and_add(&state->lost, 1);
	}
	bpf_map_delete_elem(&evk_pending, &key);
}

/*
 * TCP_CLOSE: also on the way to TIME_WAIT and by disconnect. tcp_set_state() calls us before it
 * gives the port back, so no other connection can have the same key yet.
 */
static __always_inline void on_close(struct bpf_sock_ops *ops, struct evk_socket *s)
{
	struct evk_pending_key key;

	if (s->kind == EVK_CLIENT_DIRECT) {
		uncount_direct(s);
	} else if (s->kind == EVK_CLIENT_REDIRECTED) {
		/* Only there if the listener's end never came to be: reset, or given up. */
		local_key(ops, &key);
		bpf_map_delete_elem(&evk_pending, &key);
	}
}

SEC("sockops")
int evk_sockops(struct bpf_sock_ops *ops)
{
	struct evk_config *cfg;
	struct bpf_sock *sk;
	struct evk_socket *s;
	__u32 op = ops->op;

	/* Foreign operations end here, with reply untouched. */
	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_STATE_CB)
		return GO_ON;
	cfg = enabled_config();
	/* Once into a local: the verifier does not relate two loads of ops->sk. */
	sk = ops->sk;
	if (!cfg || !sk)
		return GO_ON;
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		on_passive(ops, sk, cfg);
		return GO_ON;
	}
	s = socket_of(sk);
	if (!s)
		return GO_ON;
	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		on_active(ops, s);
	else if (op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_CLOSE)
		on_close(ops, s);
	else if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && s->kind == EVK_PROBE)
		s->seen |= 1U << EVK_SOCKOPS;
	return GO_ON;
}

#endif
