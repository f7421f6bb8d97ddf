/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel types the probes touch, with only the members they touch. preserve_access_index makes libbpf
 * relocate every access against the running kernel's BTF; a member that moved, changed size or is absent is found
 * out there (integers are unsigned here, since libbpf narrows only unsigned loads: on_rq became a byte by 7.3). For
 * BCC, offsets.py lays each structure out as on this kernel. All kernel drift is handled in this file: a change is one
 * comment with its commit, the flavour types that describe it, and one inline getter, so that the probes read the same
 * on every kernel.
 */
#ifndef WAKESCOPE_KERNEL_H
#define WAKESCOPE_KERNEL_H

#ifndef BCC
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

struct cpumask; /* read whole: its first member is the bitmap */

struct sched_avg {
	__u64 last_update_time;
	unsigned long load_avg;
	unsigned long runnable_load_avg;
	unsigned long runnable_avg;
	unsigned long util_avg;
	unsigned int util_est;
};

struct rq;
struct sched_entity;

struct cfs_rq {
	struct sched_avg avg;
	unsigned long h_load;
	__u64 last_h_load_update;
	struct rq *rq;
	unsigned int h_nr_queued;
	unsigned int h_nr_runnable;
	unsigned int idle_h_nr_running;
};

struct sched_entity {
	struct sched_avg avg;
	struct cfs_rq *cfs_rq;
	struct sched_entity *parent;
	unsigned char sched_delayed;
};

struct sched_domain_shared {
	unsigned int has_idle_cores;
	unsigned int nr_idle_scan;
};

struct sched_group_capacity {
	unsigned long capacity;
	unsigned int imbalance;
};

struct sched_group {
	struct sched_group *next;
	unsigned int group_weight;
	struct sched_group_capacity *sgc;
	unsigned int flags;
	unsigned long cpumask[0];
};

struct sched_domain {
	struct sched_domain *parent;
	struct sched_group *groups;
	unsigned int imbalance_pct;
	unsigned int flags;
	unsigned int level;
	unsigned int imb_numa_nr;
	__u64 avg_scan_cost;
	char *name;
	struct sched_domain_shared *shared;
	unsigned int span_weight;
	unsigned long span[0];
};

struct sched_statistics {
	__u64 nr_wakeups_affine;
	__u64 nr_wakeups_affine_attempts;
};

struct signal_struct {
	unsigned long thread_head[2];
};

struct thread_info {
	unsigned int cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	unsigned int on_rq;
	unsigned int on_cpu;
	unsigned int wake_cpu;
	unsigned int recent_used_cpu;
	unsigned int wakee_flips;
	unsigned long wakee_flip_decay_ts;
	struct task_struct *last_wakee;
	unsigned int prio;
	unsigned int policy;
	unsigned int nr_cpus_allowed;
	struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	struct sched_entity se;
	struct sched_statistics stats;
	unsigned long tasks[2];
	unsigned long thread_node[2];
	struct signal_struct *signal;
	struct task_struct *group_leader;
	__s32 pid;
	__s32 tgid;
	struct task_struct *real_parent;
	__u64 start_time;
	char comm[16];
	unsigned int __state;
	int numa_preferred_nid;
	unsigned int numa_scan_period;
	unsigned long numa_migrate_retry;
};

struct task_numa_env {
	struct task_struct *p;
	int src_cpu;
	int dst_nid;
	struct task_struct *best_task;
	int best_cpu;
};

struct cpuidle_state {
	unsigned int exit_latency;
};

struct rq {
	unsigned int nr_running;
	unsigned int ttwu_pending;
	struct llist_node *wake_list;
	struct task_struct *curr;
	struct task_struct *idle;
	unsigned long cpu_capacity;
	struct cfs_rq cfs;
	struct sched_domain *sd;
	__u64 avg_idle;
	__u64 idle_stamp;
	struct cpuidle_state *idle_state;
};

