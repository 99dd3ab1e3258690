/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copyright Authors of Evenkeel */
/*
 * What libbpf's bpf_helpers.h and bpf_endian.h would bring, cut down to what is used here.
 * Helper numbers are kernel ABI (enum bpf_func_id); the kernel that brought each one is named,
 * for the place where we use it. The floor of Evenkeel is 5.15.
 */
#ifndef EVENKEEL_HELPERS_H
#define EVENKEEL_HELPERS_H

#include "uapi.h"

#define SEC(name)	  __attribute__((section(name), used))
#define __always_inline	  inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

/* 3.19 */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
/* 4.16 */
static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *skops, int flags) = (void *)59;
/* 4.18; in cgroup/sock_addr and cgroup/sock programs since 5.7 */
static __u64 (*bpf_get_current_cgroup_id)(void) = (void *)80;
/* 5.0 */
static long (*bpf_sk_release)(void *sk) = (void *)86;
/* 5.2 */
static struct bpf_sock *(*bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple,
					      __u32 tuple_size, __u64 netns,
					      __u64 flags) = (void *)99;
/* 5.2; in cgroup/sock programs since 5.9 */
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;
/* 5.7; in sockops and getsockopt programs since 5.15 */
static __u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)122;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) __builtin_bswap32(x)
#else
#error "objects are generated for little endian only"
#endif

/*
 * The verifier accepts only the documented width for most context fields, and clang likes to
 * merge neighbours into one wider access: an access that must stay as written goes through here.
 */
#define READ_ONCE(x)	 (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#endif
