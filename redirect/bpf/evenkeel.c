/* clang-format off */
//go:build ignore
/* clang-format on */

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Copyright Authors of Evenkeel */
/*
 * connect(service) -> connect(sidecar), and back again for whoever asks where it went.
 *
 *   app: connect ------------> connect4/6: store original, rewrite to loopback:listener
 *   app: SYN-ACK arrives ----> sockops ACTIVE_ESTABLISHED: pending[source] = original
 *   sidecar: ACK arrives ----> sockops PASSIVE_ESTABLISHED: pending[source] -> accepted socket
 *   sidecar: getsockopt -----> original
 *   app: getpeername --------> original
 *
 * Every program returns 1, "go on": none of them ever refuses anything.
 */
#include "maps.h"
#include "connect.h"

SEC("cgroup/connect4")
int evk_connect4(struct bpf_sock_addr *ctx)
{
	struct evk_config *cfg;
	struct evk_addr dst;

	set_addr4(&dst, ctx->user_ip4, bpf_ntohs((__u16)ctx->user_port));
	if (on_connect(ctx, &dst, EVK_CONNECT4) != REDIRECT)
		return GO_ON;
	cfg = enabled_config();
	if (!cfg)
		return GO_ON;
	ctx->user_ip4 = LOOPBACK4;
	ctx->user_port = bpf_htons(cfg->listener_port);
	return GO_ON;
}

SEC("cgroup/connect6")
int evk_connect6(struct bpf_sock_addr *ctx)
{
	struct evk_config *cfg;
	struct evk_addr dst;

	dst.addr[0] = READ_ONCE(ctx->user_ip6[0]);
	dst.addr[1] = READ_ONCE(ctx->user_ip6[1]);
	dst.addr[2] = READ_ONCE(ctx->user_ip6[2]);
	dst.addr[3] = READ_ONCE(ctx->user_ip6[3]);
	dst.port = bpf_ntohs((__u16)ctx->user_port);
	dst.pad = 0;
	if (on_connect(ctx, &dst, EVK_CONNECT6) != REDIRECT)
		return GO_ON;
	cfg = enabled_config();
	if (!cfg)
		return GO_ON;
	if (is_mapped(&dst)) {
		/* Stays IPv4 on the wire: ::ffff:127.0.0.1, the listener of 127.0.0.1. */
		WRITE_ONCE(ctx->user_ip6[3], LOOPBACK4);
	} else {
		WRITE_ONCE(ctx->user_ip6[0], 0);
		WRITE_ONCE(ctx->user_ip6[1], 0);
		WRITE_ONCE(ctx->user_ip6[2], 0);
		WRITE_ONCE(ctx->user_ip6[3], LOOPBACK6_LOW);
	}
	ctx->user_port = bpf_htons(cfg->listener_port);
	return GO_ON;
}

SEC("cgroup/getpeername4")
int evk_getpeer4(struct bpf_sock_addr *ctx)
{
	struct evk_socket *s;

	if (!ctx->sk)
		return GO_ON;
	s = socket_of(ctx->sk);
	if (!s)
		return GO_ON;
	if (s->kind == EVK_PROBE)
		s->seen |= 1U << EVK_GETPEERNAME4;
	if (s->kind != EVK_CLIENT_REDIRECTED)
		return GO_ON;
	ctx->user_ip4 = s->dst.addr[3];
	ctx->user_port = bpf_htons(s->dst.port);
	return GO_ON;
}

SEC("cgroup/getpeername6")
int evk_getpeer6(struct bpf_sock_addr *ctx)
{
	struct evk_socket *s;

	if (!ctx->sk)
		return GO_ON;
	s = socket_of(ctx->sk);
	if (!s)
		return GO_ON;
	if (s->kind == EVK_PROBE)
		s->seen |= 1U << EVK_GETPEERNAME6;
	if (s->kind != EVK_CLIENT_REDIRECTED)
		return GO_ON;
	WRITE_ONCE(ctx->user_ip6[0], s->dst.addr[0]);
	WRITE_ONCE(ctx->user_ip6[1], s->dst.addr[1]);
	WRITE_ONCE(ctx->user_ip6[2], s->dst.addr[2]);
	WRITE_ONCE(ctx->user_ip6[3], s->dst.addr[3]);
	ctx->user_port = bpf_htons(s->dst.port);
	return GO_ON;
}

/*
 * The process that binds the listener is the sidecar, so its cgroup is its container's: no user
 * id that an app could share, nothing to configure, and a restarted container (a new cgroup) is
 * known at once. By network namespace, so that a sidecar of a pod within this pod (an own
 * network namespace, but a cgroup below ours) does not take its place.
 */
static __always_inline void record_sidecar(struct bpf_sock *ctx)
{
	struct evk_state *state = shared_state();
	__u64 netns = bpf_get_netns_cookie(ctx);
	__u64 cgroup = bpf_get_current_cgroup_id();

	if (!state)
		return;
	if (bpf_map_update_elem(&evk_sidecars, &netns, &cgroup, BPF_ANY))
		return;
	state->recorded = 1;
}

static __always_inline void on_post_bind(struct bpf_sock *ctx, int loopback, enum evk_hook hook)
{
	struct evk_config *cfg = enabled_config();
	struct evk_socket *s;

	if (!cfg || ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP)
		return;
	s = socket_of(ctx);
	if (s && s->kind == EVK_PROBE)
		s->seen |= 1U << hook;
	if (loopback && ctx->src_port == cfg->listener_port)
		record_sidecar(ctx);
}

SEC("cgroup/post_bind4")
int evk_post_bind4(struct bpf_sock *ctx)
{
	on_post_bind(ctx, ctx->src_ip4 == LOOPBACK4, EVK_POST_BIND4);
	return GO_ON;
}

SEC("cgroup/post_bind6")
int evk_post_bind6(struct bpf_sock *ctx)
{
	int loopback = READ_ONCE(ctx->src_ip6[0]) == 0 && READ_ONCE(ctx->src_ip6[1]) == 0 &&
		       READ_ONCE(ctx->src_ip6[2]) == 0 &&
		       READ_ONCE(ctx->src_ip6[3]) == LOOPBACK6_LOW;

	on_post_bind(ctx, loopback, EVK_POST_BIND6);
	return GO_ON;
}

#include "sockops.h"
#include "getsockopt.h"

char __license[] SEC("license") = "Dual BSD/GPL";
