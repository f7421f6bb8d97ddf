/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the probes write and Python reads. Field names here are the column names of the trace; their units and
 * meaning stand in trace.py, and numpy dtypes are derived from this file's BTF, so the two sides cannot drift.
 *
 * Every record begins with the same 16 bytes. seq counts the records this CPU tried to write to this ring, lost
 * ones included, so a gap in it is a loss window.
 */
#ifndef WAKESCOPE_RECORDS_H
#define WAKESCOPE_RECORDS_H

/* CPU masks hold WORDS * 64 CPUs. Two objects are built, for machines of up to 64 and up to 512 CPUs. */
#ifndef WORDS
#define WORDS 1
#endif

#define LEVELS 8 /* domains of one CPU: SMT, CLS, MC, PKG and a few NUMA levels */

#define HEADER                                                                                                         \
	__u64 ts;                                                                                                      \
	__u32 seq;                                                                                                     \
	__u16 cpu;                                                                                                     \
	__u16 kind

enum outcome {
	OUTCOME_PLACED, /* select_task_rq_fair ran (decision), or could have (tracepoint) */
	OUTCOME_SELF, /* waker woke itself */
	OUTCOME_QUEUED, /* still on a runqueue: ttwu_runnable */
	OUTCOME_DELAYED, /* on a runqueue with its dequeue delayed (6.12) */
	OUTCOME_PINNED, /* nr_cpus_allowed == 1 */
	OUTCOME_MIGRATION_DISABLED,
	OUTCOME_NOT_FAIR, /* another class places it */
	OUTCOME_WAKELIST, /* queued to the CPU it is still leaving: ttwu_queue_wakelist */
	OUTCOME_FORK, /* select_task_rq_fair for a new task */
	OUTCOME_EXEC, /* select_task_rq_fair for an exec */
};

enum context { CONTEXT_TASK, CONTEXT_SOFTIRQ, CONTEXT_HARDIRQ, CONTEXT_NMI, CONTEXT_UNKNOWN };

struct wakeup {
	HEADER;
	__u64 ts_exit;
	__u64 jiffies;
	__u64 waker_start;
	__u64 wakee_start;
	__s32 waker_pid;
	__s32 wakee_pid;
	__u32 waker_tag;
	__u32 wakee_tag;
	__u32 waker_last_wakee;
	__u32 wakee_last_wakee;
	__u32 waker_flips;
	__u32 waker_flips_exit;
	__u32 wakee_flips;
	__u32 wakee_flips_exit;
	__u64 waker_decay_ts;
	__u64 wakee_decay_ts;
	__u64 waker_decay_ts_exit;
	__u64 jiffies_exit;
	__u64 this_load_exit;
	__u64 prev_load_exit;
	__u32 waker_last_wakee_exit;
	__u32 wake_flags;
	__u32 sd_flag;
	__u32 waker_flags;
	__s16 prev_cpu;
	__s16 chosen_cpu;
	__s16 recent_used_cpu;
	__s16 wakee_cpu;
	__s16 waker_prio;
	__s16 wakee_prio;
	__s16 waker_nr_allowed;
	__s16 wakee_nr_allowed;
	__u8 outcome;
	__u8 context;
	__u8 waker_policy;
	__u8 wakee_policy;
	__u32 llc_size;
	__u64 wakee_load;
	__u64 wakee_h_load;
	__u64 waker_h_load;
	__u64 this_load;
	__u64 prev_load;
	__u64 wakee_util;
	__u32 this_capacity;
	__u32 prev_capacity;
	__u32 this_nr_running;
	__u32 prev_nr_running;
	__u32 this_h_nr_queued;
	__u32 this_h_nr_runnable;
	__s32 this_nr_idle_scan;
	__s32 prev_nr_idle_scan;
	__s8 this_has_idle_cores;
	__s8 prev_has_idle_cores;
	__s8 load_depth;
	__s8 has_masks;
	__s32 wakee_preferred_nid;
	__u64 this_avg_idle;
	__u64 this_avg_scan_cost;
	__u64 waker_migrate_retry;
	__u64 wakee_migrate_retry;
	__u32 waker_scan_period;
	__u32 wakee_scan_period;
	__s32 affine_attempts;
	__s32 affine_moves;
	__u32 this_nr_running_exit;
	__u32 prev_nr_running_exit;
	__s32 this_nr_idle_scan_exit;
	__s32 prev_nr_idle_scan_exit;
	__s32 this_has_idle_cores_exit;
	__s32 prev_has_idle_cores_exit;
	__u64 idle[WORDS];
	__u64 idle_exit[WORDS];
	__u64 sched_idle[WORDS];
	__u64 sched_idle_exit[WORDS];
	__u64 allowed[WORDS];
};

