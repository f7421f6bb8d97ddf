/* SPDX-License-Identifier: GPL-2.0-only */
/* Switches, migrations, NUMA balancing, tasks and CPU hotplug. */

SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)RAW_ARG(ctx, 1);
	struct task_struct *next = (struct task_struct *)RAW_ARG(ctx, 2);
	struct slot *slot = this_slot();
	struct switched s = {};

	if (slot) {
		if (!decision_tier)
			exit_masks(slot);
		flush(ctx, slot, prev);
		slot->task = 0;
	}
	HEAD(&s, 0);
	s.prev_pid = GET(prev, pid);
	s.next_pid = GET(next, pid);
	s.prev_state = switch_has_state ? RAW_ARG(ctx, 3) : task_state(prev);
	s.next_prio = GET(next, prio);
	s.preempt = RAW_ARG(ctx, 0) & 1;
	s.prev_on_rq = !!GET(prev, on_rq);
	if (!decision_tier && (!s.prev_pid || !s.next_pid)) /* only then does the CPU become idle or busy */
		note_cpu(s.cpu, task_rq(next), !s.next_pid);
	emit(ctx, MAP(switch_rings), RING_SWITCH, &s, sizeof(s));
	return 0;
}

/* Within this CPU's own wakeup of p this is the decision taking effect. It is recorded apart only where tier decision
 * saw another CPU returned: select_task_rq() fell back to an allowed one. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(migrate_task, struct task_struct *p, int dest_cpu)
{
	struct slot *slot = this_slot();
	struct migration m = {};

	/* off its runqueue: a task that balancing moves is marked TASK_ON_RQ_MIGRATING, also if its wakeup came last here */
	if (slot && slot->task == (__u64)p && !GET(p, on_rq)) {
		if (!decision_tier || slot->w.chosen_cpu == dest_cpu || !slot->decided) {
			slot->w.chosen_cpu = dest_cpu;
			if (!decision_tier && on_rq(&slot->w))
				slot->w.outcome = OUTCOME_PLACED;
			return 0;
		}
		m.in_wakeup = 1;
	}
	HEAD(&m, EVENT_MIGRATION);
	m.pid = GET(p, pid);
	m.by_pid = bpf_get_current_pid_tgid();
	m.orig_cpu = task_cpu(p);
	m.dest_cpu = dest_cpu;
	emit(ctx, MAP(event_rings), RING_EVENT, &m, sizeof(m));
	return 0;
}

static __always_inline void fill_numa(struct numa *n, struct task_struct *p, enum numa_event event)
{
	HEAD(n, EVENT_NUMA);
	n->pid = GET(p, pid);
	n->event = event;
	n->jiffies = bpf_jiffies64();
	n->preferred_nid = -1;
	if (bpf_core_field_exists(p->numa_migrate_retry)) {
		n->preferred_nid = GET(p, numa_preferred_nid);
		n->scan_period = GET(p, numa_scan_period);
		n->migrate_retry = GET(p, numa_migrate_retry);
	}
}

static __always_inline void numa_moved(void *ctx, struct task_struct *p, int src_cpu, int dst_cpu, int dst_pid,
				       enum numa_event event)
{
	struct numa n = {};

	fill_numa(&n, p, event);
	n.src_cpu = src_cpu;
	n.dst_cpu = dst_cpu;
	n.dst_pid = dst_pid;
	n.src_nid = n.dst_nid = -1; /* from topology.json, by CPU */
	emit(ctx, MAP(event_rings), RING_EVENT, &n, sizeof(n));
}

SEC("tp_btf/sched_move_numa")
int BPF_PROG(move_numa, struct task_struct *p, int src_cpu, int dst_cpu)
{
	numa_moved(ctx, p, src_cpu, dst_cpu, 0, NUMA_MOVE);
	return 0;
}

/* (src_tsk, src_cpu, dst_tsk, dst_cpu), dst_tsk NULL if there was none; until 5.7 (tsk, src_cpu, dst_cpu). */
SEC("tp_btf/sched_stick_numa")
int BPF_PROG(stick_numa, struct task_struct *p, int src_cpu)
{
	struct task_struct *dst;

	if (!stick_has_dst) {
		numa_moved(ctx, p, src_cpu, RAW_ARG(ctx, 2), 0, NUMA_STICK);
		return 0;
	}
	dst = (struct task_struct *)RAW_ARG(ctx, 2);
	numa_moved(ctx, p, src_cpu, RAW_ARG(ctx, 3), dst ? GET(dst, pid) : 0, NUMA_STICK);
	return 0;
}

