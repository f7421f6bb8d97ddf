/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What find_idlest_cpu() (sched_balance_find_dst_cpu() from 6.10 on) reads of each CPU when a task is forked or execs:
 * one record a CPU at entry, and one at exit of each CPU of which something has changed.
 *
 * One CPU is one function of its own, which the verifier looks at once and not for each CPU. Of the task itself only an
 * exec's has a share in any load: a new one has never run (last_update_time 0), an exec's is current.
 */

ARRAY(entry_loads, BPF_MAP_TYPE_PERCPU_ARRAY, struct load, MAX_CPUS);

/* cpu_load_without(), cpu_runnable_without(), cpu_util_without(), task_running_on_cpu(): p's part in what they read. */
static __always_inline void fill_own(struct load *l, struct task_struct *p)
{
	__s8 depth;

	l->own_load = h_load(p, bpf_jiffies64(), &depth);
	l->own_runnable = GET(p, se.avg.runnable_avg);
	l->own_util = GET(p, se.avg.util_avg);
	l->own_util_est = task_util_est(&p->se.avg);
	l->own_queued = GET(p, on_rq) == 1; /* TASK_ON_RQ_QUEUED */
	if (depth < 0)
		l->own_load = UNKNOWN;
}

/* False for a CPU without domains, which is in nobody's groups. */
static __always_inline bool fill_load(struct load *l, __u32 cpu, enum load_kind kind)
{
	struct rq *here = this_rq(), *rq = cpu_rq(cpu);
	struct task_struct *cur = GET(here, curr);
	struct slot *slot = this_slot();
	struct stats *st = this_stats();
	struct cpuidle_state *state;
	struct sched_domain *sd;
	__u64 curr;

	if (!rq || !slot || !st)
		return false;
	sd = GET(rq, sd);
	if (!sd)
		return false;
	__builtin_memset(l, 0, sizeof(*l));
	HEAD(l, kind);
	l->wakeup_seq = st->tried[RING_WAKEUP]; /* the number the open decision will get */
	l->asked_cpu = cpu;
	l->load = GET(rq, cfs.avg.load_avg);
	l->runnable = GET(rq, cfs.avg.runnable_avg);
	l->util = GET(rq, cfs.avg.util_avg);
	l->util_est = cfs_util_est(&rq->cfs.avg);
	l->nr_running = GET(rq, nr_running);
	l->nr_idle = cfs_nr_idle(&rq->cfs);
	l->ttwu_pending = GET(rq, ttwu_pending);
	l->idle_stamp = GET(rq, idle_stamp);
	curr = (__u64)GET(rq, curr);
	l->curr = curr == (__u64)GET(rq, idle) ? RUNNING_IDLE : curr == slot->task ? RUNNING_SELF : RUNNING_OTHER;
	l->exit_latency = UNKNOWN;
	if (bpf_core_field_exists(rq->idle_state)) {
		state = GET(rq, idle_state);
		if (state)
			l->exit_latency = GET(state, exit_latency);
	}
	if (slot->task == (__u64)cur && cpu == task_cpu(cur) && GET(cur, se.avg.last_update_time))
		fill_own(l, cur);
	for (int i = 0; i < LEVELS; i++) {
		struct sched_group *own; /* a domain's first group is the one that holds its CPU */
		struct sched_group_capacity *sgc;

		if (!sd)
			break;
		own = GET(sd, groups);
		sgc = GET(own, sgc);
		l->capacity[i] = GET(sgc, capacity);
		if (GET(sgc, imbalance))
			l->imbalance |= 1 << i;
		sd = GET(sd, parent);
	}
	return true;
}

__noinline int load_entry(__u32 cpu)
{
	struct load *l = bpf_map_lookup_elem(MAP(entry_loads), &cpu);

	if (l && fill_load(l, cpu, LOAD_ENTRY))
		emit(NULL, MAP(load_rings), RING_LOAD, l, sizeof(*l));
	return 0;
}

__noinline int load_exit(__u32 cpu)
{
	struct load now, *l = bpf_map_lookup_elem(MAP(entry_loads), &cpu);
	__u64 changed = 0;

	if (!l || !fill_load(&now, cpu, LOAD_EXIT))
		return 0;
	for (int i = 2; i < sizeof(now) / 8; i++) /* behind the header */
		changed |= ((__u64 *)&now)[i] ^ ((__u64 *)l)[i];
	if (changed)
		emit(NULL, MAP(load_rings), RING_LOAD, &now, sizeof(now));
	return 0;
}

static __always_inline bool slow(const struct wakeup *w)
{
	return w->outcome == OUTCOME_FORK || w->outcome == OUTCOME_EXEC;
}

static __always_inline void loads_at_entry(const struct wakeup *w)
{
	if (slow(w))
		for (__u32 cpu = 0; cpu < nr_cpus && cpu < MAX_CPUS; cpu++)
			load_entry(cpu);
}

static __always_inline void loads_at_exit(const struct wakeup *w)
{
	if (slow(w))
		for (__u32 cpu = 0; cpu < nr_cpus && cpu < MAX_CPUS; cpu++)
			load_exit(cpu);
}
