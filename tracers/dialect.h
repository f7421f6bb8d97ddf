/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the probes read kernel memory, and name their maps and constants. GET(p, member) is one read of a member, which
 * may lie in nested structures. There are three dialects:
 *
 * TYPED: plain loads, which the verifier checks against the kernel's BTF (0.5 ns each).
 * BCC: bpf_probe_read_kernel() at offsets known when BCC compiles this source on the machine; see bcc.h.
 * Otherwise every read is a bpf_probe_read_kernel() at an offset relocated from BTF (6 ns), for kernels before 5.11 (no
 * bpf_get_current_task_btf()) or whose BTF knows no per-cpu variables (built with pahole before 1.18).
 */
#ifndef WAKESCOPE_DIALECT_H
#define WAKESCOPE_DIALECT_H

#ifdef BCC
#include "bcc.h"
#else

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#ifdef TYPED
#define GET(p, member) ((p)->member)
#define CURRENT() bpf_get_current_task_btf()
#else
#define GET(p, member) BPF_CORE_READ(p, member)
#define CURRENT() ((struct task_struct *)bpf_get_current_task())
#endif

/* A value set by the loader before the programs are verified. */
#define CONSTANT(type, name) const volatile type name = 0
#define LICENSE(name) char LICENSE[] SEC("license") = name

#define ARRAY(name, map, of, entries)                                                                                  \
	struct {                                                                                                       \
		__uint(type, map);                                                                                     \
		__uint(max_entries, entries);                                                                          \
		__type(key, __u32);                                                                                    \
		__type(value, of);                                                                                     \
	} name SEC(".maps")
#define MAP(name) (&name)
#define HAS_RINGBUF 1

/* Argument n of a tracepoint, or of a traced function at its entry or return. Spelled out so that the compiler cannot fold two of them
 * into one load at a computed offset, which the verifier refuses. */
#define ARG(ctx, n)                                                                                                    \
	({                                                                                                             \
		__u64 value;                                                                                           \
		asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(value) : "r"(ctx), "i"((n) * 8));                         \
		value;                                                                                                 \
	})
#define RAW_ARG(ctx, n) ARG(ctx, n)
/* At the return of a traced function of n arguments: its answer, and argument n, kept being what its entry saw of it. */
#define RETURNED(ctx, n) ARG(ctx, n)
#define ENTRY_ARG(ctx, n, kept) ARG(ctx, n)

#define RING_ARRAY(name)                                                                                               \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                                              \
		__uint(max_entries, MAX_CPUS);                                                                         \
		__type(key, __u32);                                                                                    \
		__array(values, struct ringbuf);                                                                       \
	} name SEC(".maps")
struct ringbuf {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

#endif
#endif
