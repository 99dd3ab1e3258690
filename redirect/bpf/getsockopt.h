/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
/*
 * Our answers to getsockopt, and how not to disturb all others: the hook sees every getsockopt
 * of every socket of the pod, after the kernel has answered.
 */
#ifndef EVENKEEL_GETSOCKOPT_H
#define EVENKEEL_GETSOCKOPT_H

#include "maps.h"

struct evk_sockaddr_in {
	__u16 family;
	__be16 port;
	__be32 addr;
	__u64 zero;
};

struct evk_sockaddr_in6 {
	__u16 family;
	__be16 port;
	__be32 flowinfo;
	__be32 addr[4];
	__u32 scope_id;
};

/*
 * Not ours. Beyond the page that the kernel lends to the program: "Set optlen to zero, which
 * indicates that the kernel should use the original buffer from the userspace"
 * (Documentation/bpf/prog_cgroup_sockopt.rst); else the app got EFAULT (since Linux 6.5 the kernel
 * does that by itself). Only there: programs of this cgroup and of those above may still want to
 * see the length.
 */
static __always_inline int foreign(struct bpf_sockopt *ctx)
{
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return GO_ON;
}

/*
 * Success, with n bytes. Two separate stores: the verifier rewrites each context field by
 * itself and refuses the 64-bit store that clang makes of both.
 */
static __always_inline int answered(struct bpf_sockopt *ctx, __s32 n)
{
	WRITE_ONCE(ctx->optlen, n);
	WRITE_ONCE(ctx->retval, 0);
	return GO_ON;
}

static __always_inline int answer_info(struct bpf_sockopt *ctx, struct evk_config *cfg)
{
	struct evk_info *info = ctx->optval;
	struct evk_state *state = shared_state();
	__u64 netns, *recorded;

	if (!state || (void *)(info + 1) > ctx->optval_end)
		return foreign(ctx);
	info->config = *cfg;
	info->state = *state;
	netns = bpf_get_netns_cookie(ctx);
	recorded = bpf_map_lookup_elem(&evk_sidecars, &netns);
	info->netns = netns;
	info->sidecar = recorded ? *recorded : cfg->sidecar_cgroup;
	info->caller_cgroup = bpf_get_current_cgroup_id();
	return answered(ctx, sizeof(*info));
}

static __always_inline int answer_probe(struct bpf_sockopt *ctx)
{
	__u32 *seen = ctx->optval;
	struct evk_socket *s;

	if ((void *)(seen + 1) > ctx->optval_end || !ctx->sk)
		return foreign(ctx);
	s = socket_of(ctx->sk);
	if (!s) {
		s = bpf_sk_storage_get(&evk_sockets, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!s)
			return foreign(ctx);
		s->kind = EVK_PROBE;
	}
	/* A socket that has another role keeps it. */
	if (s->kind != EVK_PROBE)
		return foreign(ctx);
	s->seen |= 1U << EVK_GETSOCKOPT;
	*seen = s->seen;
	return answered(ctx, sizeof(*seen));
}

static __always_inline int answer_direct(struct bpf_sockopt *ctx, __u32 slot)
{
	struct evk_direct *out = ctx->optval;
	struct evk_direct *d = bpf_map_lookup_elem(&evk_direct, &slot);

	if (!d || (void *)(out + 1) > ctx->optval_end)
		return foreign(ctx);
	*out = *d;
	return answered(ctx, sizeof(*out));
}

static __always_inline struct evk_socket *accepted(struct bpf_sockopt *ctx)
{
	struct evk_socket *s;

	if (!ctx->sk)
		return 0;
	s = socket_of(ctx->sk);
	return s && s->kind == EVK_ACCEPTED ? s : 0;
}

static __always_inline int answer_origdst(struct bpf_sockopt *ctx)
{
	struct evk_addr *out = ctx->optval;
	struct evk_socket *s = accepted(ctx);

	if (!s || (void *)(out + 1) > ctx->optval_end)
		return foreign(ctx);
	*out = s->dst;
	return answered(ctx, sizeof(*out));
}

/* As netfilter's nf_conntrack answers after a REDIRECT, for whoever knows only that. */
static __always_inline int answer_so_original_dst(struct bpf_sockopt *ctx)
{
	struct evk_sockaddr_in6 *out6 = ctx->optval;
	struct evk_sockaddr_in *out4 = ctx->optval;
	struct evk_socket *s = accepted(ctx);

	if (!s)
		return foreign(ctx);
	if (ctx->level == SOL_IP) {
		if (!is_mapped(&s->dst) || (void *)(out4 + 1) > ctx->optval_end)
			return foreign(ctx);
		out4->family = AF_INET;
		out4->port = bpf_htons(s->dst.port);
		out4->addr = s->dst.addr[3];
		out4->zero = 0;
		return answered(ctx, sizeof(*out4));
	}
	if (is_mapped(&s->dst) || (void *)(out6 + 1) > ctx->optval_end)
		return foreign(ctx);
	out6->family = AF_INET6;
	out6->port = bpf_htons(s->dst.port);
	out6->flowinfo = 0;
	out6->addr[0] = s->dst.addr[0];
	out6->addr[1] = s->dst.addr[1];
	out6->addr[2] = s->dst.addr[2];
	out6->addr[3] = s->dst.addr[3];
	out6->scope_id = 0;
	return answered(ctx, sizeof(*out6));
}

SEC("cgroup/getsockopt")
int evk_getsockopt(struct bpf_sockopt *ctx)
{
	struct evk_config *cfg;
	__u32 optname = ctx->optname;

	if (ctx->level != EVK_LEVEL) {
		if ((ctx->level == SOL_IP && optname == SO_ORIGINAL_DST) ||
		    (ctx->level == SOL_IPV6 && optname == IP6T_SO_ORIGINAL_DST))
			return answer_so_original_dst(ctx);
		return foreign(ctx);
	}
	/*
	 * Our level, and no error: a copy on a cgroup below this one has answered. It is the one
	 * that acts for this socket (its connect ran first, and then we saw only loopback).
	 */
	if (ctx->retval == 0)
		return GO_ON;
	cfg = enabled_config();
	if (!cfg)
		return foreign(ctx);
	if (optname == EVK_OPT_INFO)
		return answer_info(ctx, cfg);
	if (optname == EVK_OPT_ORIGDST)
		return answer_origdst(ctx);
	if (optname == EVK_OPT_PROBE)
		return answer_probe(ctx);
	if (optname >= EVK_OPT_DIRECT && optname < EVK_OPT_DIRECT + EVK_DIRECT_SLOTS)
		return answer_direct(ctx, optname - EVK_OPT_DIRECT);
	return foreign(ctx);
}

#endif