struct switched {
	HEADER;
	__s32 prev_pid;
	__s32 next_pid;
	__u32 prev_state;
	__s16 next_prio;
	__u8 preempt;
	__u8 prev_on_rq;
};

/* One answer the kernel got inside a decision (tier deep); wakeup_seq is the seq of the decision it belongs to. */
enum consulted { CONSULTED_AVAILABLE_IDLE, CONSULTED_IDLE, CONSULTED_SHARE_CACHE, CONSULTED_H_LOAD };

struct consult {
	HEADER;
	__u64 answer;
	__u32 wakeup_seq;
	__s16 asked_cpu;
	__s16 asked_cpu2;
};

/* What find_idlest_cpu() reads of one CPU for a fork or exec, at entry of the decision; at its exit again if something
 * is different then. */
enum load_kind { LOAD_ENTRY, LOAD_EXIT };
enum running { RUNNING_OTHER, RUNNING_IDLE, RUNNING_SELF };

struct load {
	HEADER;
	__u64 load;
	__u64 idle_stamp;
	__u32 wakeup_seq;
	__s16 asked_cpu;
	__u8 curr;
	__u8 own_queued;
	__u32 runnable;
	__u32 util;
	__u32 util_est;
	__u32 nr_running;
	__u32 nr_idle;
	__u32 ttwu_pending;
	__u32 exit_latency;
	__u32 own_load;
	__u32 own_runnable;
	__u32 own_util;
	__u32 own_util_est;
	__u32 imbalance;
	__u32 capacity[LEVELS];
};

/* The rarer events share one ring and one size; kind says which. */
enum event_kind { EVENT_MIGRATION = 1, EVENT_NUMA, EVENT_TASK, EVENT_HOTPLUG };

struct migration {
	HEADER;
	__s32 pid;
	__s32 by_pid;
	__s16 orig_cpu;
	__s16 dest_cpu;
	__u8 in_wakeup;
	__u8 pad[3];
	__u64 pad2[4];
};

enum numa_event { NUMA_MOVE, NUMA_STICK, NUMA_SWAP, NUMA_FAULT, NUMA_FIND };

struct numa {
	HEADER;
	__s32 pid;
	__s32 dst_pid;
	__s16 src_cpu;
	__s16 dst_cpu;
	__s16 src_nid;
	__s16 dst_nid;
	__u8 event;
	__u8 flags;
	__s16 preferred_nid;
	__u32 scan_period;
	__u64 migrate_retry;
	__u64 jiffies;
	__u32 pages;
	__s16 task_imp;
	__s16 group_imp;
};

enum task_event { TASK_SNAPSHOT, TASK_NEW, TASK_RENAME, TASK_EXIT };

struct task {
	HEADER;
	__u64 start;
	__s32 pid;
	__s32 tgid;
	__s32 parent_pid;
	__u32 tag;
	__u8 event;
	__u8 comm[16];
	__u8 pad[7];
};

struct hotplug {
	HEADER;
	__s32 target_cpu;
	__u8 online;
	__u8 pad[3];
	__u64 pad2[5];
};

/* One level of one CPU's domain chain, as the kernel holds it. */
struct domain {
	HEADER;
	__u32 level;
	__u32 flags;
	__u32 imbalance_pct;
	__u32 span_weight;
	__u32 nr_groups;
	__u32 groups_flags;
	__s32 llc_id;
	__s32 llc_size;
	__s32 imb_numa_nr;
	__u32 domain_level;
	__u8 name[16];
	__u64 span[WORDS];
	__u64 group_span[WORDS];
};

/* One group of a domain, in the order of the domain's ring; sgc stands for the address of what groups share. */
struct group {
	__u32 weight;
	__u32 flags;
	__u64 sgc;
	__u64 span[WORDS];
};

#endif
