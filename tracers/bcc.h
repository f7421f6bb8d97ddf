/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The dialect that BCC compiles on the machine itself, for kernels without BTF. What libbpf would do at load time is
 * done before compilation (bcc.py): a constant X is -DCONST_X, a map X, made beforehand, is its descriptor -DMAP_X,
 * and the structures of kernel.h are laid out as on this kernel. A member this kernel lacks has the type __int128
 * there, which no kernel member has; reading it gives all ones, "unknown".
 *
 * BCC rewrites map calls and dereferences of pointers that come from a program's context. It finds none: maps are named
 * by descriptor, kernel memory is only read by GET(), and opaque() hides where pointers come from, since BCC would
 * rewrite even a dereference inside typeof(). Had it rewritten one, its call of bpf_probe_read() would not compile.
 */
#ifndef WAKESCOPE_BCC_H
#define WAKESCOPE_BCC_H

#include <uapi/linux/ptrace.h>

#define SEC(name)
#define LICENSE(name) struct license
#define CONSTANT(type, name) static const type name = CONST_##name
#define ARRAY(name, map_type, type, entries) struct map_##name
#define RING_ARRAY(name) struct map_##name
#define MAP(name) ((void *)bpf_pseudo_fd(1, MAP_##name))

static __always_inline __u64 opaque(__u64 x)
{
	__u64 same;

	asm("" : "=r"(same) : "0"(x));
	return same;
}

/* Kernels before 5.5 (6ae08ae3dea2) read kernel and user memory alike; before 5.6 (5576b991e9c1) jiffies are read. */
#if !HAS_READ_KERNEL
static long (*const probe_read)(void *, __u32, const void *) = (void *)BPF_FUNC_probe_read;
static long (*const probe_read_str)(void *, __u32, const void *) = (void *)BPF_FUNC_probe_read_str;
#define bpf_probe_read_kernel probe_read
#define bpf_probe_read_kernel_str probe_read_str
#endif
#define bpf_probe_read BCC_rewrote_a_dereference
#if !HAS_JIFFIES64
static __always_inline __u64 read_jiffies(void)
{
	__u64 now = 0;

	bpf_probe_read_kernel(&now, sizeof(now), (void *)JIFFIES);
	return now;
}
#define bpf_jiffies64 read_jiffies
#endif

#define ABSENT(field) __builtin_types_compatible_p(typeof(field), __int128)
#define AT(p, member) ((__u64)(p) + __builtin_offsetof(typeof(*(p)), member))
#define GET(p, member)                                                                                                 \
	({                                                                                                             \
		typeof(((typeof(*(p)) *)0)->member) value;                                                             \
		if (ABSENT(value))                                                                                     \
			__builtin_memset(&value, 0xff, sizeof(value));                                                 \
		else                                                                                                   \
			bpf_probe_read_kernel(&value, sizeof(value), (void *)AT(p, member));                           \
		value;                                                                                                 \
	})
#define BPF_CORE_READ(p, member) GET(p, member)
#define CURRENT() ((struct task_struct *)opaque(bpf_get_current_task()))

#define bpf_core_field_exists(field) (!ABSENT(field))
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)
#define bpf_core_enum_value(type, value) CONST_##value

/* As libbpf has it; BCC's own begins with the result's type. */
#undef BPF_PROG
#define CAST0() ctx
#define CAST1(x) CAST0(), (void *)opaque(ctx[0])
#define CAST2(x, args...) CAST1(args), (void *)opaque(ctx[1])
#define CAST3(x, args...) CAST2(args), (void *)opaque(ctx[2])
#define CAST4(x, args...) CAST3(args), (void *)opaque(ctx[3])
#define CAST_N(_0, _1, _2, _3, _4, n, ...) CAST##n
#define CAST(args...) CAST_N(_, ##args, 4, 3, 2, 1, 0)(args)
#define BPF_PROG(name, args...)                                                                                        \
	name(unsigned long long *ctx);                                                                                 \
	static __always_inline int ____##name(unsigned long long *ctx, ##args);                                        \
	int name(unsigned long long *ctx)                                                                              \
	{                                                                                                              \
		return ____##name(CAST(args));                                                                         \
	}                                                                                                              \
	static __always_inline int ____##name(unsigned long long *ctx, ##args)

/* A traced function is a kprobe and a kretprobe: at its return the arguments are gone. */
#define ARG(ctx, n) opaque(ARG##n((struct pt_regs *)(ctx)))
#define ARG0(regs) PT_REGS_PARM1(regs)
#define ARG1(regs) PT_REGS_PARM2(regs)
#define ARG2(regs) PT_REGS_PARM3(regs)
#define ARG3(regs) PT_REGS_PARM4(regs)
#define RAW_ARG(ctx, n) opaque((ctx)[n])
#define RETURNED(ctx, n) PT_REGS_RC((struct pt_regs *)(ctx))
#define ENTRY_ARG(ctx, n, kept) (kept)

#endif
