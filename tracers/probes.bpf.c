// SPDX-License-Identifier: GPL-2.0-only
/*
 * The probes. A wakeup is followed from sched_waking to its decision in one per-CPU slot: try_to_wake_up() runs with
 * interrupts off from sched_waking on, so nothing but an NMI can come between on that CPU. The slot is written out
 * when the decision is known: at the return of select_task_rq_fair() (tier decision), or when this CPU next reports
 * the wakeup, another wakeup or a switch (tier tracepoint, and wakeups that never reach placement in any tier).
 *
 * Everything here runs under runqueue or pi locks: only per-CPU arrays, global arrays and ring buffers are used, loops
 * are bounded, and ring buffers are never asked to wake a reader.
 */
#include "dialect.h"
#include "records.h"
#include "kernel.h"

LICENSE("GPL");

#define MAX_CPUS (WORDS * 64)
#define MAX_LEVELS LEVELS
#define MAX_GROUPS (WORDS == 1 ? 64 : 256) /* groups of one domain: the cores of an LLC, the LLCs of a node, nodes */
#define MAX_DEPTH 8 /* nested task groups whose h_load is followed */
#define UNKNOWN 0xffffffffU
#define UNKNOWN64 0xffffffffffffffffULL

#define SCHED_EXT 7
#define MAX_RT_PRIO 100

/* Set by the loader from the running kernel's BTF and topology, before the programs are verified. */
CONSTANT(__u32, nr_cpus);
CONSTANT(__u32, sd_share_llc); /* the kernel's SD_SHARE_LLC (SD_SHARE_PKG_RESOURCES before 6.9) */
CONSTANT(__u32, sd_balance_exec); /* SD_BALANCE_EXEC; WF_EXEC has the same value from 5.15 on */
CONSTANT(__u32, sd_balance_fork);
CONSTANT(bool, select_has_sd_flag); /* select_task_rq_fair(p, prev_cpu, sd_flag, wake_flags), up to 5.12 */
CONSTANT(bool, compares_runnable); /* loads without those of sleepers, until 5.5 */
CONSTANT(bool, switch_has_state); /* sched_switch passes prev_state, from 5.18 */
CONSTANT(bool, stick_has_dst); /* sched_stick_numa passes a destination's task, from 5.7 (b2b2042b2047) */
CONSTANT(bool, decision_tier);
CONSTANT(__u32, hardirq_shift); /* of preempt_count: 24 from 7.3 on, where HARDIRQ_DISABLE lies below; else 16 */
CONSTANT(bool, schedstats);

enum ring { RING_WAKEUP, RING_SWITCH, RING_EVENT, RING_CONSULT, RING_LOAD, NR_RINGS };

RING_ARRAY(wakeup_rings);
RING_ARRAY(switch_rings);
RING_ARRAY(event_rings);
RING_ARRAY(consult_rings);
RING_ARRAY(load_rings);

struct stats {
	__u64 tried[NR_RINGS];
	__u64 lost[NR_RINGS];
	__u64 waking; /* sched_waking seen */
	__u64 decisions; /* select_task_rq_fair entries seen */
	__u64 idle_checked; /* idle state kept from switches, compared with the runqueue's own */
	__u64 idle_mismatch;
	__u64 address; /* see tag() */
};

ARRAY(stats, BPF_MAP_TYPE_PERCPU_ARRAY, struct stats, 1);

/* The wakeup under way on this CPU. */
struct slot {
	struct wakeup w;
	__u64 task; /* p, 0 if the slot is empty */
	bool open; /* not yet written out */
	bool decided; /* select_task_rq_fair entered for it */
	bool unseen; /* and would not be seen to enter for it */
};

ARRAY(slots, BPF_MAP_TYPE_PERCPU_ARRAY, struct slot, 1);

/* What sched_switch last said of each CPU: what tier tracepoint knows of idle CPUs. */
struct cpu_state {
	__u64 rq; /* address of its runqueue, once seen */
	__u8 idle;
	__u8 seen;
};
ARRAY(cpu_states, BPF_MAP_TYPE_ARRAY, struct cpu_state, MAX_CPUS);

/* Keeps every record's layout in this object's BTF, which Python derives its dtypes from. */
struct records {
	struct wakeup wakeup;
	struct switched switched;
	struct consult consult;
	struct load load;
	struct migration migration;
	struct numa numa;
	struct task task;
	struct hotplug hotplug;
	struct domain domain;
	struct group group;
	struct stats stats;
} *records;

