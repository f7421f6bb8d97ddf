/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tier deep: the answers the kernel got while it decided, in order, from the functions that stand alone. Interrupts
 * are off inside the decision, so a call on this CPU while the slot is open and decided is part of it.
 */

static __always_inline void consulted(void *ctx, enum consulted what, __s16 cpu, __s16 cpu2, __u64 answer)
{
	struct slot *slot = this_slot();
	struct stats *st = this_stats();
	struct consult c = {};

	if (!slot || !st || !slot->open || !slot->decided)
		return;
	HEAD(&c, what);
	c.answer = answer;
	c.wakeup_seq = st->tried[RING_WAKEUP]; /* the number the open decision will get */
	c.asked_cpu = cpu;
	c.asked_cpu2 = cpu2;
	emit(ctx, MAP(consult_rings), RING_CONSULT, &c, sizeof(c));
}

SEC("fexit/available_idle_cpu")
int BPF_PROG(available_idle, int cpu, int answer)
{
	consulted(ctx, CONSULTED_AVAILABLE_IDLE, cpu, -1, answer);
	return 0;
}

SEC("fexit/idle_cpu")
int BPF_PROG(idle, int cpu, int answer)
{
	consulted(ctx, CONSULTED_IDLE, cpu, -1, answer);
	return 0;
}

SEC("fexit/cpus_share_cache")
int BPF_PROG(share_cache, int this_cpu, int that_cpu, bool answer)
{
	consulted(ctx, CONSULTED_SHARE_CACHE, this_cpu, that_cpu, answer);
	return 0;
}

SEC("fexit/task_h_load")
int BPF_PROG(task_h_load, struct task_struct *p, unsigned long answer)
{
	consulted(ctx, CONSULTED_H_LOAD, -1, -1, answer);
	return 0;
}
