/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The part of the kernel's user API which the programs need, reduced from Linux 6.1
 * include/uapi/linux/{bpf,in,socket,tcp}.h. It is kept here so that generating needs no
 * kernel headers and gives the same object on every machine. All of it is stable ABI.
 */
#ifndef EVENKEEL_UAPI_H
#define EVENKEEL_UAPI_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;

#define SOCK_STREAM	     1
#define IPPROTO_TCP	     6
#define SOL_IP		     0
#define SOL_IPV6	     41
#define SO_ORIGINAL_DST	     80 /* linux/netfilter_ipv4.h */
#define IP6T_SO_ORIGINAL_DST 80 /* linux/netfilter_ipv6/ip6_tables.h */
#define AF_INET		     2
#define AF_INET6	     10

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_SK_STORAGE = 24,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,

	BPF_F_NO_PREALLOC = 1U << 0,
	BPF_F_RDONLY_PROG = 1U << 7,

	BPF_SK_STORAGE_GET_F_CREATE = 1U << 0,
};

#define BPF_F_CURRENT_NETNS (-1L)

/* op of struct bpf_sock_ops */
enum {
	BPF_SOCK_OPS_TCP_CONNECT_CB = 3,
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_STATE_CB = 10,

	BPF_SOCK_OPS_STATE_CB_FLAG = 1 << 2,
};

enum {
	BPF_TCP_CLOSE = 7,
	BPF_TCP_LISTEN = 10,
};

#define __bpf_md_ptr(type, name)                                                                   \
	union {                                                                                    \
		type name;                                                                         \
		__u64 : 64;                                                                        \
	} __attribute__((aligned(8)))

struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4; /* network byte order */
	__u32 src_ip6[4];
	__u32 src_port;	 /* host byte order */
	__be16 dst_port; /* network byte order */
	__u16 : 16;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

struct bpf_sock_tuple {
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
			__be16 sport;
			__be16 dport;
		} ipv4;
		struct {
			__be32 saddr[4];
			__be32 daddr[4];
			__be16 sport;
			__be16 dport;
		} ipv6;
	};
};

struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;	   /* network byte order */
	__u32 user_ip6[4]; /* network byte order */
	__u32 user_port;   /* network byte order */
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 msg_src_ip4;
	__u32 msg_src_ip6[4];
	__bpf_md_ptr(struct bpf_sock *, sk);
};

struct bpf_sock_ops {
	__u32 op;
	union {
		__u32 args[4];
		__u32 reply;
		__u32 replylong[4];
	};
	__u32 family;
	__u32 remote_ip4;    /* network byte order */
	__u32 local_ip4;     /* network byte order */
	__u32 remote_ip6[4]; /* network byte order */
	__u32 local_ip6[4];  /* network byte order */
	__u32 remote_port;   /* network byte order, in the upper half on little endian */
	__u32 local_port;    /* host byte order */
	__u32 is_fullsock;
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 bpf_sock_ops_cb_flags;
	__u32 state;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 ecn_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 segs_out;
	__u32 data_segs_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 sk_txhash;
	__u64 bytes_received;
	__u64 bytes_acked;
	__bpf_md_ptr(struct bpf_sock *, sk);
};

struct bpf_sockopt {
	__bpf_md_ptr(struct bpf_sock *, sk);
	__bpf_md_ptr(void *, optval);
	__bpf_md_ptr(void *, optval_end);

	__s32 level;
	__s32 optname;
	__s32 optlen;
	__s32 retval;
};

#endif
