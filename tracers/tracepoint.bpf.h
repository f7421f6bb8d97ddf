/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tier tracepoint: for kernels that refuse function probes or cannot resolve per-cpu symbols. this_rq and prev_rq are
 * reached through the tasks themselves; other runqueues by the address learnt when their CPU last switched.
 */

static __always_inline struct rq *task_rq(struct task_struct *p)
{
	struct cfs_rq *cfs_rq = GET(p, se.cfs_rq);

	return GET(cfs_rq, rq);
}

static __always_inline void note_cpu(__u32 cpu, struct rq *rq, bool idle)
{
	struct cpu_state *state = bpf_map_lookup_elem(MAP(cpu_states), &cpu);

	if (!state)
		return;
	state->rq = (__u64)rq;
	state->idle = idle;
	state->seen = 1;
}

/* idle_cpu() of a CPU known only by address: curr from its last switch, the rest from its runqueue. */
static __always_inline bool state_idle(const struct cpu_state *state)
{
	struct rq *rq = (struct rq *)state->rq;

	return state->idle && !BPF_CORE_READ(rq, nr_running) && !rq_wake_pending(BPF_CORE_READ, rq);
}

static __always_inline void read_states(__u64 *idle)
{
	for (__u32 cpu = 0; cpu < nr_cpus && cpu < MAX_CPUS; cpu++) {
		__u32 key = cpu; /* the verifier forgets what is in memory a helper was given */
		struct cpu_state *state = bpf_map_lookup_elem(MAP(cpu_states), &key);

		if (state && state->seen && state_idle(state))
			idle[cpu / 64] |= 1ULL << (cpu % 64);
	}
}

/* Whether the idle state kept from switches is what a directly readable runqueue says. */
static __always_inline void check_state(struct stats *st, __u32 cpu, struct rq *rq)
{
	struct cpu_state *state = bpf_map_lookup_elem(MAP(cpu_states), &cpu);

	if (!state || !state->seen)
		return;
	st->idle_checked++;
	if (((__u64)GET(rq, curr) == (__u64)GET(rq, idle)) != state->idle)
		st->idle_mismatch++;
}

static __always_inline void exit_masks(struct slot *slot)
{
	if (!slot->open)
		return;
	for (int i = 0; i < WORDS; i++)
		slot->w.idle_exit[i] = 0;
	read_states(slot->w.idle_exit);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking_tracepoint, struct task_struct *p)
{
	struct task_struct *cur = CURRENT();
	struct rq *rq = task_rq(cur), *prev_rq = task_rq(p);
	struct slot *slot = this_slot();
	struct stats *st = this_stats();
	struct wakeup *w;

	if (!slot || !st)
		return 0;
	st->waking++;
	exit_masks(slot);
	slot = open_slot(ctx, cur, p);
	if (!slot)
		return 0;
	w = &slot->w;
	fill_rqs(w, rq, prev_rq, llc_domain(rq), llc_domain(prev_rq));
	fill_loads(w, cur, p);
	for (int i = 0; i < WORDS; i++)
		w->idle[i] = w->idle_exit[i] = w->sched_idle[i] = 0;
	w->has_masks = 2;
	read_states(w->idle);
	check_state(st, w->cpu, rq);
	check_state(st, w->wakee_cpu, prev_rq);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup_tracepoint, struct task_struct *p)
{
	struct slot *slot = this_slot();

	if (!slot || slot->task != (__u64)p)
		return 0;
	exit_masks(slot);
	flush(ctx, slot, CURRENT());
	return 0;
}