static __always_inline struct stats *this_stats(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(MAP(stats), &zero);
}

static __always_inline struct slot *this_slot(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(MAP(slots), &zero);
}

/* Into this CPU's ring, nonzero if it is full. Kernels before 5.8 (457f44363a88) have perf buffers instead. */
static __always_inline long output(void *ctx, void *rings, void *record, __u32 size)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *rb;

	if (!HAS_RINGBUF)
		return bpf_perf_event_output(ctx, rings, BPF_F_CURRENT_CPU, record, size);
	rb = bpf_map_lookup_elem(rings, &cpu);
	return rb ? bpf_ringbuf_output(rb, record, size, BPF_RB_NO_WAKEUP) : -1;
}

/* Writes a record whose header is complete but for seq; ctx is its program's. */
static __always_inline void emit(void *ctx, void *rings, enum ring ring, void *record, __u32 size)
{
	struct stats *st = this_stats();

	if (!st)
		return;
	((struct switched *)record)->seq = st->tried[ring]++;
	if (output(ctx, rings, record, size))
		st->lost[ring]++;
}

#define HEAD(record, k)                                                                                                \
	do {                                                                                                           \
		(record)->ts = bpf_ktime_get_ns();                                                                     \
		(record)->cpu = bpf_get_smp_processor_id();                                                            \
		(record)->kind = (k);                                                                                  \
	} while (0)

/* A task's address as the trace shows it: enough to tell tasks apart, not to find them. The verifier forbids arithmetic
 * on a typed pointer, so it takes a detour through memory. */
static __always_inline __u32 tag(struct stats *st, const void *task)
{
	*(volatile __u64 *)&st->address = (__u64)task;
	return *(volatile __u64 *)&st->address >> 6;
}

static __always_inline struct sched_domain *llc_domain(struct rq *rq)
{
	struct sched_domain *sd = GET(rq, sd), *llc = NULL;

	for (int i = 0; i < MAX_LEVELS; i++) {
		if (!sd || !(GET(sd, flags) & sd_share_llc))
			break;
		llc = sd;
		sd = GET(sd, parent);
	}
	return llc;
}

/*
 * task_h_load() without its stores: h_load of p's cfs_rq as update_cfs_rq_h_load() would leave it (v6.1.4 fair.c),
 * climbing to the root or to the first level already refreshed in this jiffy, then down again.
 */
static __always_inline __u64 h_load(struct task_struct *p, __u64 now, __s8 *depth)
{
	struct cfs_rq *cfs_rq = GET(p, se.cfs_rq);
	struct sched_entity *se = GET(p, se.parent);
	__u64 avg[MAX_DEPTH], below[MAX_DEPTH], load;
	__u64 own = GET(cfs_rq, avg.load_avg);
	int level = 0;

	for (; level < MAX_DEPTH; level++) {
		if (!se || GET(cfs_rq, last_h_load_update) == now)
			break;
		avg[level] = GET(se, avg.load_avg);
		cfs_rq = GET(se, cfs_rq);
		below[level] = GET(cfs_rq, avg.load_avg);
		se = GET(se, parent);
	}
	*depth = level == MAX_DEPTH ? -1 : level;
	load = GET(cfs_rq, last_h_load_update) == now ? GET(cfs_rq, h_load) : GET(cfs_rq, avg.load_avg);
	for (int i = MAX_DEPTH - 1; i >= 0; i--)
		if (i < level)
			load = load * avg[i] / (below[i] + 1);
	return GET(p, se.avg.load_avg) * load / (own + 1);
}

