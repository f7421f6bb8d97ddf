/* SPDX-License-Identifier: GPL-2.0-only */
/* Tier decision: entry and return of select_task_rq_fair(), with every runqueue readable through its per-cpu symbol. */

#ifdef TYPED
/* Only programs of tier decision may refer to these: without CONFIG_KALLSYMS_ALL the kernel cannot resolve them. */
extern struct rq runqueues __ksym;
extern int __preempt_count __ksym __weak; /* x86 up to 6.1 and from 6.15 on */
extern struct pcpu_hot pcpu_hot __ksym __weak; /* x86 from 6.2 to 6.14 */

static __always_inline struct rq *cpu_rq(__u32 cpu)
{
	return (struct rq *)bpf_per_cpu_ptr(&runqueues, cpu);
}

static __always_inline struct rq *this_rq(void)
{
	return (struct rq *)bpf_this_cpu_ptr(&runqueues);
}

static __always_inline __u32 preempt_count(void)
{
	if (&__preempt_count)
		return *(int *)bpf_this_cpu_ptr(&__preempt_count);
	if (&pcpu_hot)
		return ((struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	return UNKNOWN;
}
#else
/* Addresses from /proc/kallsyms: the per-cpu variables' offsets, and the array of every CPU's base. */
CONSTANT(__u64, runqueues_offset);
CONSTANT(__u64, preempt_count_offset);
CONSTANT(__u64, per_cpu_offset_address);

static __always_inline __u64 per_cpu_base(__u32 cpu)
{
	__u64 base = 0;

	bpf_probe_read_kernel(&base, sizeof(base), (void *)(per_cpu_offset_address + 8 * cpu));
	return base;
}

static __always_inline struct rq *cpu_rq(__u32 cpu)
{
	return (struct rq *)(per_cpu_base(cpu) + runqueues_offset);
}

static __always_inline struct rq *this_rq(void)
{
	return cpu_rq(bpf_get_smp_processor_id());
}

static __always_inline __u32 preempt_count(void)
{
	__u32 count = UNKNOWN;

	if (preempt_count_offset)
		bpf_probe_read_kernel(&count, sizeof(count),
				      (void *)(per_cpu_base(bpf_get_smp_processor_id()) + preempt_count_offset));
	return count;
}
#endif

#ifdef BCC
CONSTANT(__u64, bpf_prog_active_offset);
CONSTANT(__u64, current_kprobe_offset);

/* Whether this CPU skips programs of kprobes, as trace_call_bpf() and kprobe_running() will find it: this is an interrupt
 * of one of them, or of a system call that works on a map. */
static __always_inline bool kprobes_skipped(void)
{
	__u64 base = per_cpu_base(bpf_get_smp_processor_id()), kprobe = 0;
	__u32 active = 0;

	if (bpf_prog_active_offset)
		bpf_probe_read_kernel(&active, sizeof(active), (void *)(base + bpf_prog_active_offset));
	if (current_kprobe_offset)
		bpf_probe_read_kernel(&kprobe, sizeof(kprobe), (void *)(base + current_kprobe_offset));
	return active || kprobe;
}
#else
static __always_inline bool kprobes_skipped(void)
{
	return false; /* nobody's work keeps an fentry program from running but its own */
}
#endif

/* Bits of preempt_count: softirq 8-15 (serving: bit 8), then 4 of hardirq and up to 4 of nmi; 31 is x86's need-resched. */
static __always_inline enum context context(void)
{
	__u32 count = preempt_count();

	if (count == UNKNOWN)
		return CONTEXT_UNKNOWN;
	if (count >> hardirq_shift & 0x70)
		return CONTEXT_NMI;
	if (count >> hardirq_shift & 0x0f)
		return CONTEXT_HARDIRQ;
	return count & 0x100 ? CONTEXT_SOFTIRQ : CONTEXT_TASK;
}

/* idle_cpu() (v5.10 to v7.x): the idle task runs, nothing is queued, no remote wakeup is on its way. */
static __always_inline bool rq_idle(struct rq *rq)
{
	return (__u64)GET(rq, curr) == (__u64)GET(rq, idle) && !GET(rq, nr_running) && !rq_wake_pending(GET, rq);
}

/* sched_idle_cpu() */
static __always_inline bool rq_sched_idle(struct rq *rq)
{
	return GET(rq, nr_running) && GET(rq, nr_running) == cfs_nr_idle(&rq->cfs);
}

static __always_inline void read_idle(const __u64 *span, __u64 *idle, __u64 *sched_idle)
{
	for (__u32 cpu = 0; cpu < nr_cpus && cpu < MAX_CPUS; cpu++) {
		struct rq *rq;

		if (!(span[cpu / 64] >> (cpu % 64) & 1))
			continue;
		rq = cpu_rq(cpu);
		if (!rq)
			continue;
		if (rq_idle(rq))
			idle[cpu / 64] |= 1ULL << (cpu % 64);
		else if (sched_idle && rq_sched_idle(rq))
			sched_idle[cpu / 64] |= 1ULL << (cpu % 64);
	}
}

/* CPUs that share a last level cache with this or prev; of a CPU without LLC domain, itself. */
static __always_inline void llc_spans(struct sched_domain *llc, __u32 cpu, __u64 *span)
{
	__u64 words[WORDS] = {};

	if (!llc) {
		/* not in words, since a verifier before 5.12 knows no variable offset into the stack; masked for it, too */
		span[cpu / 64 & (WORDS - 1)] |= 1ULL << (cpu % 64);
		return;
	}
	bpf_probe_read_kernel(words, sizeof(words), sched_domain_span(llc));
	for (int i = 0; i < WORDS; i++)
		span[i] |= words[i];
}

/* Spans of the decision under way, for its return. */
struct spans {
	__u64 words[WORDS];
};

ARRAY(spans, BPF_MAP_TYPE_PERCPU_ARRAY, struct spans, 1);

#ifndef BCC /* which has no functions that are verified by themselves */
#include "loads.bpf.h"
#endif

SEC("tp_btf/sched_waking")
int BPF_PROG(waking_decision, struct task_struct *p)
{
	struct stats *st = this_stats();
	struct task_struct *cur = GET(this_rq(), curr);
	struct slot *slot;

	if (!st)
		return 0;
	st->waking++;
	slot = open_slot(ctx, cur, p);
	if (slot) {
		slot->w.context = context();
		slot->unseen = kprobes_skipped();
	}
	return 0;
}

SEC("fentry/select_task_rq_fair")
int select_enter(__u64 *ctx)
{
	struct task_struct *p = (struct task_struct *)ARG(ctx, 0);
	__u32 prev_cpu = ARG(ctx, 1), zero = 0;
	struct sched_domain *this_llc, *prev_llc;
	struct rq *rq = this_rq(), *prev_rq;
	struct task_struct *cur = GET(rq, curr);
	struct slot *slot = this_slot();
	struct stats *st = this_stats();
	struct spans *sp = bpf_map_lookup_elem(MAP(spans), &zero);
	struct wakeup *w;
	__u32 flags;

	if (!slot || !st || !sp)
		return 0;
	st->decisions++;
	flags = select_has_sd_flag ? ARG(ctx, 2) : ARG(ctx, 2) & 0xf;
	if (flags & (sd_balance_exec | sd_balance_fork)) {
		slot = open_slot(ctx, cur, p);
		if (!slot)
			return 0;
		slot->w.context = context();
		slot->w.outcome = flags & sd_balance_fork ? OUTCOME_FORK : OUTCOME_EXEC;
	} else if (slot->task == (__u64)p && slot->open) {
		slot->w.outcome = OUTCOME_PLACED;
	} else {
		return 0; /* its sched_waking came before the probes were attached */
	}
	w = &slot->w;
	slot->decided = true;
	w->prev_cpu = prev_cpu;
	if (select_has_sd_flag) {
		w->sd_flag = ARG(ctx, 2);
		w->wake_flags = ARG(ctx, 3);
	} else {
		w->wake_flags = ARG(ctx, 2);
	}
	prev_rq = cpu_rq(prev_cpu);
	if (!prev_rq)
		return 0;
	this_llc = llc_domain(rq);
	prev_llc = llc_domain(prev_rq);
	fill_rqs(w, rq, prev_rq, this_llc, prev_llc);
	fill_loads(w, cur, p);
	for (int i = 0; i < WORDS; i++)
		sp->words[i] = w->idle[i] = w->idle_exit[i] = w->sched_idle[i] = w->sched_idle_exit[i] = 0;
	llc_spans(this_llc, w->cpu, sp->words);
	llc_spans(prev_llc, prev_cpu, sp->words);
	w->has_masks = 1;
	if (schedstats && task_has_stats(p)) {
		w->affine_attempts = task_affine_attempts(p);
		w->affine_moves = task_affine_moves(p);
	}
	read_idle(sp->words, w->idle, w->sched_idle);
#ifndef BCC
	loads_at_entry(w);
#endif
	return 0;
}

/* Of what fill_rqs() read at entry, that which may change while the kernel decides. */
static __always_inline void fill_exit(struct wakeup *w)
{
	struct rq *rq = this_rq(), *prev_rq = cpu_rq(w->prev_cpu);
	__s8 cores;

	w->jiffies_exit = bpf_jiffies64();
	w->this_load_exit = cfs_load(&rq->cfs, compares_runnable);
	w->this_nr_running_exit = GET(rq, nr_running);
	fill_llc(llc_domain(rq), &w->this_nr_idle_scan_exit, &cores);
	w->this_has_idle_cores_exit = cores;
	if (!prev_rq)
		return;
	w->prev_load_exit = cfs_load(&prev_rq->cfs, compares_runnable);
	w->prev_nr_running_exit = GET(prev_rq, nr_running);
	fill_llc(llc_domain(prev_rq), &w->prev_nr_idle_scan_exit, &cores);
	w->prev_has_idle_cores_exit = cores;
}

SEC("fexit/select_task_rq_fair")
int select_exit(__u64 *ctx)
{
	struct task_struct *p, *cur = GET(this_rq(), curr);
	struct slot *slot = this_slot();
	struct stats *st = this_stats();
	__u32 zero = 0;
	struct spans *sp = bpf_map_lookup_elem(MAP(spans), &zero);
	struct wakeup *w;

	if (!slot || !st || !sp || !slot->open || !slot->decided)
		return 0;
	p = (struct task_struct *)ENTRY_ARG(ctx, 0, slot->task);
	if (slot->task != (__u64)p)
		return 0;
	w = &slot->w;
	slot->open = false;
	w->chosen_cpu = select_has_sd_flag ? RETURNED(ctx, 4) : RETURNED(ctx, 3);
	read_idle(sp->words, w->idle_exit, w->sched_idle_exit);
	fill_exit(w);
#ifndef BCC
	loads_at_exit(w);
#endif
	w->waker_flips_exit = GET(cur, wakee_flips);
	w->wakee_flips_exit = GET(p, wakee_flips);
	w->waker_decay_ts_exit = GET(cur, wakee_flip_decay_ts);
	w->waker_last_wakee_exit = tag(st, GET(cur, last_wakee));
	if (schedstats && task_has_stats(p)) {
		w->affine_attempts = task_affine_attempts(p) - w->affine_attempts;
		w->affine_moves = task_affine_moves(p) - w->affine_moves;
	}
	w->ts_exit = bpf_ktime_get_ns();
	emit(ctx, MAP(wakeup_rings), RING_WAKEUP, w, sizeof(*w));
	return 0;
}

/* p is activated on the waker's own CPU: if it never reached placement, its wakeup is complete. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup_decision, struct task_struct *p)
{
	struct slot *slot = this_slot();

	if (slot && slot->task == (__u64)p)
		flush(ctx, slot, GET(this_rq(), curr));
	return 0;
}
