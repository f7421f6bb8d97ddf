/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the probes read kernel memory. GET(p, member) is one read of a member, which may lie in nested structures.
 *
 * TYPED: plain loads, which the verifier checks against the kernel's BTF (0.5 ns each). Otherwise every read is a
 * bpf_probe_read_kernel() at an offset relocated from BTF (6 ns), for kernels before 5.11 (no
 * bpf_get_current_task_btf()) or whose BTF knows no per-cpu variables (built with pahole before 1.18).
 */
#ifndef WAKESCOPE_DIALECT_H
#define WAKESCOPE_DIALECT_H

#ifdef TYPED
#define GET(p, member) ((p)->member)
#define CURRENT() bpf_get_current_task_btf()
#else
#define GET(p, member) BPF_CORE_READ(p, member)
#define CURRENT() ((struct task_struct *)bpf_get_current_task())
#endif

/* Argument n of a tracing program. Spelled out so that the compiler cannot fold two of them into one load at a
 * computed offset, which the verifier refuses. */
#define ARG(ctx, n)                                                                                                    \
	({                                                                                                             \
		__u64 value;                                                                                           \
		asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(value) : "r"(ctx), "i"((n) * 8));                         \
		value;                                                                                                 \
	})

#endif