/* Identity, flips and what else comes from the two tasks alone. */
static __always_inline void fill_tasks(struct wakeup *w, struct stats *st, struct task_struct *cur, struct task_struct *p)
{
	w->jiffies = bpf_jiffies64();
	w->waker_start = GET(cur, start_time);
	w->wakee_start = GET(p, start_time);
	w->waker_pid = GET(cur, pid);
	w->wakee_pid = GET(p, pid);
	w->waker_tag = tag(st, cur);
	w->wakee_tag = tag(st, p);
	w->waker_last_wakee = tag(st, GET(cur, last_wakee));
	w->wakee_last_wakee = tag(st, GET(p, last_wakee));
	w->waker_flips = w->waker_flips_exit = GET(cur, wakee_flips);
	w->wakee_flips = w->wakee_flips_exit = GET(p, wakee_flips);
	w->waker_decay_ts = w->waker_decay_ts_exit = GET(cur, wakee_flip_decay_ts);
	w->wakee_decay_ts = GET(p, wakee_flip_decay_ts);
	w->waker_last_wakee_exit = w->waker_last_wakee;
	w->wake_flags = UNKNOWN;
	w->sd_flag = 0;
	w->waker_flags = GET(cur, flags);
	w->prev_cpu = GET(p, wake_cpu);
	w->recent_used_cpu = GET(p, recent_used_cpu);
	w->wakee_cpu = w->chosen_cpu = task_cpu(p);
	w->waker_prio = GET(cur, prio);
	w->wakee_prio = GET(p, prio);
	w->waker_nr_allowed = GET(cur, nr_cpus_allowed);
	w->wakee_nr_allowed = GET(p, nr_cpus_allowed);
	w->context = CONTEXT_UNKNOWN;
	w->waker_policy = GET(cur, policy);
	w->wakee_policy = GET(p, policy);
	w->wakee_load = GET(p, se.avg.load_avg);
	w->wakee_util = GET(p, se.avg.util_avg);
	w->affine_attempts = w->affine_moves = -1;
	w->this_load_exit = w->prev_load_exit = UNKNOWN64;
	w->this_nr_running_exit = w->prev_nr_running_exit = UNKNOWN;
	w->this_nr_idle_scan_exit = w->prev_nr_idle_scan_exit = -1;
	w->this_has_idle_cores_exit = w->prev_has_idle_cores_exit = -1;
	for (int i = 0; i < WORDS; i++)
		w->sched_idle_exit[i] = 0;
	if (bpf_core_field_exists(p->numa_migrate_retry)) {
		w->wakee_preferred_nid = GET(p, numa_preferred_nid);
		w->waker_migrate_retry = GET(cur, numa_migrate_retry);
		w->wakee_migrate_retry = GET(p, numa_migrate_retry);
		w->waker_scan_period = GET(cur, numa_scan_period);
		w->wakee_scan_period = GET(p, numa_scan_period);
	} else {
		w->wakee_preferred_nid = -1;
		w->waker_migrate_retry = w->wakee_migrate_retry = UNKNOWN64;
		w->waker_scan_period = w->wakee_scan_period = UNKNOWN;
	}
	bpf_probe_read_kernel(w->allowed, sizeof(w->allowed), GET(p, cpus_ptr));
}

static __always_inline void fill_llc(struct sched_domain *llc, __s32 *nr_idle_scan, __s8 *has_idle_cores)
{
	struct sched_domain_shared *shared = llc ? GET(llc, shared) : NULL;

	*nr_idle_scan = -1;
	*has_idle_cores = -1;
	if (!shared)
		return;
	*has_idle_cores = !!GET(shared, has_idle_cores);
	if (bpf_core_field_exists(shared->nr_idle_scan))
		*nr_idle_scan = GET(shared, nr_idle_scan);
}

/* What the two runqueues and their LLC domains say. */
static __always_inline void fill_rqs(struct wakeup *w, struct rq *this_rq, struct rq *prev_rq,
				     struct sched_domain *this_llc, struct sched_domain *prev_llc)
{
	w->this_load = cfs_load(&this_rq->cfs, compares_runnable);
	w->prev_load = cfs_load(&prev_rq->cfs, compares_runnable);
	w->this_capacity = GET(this_rq, cpu_capacity);
	w->prev_capacity = GET(prev_rq, cpu_capacity);
	w->this_nr_running = GET(this_rq, nr_running);
	w->prev_nr_running = GET(prev_rq, nr_running);
	w->this_h_nr_queued = w->this_h_nr_runnable = UNKNOWN;
	if (bpf_core_field_exists(this_rq->cfs.h_nr_runnable)) {
		w->this_h_nr_queued = GET(this_rq, cfs.h_nr_queued);
		w->this_h_nr_runnable = GET(this_rq, cfs.h_nr_runnable);
	}
	w->this_avg_idle = GET(this_rq, avg_idle);
	w->llc_size = this_llc ? GET(this_llc, span_weight) : 1;
	w->this_avg_scan_cost = UNKNOWN64;
	if (this_llc && bpf_core_field_exists(this_llc->avg_scan_cost))
		w->this_avg_scan_cost = GET(this_llc, avg_scan_cost);
	fill_llc(this_llc, &w->this_nr_idle_scan, &w->this_has_idle_cores);
	fill_llc(prev_llc, &w->prev_nr_idle_scan, &w->prev_has_idle_cores);
}