struct pcpu_hot {
	int preempt_count;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* 2f064a59a11f ("sched: Change task_struct::state", v5.14): before it the member was a long called state. */
struct task_struct___v513 {
	volatile long state;
};

/* bcf9033e5449 ("sched: move CPU field back into thread_info if THREAD_INFO_IN_TASK=y", v5.16): before it the CPU was
 * task_struct.cpu. */
struct task_struct___v515 {
	unsigned int cpu;
};

/* ceeadb83aea2 ("sched: Make struct sched_statistics independent of fair sched class", v5.16): before it the counters
 * were in se.statistics. */
struct sched_entity___v515 {
	struct sched_statistics statistics;
};

struct task_struct___v515s {
	struct sched_entity___v515 se;
};

/* 11137d384996 ("sched/fair: Simplify util_est", v6.8): before it util_est was a structure of two estimates. */
struct util_est {
	unsigned int enqueued;
	unsigned int ewma;
};

struct sched_avg___v67 {
	struct util_est util_est;
};

/* Some release after v6.12 and up to v6.18 renamed cfs_rq.idle_h_nr_running to h_nr_idle. */
struct cfs_rq___h_nr_idle {
	unsigned int h_nr_idle;
};

enum cpuhp_state {
	CPUHP_AP_ACTIVE = 1,
};

#ifndef BCC
#pragma clang attribute pop
#endif

static __always_inline __u32 task_state(struct task_struct *p)
{
	if (bpf_core_field_exists(p->__state))
		return GET(p, __state);
	return GET(((struct task_struct___v513 *)p), state);
}

static __always_inline __s16 task_cpu(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return GET(p, thread_info.cpu);
	return GET(((struct task_struct___v515 *)p), cpu);
}

static __always_inline bool task_has_stats(struct task_struct *p)
{
	return bpf_core_field_exists(p->stats.nr_wakeups_affine) ||
	       bpf_core_field_exists(((struct task_struct___v515s *)p)->se.statistics.nr_wakeups_affine);
}

static __always_inline __u32 task_affine_attempts(struct task_struct *p)
{
	if (bpf_core_field_exists(p->stats.nr_wakeups_affine_attempts))
		return GET(p, stats.nr_wakeups_affine_attempts);
	if (bpf_core_field_exists(((struct task_struct___v515s *)p)->se.statistics.nr_wakeups_affine_attempts))
		return GET(((struct task_struct___v515s *)p), se.statistics.nr_wakeups_affine_attempts);
	return 0;
}

static __always_inline __u32 task_affine_moves(struct task_struct *p)
{
	if (bpf_core_field_exists(p->stats.nr_wakeups_affine))
		return GET(p, stats.nr_wakeups_affine);
	if (bpf_core_field_exists(((struct task_struct___v515s *)p)->se.statistics.nr_wakeups_affine))
		return GET(((struct task_struct___v515s *)p), se.statistics.nr_wakeups_affine);
	return 0;
}

/* migration_disabled came with af449901b84c (v5.11). */
static __always_inline bool task_migration_disabled(struct task_struct *p)
{
	return bpf_core_field_exists(p->migration_disabled) && GET(p, migration_disabled);
}

/* sched_delayed came with 152e11f6df29 (v6.12). */
static __always_inline bool task_delayed(struct task_struct *p)
{
	return bpf_core_field_exists(p->se.sched_delayed) && GET(p, se.sched_delayed);
}

/* The load that placement compares. Until 11f10e5420f6 (v5.5) it was without what sleepers left behind, a sum that
 * 0dacee1bfa70 (v5.7) dropped. */
static __always_inline __u64 cfs_load(struct cfs_rq *cfs_rq, bool runnable)
{
	if (runnable && bpf_core_field_exists(cfs_rq->avg.runnable_load_avg))
		return GET(cfs_rq, avg.runnable_load_avg);
	return GET(cfs_rq, avg.load_avg);
}

/* Whether a remote wakeup is on its way. Until 126c2092e5c8 (v5.8) it was in a list of the runqueue's, an llist_head. */
#define rq_wake_pending(READ, rq)                                                                                      \
	(bpf_core_field_exists((rq)->ttwu_pending) ? !!READ(rq, ttwu_pending) : !!READ(rq, wake_list))

static __always_inline __u32 cfs_nr_idle(struct cfs_rq *cfs_rq)
{
	if (bpf_core_field_exists(cfs_rq->idle_h_nr_running))
		return GET(cfs_rq, idle_h_nr_running);
	if (bpf_core_field_exists(((struct cfs_rq___h_nr_idle *)cfs_rq)->h_nr_idle))
		return GET(((struct cfs_rq___h_nr_idle *)cfs_rq), h_nr_idle);
	return 0;
}

static __always_inline __u32 cfs_util_est(struct sched_avg *avg)
{
	if (bpf_core_field_exists(((struct sched_avg___v67 *)avg)->util_est.enqueued))
		return GET(((struct sched_avg___v67 *)avg), util_est.enqueued);
	return GET(avg, util_est);
}

#define UTIL_AVG_UNCHANGED 0x80000000U /* a flag in a task's util_est (5.14; before, the lowest bit) */

/* _task_util_est() */
static __always_inline __u32 task_util_est(struct sched_avg *avg)
{
	__u32 enqueued = cfs_util_est(avg) & ~UTIL_AVG_UNCHANGED, ewma = 0;

	if (bpf_core_field_exists(((struct sched_avg___v67 *)avg)->util_est.ewma))
		ewma = GET(((struct sched_avg___v67 *)avg), util_est.ewma);
	return enqueued > ewma ? enqueued : ewma;
}

/* The span bitmap follows the structure; its zero-length member is missing from the BTF of some builds. */
static __always_inline const void *sched_domain_span(struct sched_domain *sd)
{
	if (bpf_core_field_exists(sd->span))
		return (void *)sd + bpf_core_field_offset(struct sched_domain, span);
	return (void *)sd + bpf_core_type_size(struct sched_domain);
}

static __always_inline const void *sched_group_span(struct sched_group *sg)
{
	if (bpf_core_field_exists(sg->cpumask))
		return (void *)sg + bpf_core_field_offset(struct sched_group, cpumask);
	return (void *)sg + bpf_core_type_size(struct sched_group);
}

#endif
