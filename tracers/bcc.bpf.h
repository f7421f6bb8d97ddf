/* SPDX-License-Identifier: GPL-2.0-only */
/* What tracing programs and iterators give the other dialects, from a kprobe and a kretprobe, and by hand. */

/* The arguments of the task_numa_fault() a task is in, by its kernel's id: it may sleep there. */
struct fault {
	int mem_node;
	int pages;
	int flags;
};
ARRAY(numa_faults, BPF_MAP_TYPE_LRU_HASH, struct fault, 1024);

SEC("fentry/task_numa_fault")
int numa_fault_enter(__u64 *ctx)
{
	__u32 pid = bpf_get_current_pid_tgid();
	struct fault f = { ARG(ctx, 1), ARG(ctx, 2), ARG(ctx, 3) };

	bpf_map_update_elem(MAP(numa_faults), &pid, &f, BPF_ANY);
	return 0;
}

SEC("fexit/task_numa_fault")
int numa_fault(__u64 *ctx)
{
	__u32 pid = bpf_get_current_pid_tgid();
	struct fault *f = bpf_map_lookup_elem(MAP(numa_faults), &pid);

	return f ? numa_faulted(ctx, f->mem_node, f->pages, f->flags) : 0;
}

/* Where the walk over all tasks stands between two runs. */
struct cursor {
	__u64 home; /* the process it began at, and ends at; 0: not begun */
	__u64 leader;
	__u64 thread; /* the last task it saw; 0: it is done */
	__u64 start; /* of thread, which may be gone by the next run */
};
ARRAY(cursors, BPF_MAP_TYPE_ARRAY, struct cursor, 1);

#define LIST_POISON2_LOW 0x122 /* what list_del_rcu() leaves in prev, less its architecture's POISON_POINTER_DELTA */

static __always_inline bool unhashed(struct task_struct *p)
{
	unsigned long node[2];

	bpf_probe_read_kernel(node, sizeof(node), (void *)AT(p, thread_node));
	return (node[1] & 0xffff) == LIST_POISON2_LOW;
}

static __always_inline __u64 next_of(__u64 node)
{
	__u64 next = 0;

	bpf_probe_read_kernel(&next, sizeof(next), (void *)node);
	return next;
}

#define ENTRY(node, member) ((struct task_struct *)((node) - __builtin_offsetof(struct task_struct, member)))

/* for_each_process_thread() from current's process round to it again, in steps of at most 128 tasks, each under RCU as
 * every program is. Run by hand until it is done; where the task it stands at has been unhashed, it begins again. */
SEC("raw_tp/snapshot")
int task_snapshot(void *ctx)
{
	__u32 zero = 0;
	struct cursor *c = bpf_map_lookup_elem(MAP(cursors), &zero);
	struct task_struct *p, *leader;

	if (!c)
		return 0;
	p = (struct task_struct *)c->thread;
	leader = (struct task_struct *)c->leader;
	if (!c->home || GET(p, start_time) != c->start || unhashed(p)) {
		p = CURRENT();
		p = leader = GET(p, group_leader);
		c->home = (__u64)p;
	}
	for (int i = 0; i < 128; i++) {
		struct signal_struct *signal = GET(leader, signal);
		struct task t = {};

		if (GET(p, pid)) { /* init_task is in the list; nobody else's record has it */
			fill_task(&t, p, TASK_SNAPSHOT);
			emit(ctx, MAP(event_rings), RING_EVENT, &t, sizeof(t));
		}
		__u64 next = next_of(AT(p, thread_node));

		if (next != AT(signal, thread_head)) {
			p = ENTRY(next, thread_node);
			continue;
		}
		p = leader = ENTRY(next_of(AT(leader, tasks)), tasks);
		if ((__u64)p == c->home) {
			c->thread = 0;
			return 0;
		}
	}
	c->thread = (__u64)p;
	c->leader = (__u64)leader;
	c->start = GET(p, start_time);
	return 0;
}