static __always_inline void fill_loads(struct wakeup *w, struct task_struct *cur, struct task_struct *p)
{
	__s8 depth;

	w->waker_h_load = h_load(cur, w->jiffies, &depth);
	w->wakee_h_load = h_load(p, w->jiffies, &w->load_depth);
	if (depth < 0)
		w->load_depth = -1;
}

static __always_inline bool is_fair(struct task_struct *p)
{
	return GET(p, prio) >= MAX_RT_PRIO && GET(p, policy) != SCHED_EXT;
}

/* Why p may not reach placement, as try_to_wake_up() and select_task_rq() will find it. */
static __always_inline enum outcome expect(struct task_struct *cur, struct task_struct *p)
{
	if ((__u64)cur == (__u64)p)
		return OUTCOME_SELF;
	if (GET(p, on_rq))
		return task_delayed(p) ? OUTCOME_DELAYED : OUTCOME_QUEUED;
	if (!is_fair(p))
		return OUTCOME_NOT_FAIR;
	if (GET(p, nr_cpus_allowed) == 1)
		return OUTCOME_PINNED;
	if (task_migration_disabled(p))
		return OUTCOME_MIGRATION_DISABLED;
	return decision_tier ? OUTCOME_WAKELIST : OUTCOME_PLACED;
}

/* Whether p was seen on a runqueue, which only try_to_wake_up()'s second look, under the lock, makes certain. */
static __always_inline bool on_rq(const struct wakeup *w)
{
	return w->outcome == OUTCOME_QUEUED || w->outcome == OUTCOME_DELAYED;
}

/* Writes out a wakeup whose decision will not be seen to return; cur is still the waker. */
static __always_inline void flush(void *ctx, struct slot *slot, struct task_struct *cur)
{
	struct wakeup *w = &slot->w;
	struct stats *st;

	if (!slot->open)
		return;
	slot->open = false;
	st = this_stats();
	if (slot->decided || !st)
		return; /* its return went unseen: only one of the two probes is attached, at either end of a recording */
	w->ts_exit = bpf_ktime_get_ns();
	w->jiffies_exit = bpf_jiffies64();
	w->waker_flips_exit = GET(cur, wakee_flips);
	w->waker_decay_ts_exit = GET(cur, wakee_flip_decay_ts);
	w->waker_last_wakee_exit = tag(st, GET(cur, last_wakee));
	/* record_wakee() ran: p was dequeued after it was seen on a runqueue, and placed */
	if (!decision_tier && on_rq(w) &&
	    (w->waker_last_wakee_exit != w->waker_last_wakee || w->waker_decay_ts_exit != w->waker_decay_ts))
		w->outcome = OUTCOME_PLACED;
	if (slot->unseen && w->outcome == OUTCOME_WAKELIST) { /* or placed: it cannot be told */
		st->tried[RING_WAKEUP]++;
		st->lost[RING_WAKEUP]++;
		return;
	}
	emit(ctx, MAP(wakeup_rings), RING_WAKEUP, w, sizeof(*w));
}

static __always_inline struct slot *open_slot(void *ctx, struct task_struct *cur, struct task_struct *p)
{
	struct slot *slot = this_slot();
	struct stats *st = this_stats();

	if (!slot || !st)
		return NULL;
	flush(ctx, slot, cur);
	__builtin_memset(&slot->w, 0, sizeof(slot->w)); /* nothing of the last wakeup in one that is never placed */
	slot->task = (__u64)p;
	slot->open = true;
	slot->decided = slot->unseen = false;
	HEAD(&slot->w, 0);
	fill_tasks(&slot->w, st, cur, p);
	slot->w.outcome = expect(cur, p);
	slot->w.has_masks = 0;
	return slot;
}

#include "decision.bpf.h"
#ifndef BCC /* kretprobes do not see arguments */
#include "deep.bpf.h"
#endif
#include "tracepoint.bpf.h"
#include "events.bpf.h"
#include "domains.bpf.h"
#ifdef BCC
#include "bcc.bpf.h"
#endif