SEC("tp_btf/sched_swap_numa")
int BPF_PROG(swap_numa, struct task_struct *p, int src_cpu, struct task_struct *dst, int dst_cpu)
{
	numa_moved(ctx, p, src_cpu, dst_cpu, dst ? GET(dst, pid) : 0, NUMA_SWAP);
	return 0;
}

/* task_numa_fault(last_cpupid, mem_node, pages, flags) of current, at its return: the retry deadline it set is seen. */
static __always_inline int numa_faulted(void *ctx, int mem_node, int pages, int flags)
{
	struct numa n = {};

	fill_numa(&n, GET(this_rq(), curr), NUMA_FAULT);
	n.src_cpu = n.dst_cpu = n.cpu;
	n.src_nid = -1;
	n.dst_nid = mem_node;
	n.pages = pages;
	n.flags = flags;
	emit(ctx, MAP(event_rings), RING_EVENT, &n, sizeof(n));
	return 0;
}

#ifndef BCC
SEC("fexit/task_numa_fault")
int BPF_PROG(numa_fault, int last_cpupid, int mem_node, int pages, int flags)
{
	return numa_faulted(ctx, mem_node, pages, flags);
}

/* task_numa_migrate() has looked for a place on env->dst_nid. best_cpu and best_task are the best so far, of the nodes
 * searched before as well; both weights are shares of 1000. */
SEC("fexit/task_numa_find_cpu")
int BPF_PROG(numa_find, struct task_numa_env *env, long task_imp, long group_imp)
{
	struct task_struct *best = GET(env, best_task);
	struct numa n = {};

	fill_numa(&n, GET(env, p), NUMA_FIND);
	n.src_cpu = GET(env, src_cpu);
	n.dst_cpu = GET(env, best_cpu);
	n.dst_pid = best ? GET(best, pid) : 0;
	n.src_nid = -1;
	n.dst_nid = GET(env, dst_nid);
	n.task_imp = task_imp;
	n.group_imp = group_imp;
	emit(ctx, MAP(event_rings), RING_EVENT, &n, sizeof(n));
	return 0;
}
#endif

static __always_inline void fill_task(struct task *t, struct task_struct *p, enum task_event event)
{
	struct task_struct *parent = GET(p, real_parent);
	struct stats *st = this_stats();

	HEAD(t, EVENT_TASK);
	t->start = GET(p, start_time);
	t->pid = GET(p, pid);
	t->tgid = GET(p, tgid);
	t->parent_pid = GET(parent, pid);
	if (st)
		t->tag = tag(st, p);
	t->event = event;
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), GET(p, comm));
}

SEC("tp_btf/task_newtask")
int BPF_PROG(task_new, struct task_struct *p)
{
	struct task t = {};

	fill_task(&t, p, TASK_NEW);
	emit(ctx, MAP(event_rings), RING_EVENT, &t, sizeof(t));
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *p, const char *comm)
{
	struct task t = {};

	fill_task(&t, p, TASK_RENAME);
	bpf_probe_read_kernel(t.comm, sizeof(t.comm), comm); /* GET(p, comm) still holds the old one */
	emit(ctx, MAP(event_rings), RING_EVENT, &t, sizeof(t));
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(task_exit, struct task_struct *p)
{
	struct task t = {};

	fill_task(&t, p, TASK_EXIT);
	emit(ctx, MAP(event_rings), RING_EVENT, &t, sizeof(t));
	return 0;
}

#ifndef BCC
/* Tasks that live when the recording begins. */
SEC("iter/task")
int task_snapshot(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct task t = {};

	if (!p)
		return 0;
	fill_task(&t, p, TASK_SNAPSHOT);
	emit(ctx, MAP(event_rings), RING_EVENT, &t, sizeof(t));
	return 0;
}
#endif

/* A CPU passing CPUHP_AP_ACTIVE enters or leaves the scheduling domains. */
SEC("tp_btf/cpuhp_enter")
int BPF_PROG(cpu_hotplug, unsigned int cpu, int target, int state)
{
	struct hotplug h = {};
	int active = bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_ACTIVE);

	if (state != active)
		return 0;
	HEAD(&h, EVENT_HOTPLUG);
	h.target_cpu = cpu;
	h.online = target >= active;
	emit(ctx, MAP(event_rings), RING_EVENT, &h, sizeof(h));
	return 0;
}

/* Writes out what this CPU still holds when the recording ends; run once on each CPU. */
SEC("raw_tp/flush")
int flush_decision(void *ctx)
{
	struct slot *slot = this_slot();

	if (slot)
		flush(ctx, slot, GET(this_rq(), curr));
	return 0;
}

SEC("raw_tp/flush")
int flush_tracepoint(void *ctx)
{
	struct slot *slot = this_slot();

	if (slot)
		flush(ctx, slot, CURRENT());
	return 0;
}
