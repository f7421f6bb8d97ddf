/* SPDX-License-Identifier: GPL-2.0-only */
/* This CPU's domain chain as the scheduler holds it: run once on each CPU before a recording. */

ARRAY(domains, BPF_MAP_TYPE_ARRAY, struct domain, MAX_LEVELS);

/* Groups of all levels, MAX_GROUPS places for each; weight 0 ends a ring that is shorter. */
ARRAY(groups, BPF_MAP_TYPE_ARRAY, struct group, MAX_LEVELS * MAX_GROUPS);

static __always_inline void read_groups(struct domain *d, struct sched_domain *sd)
{
	struct sched_group *first = GET(sd, groups), *sg = first;

	if (!first)
		return;
	bpf_probe_read_kernel(d->group_span, sizeof(d->group_span), sched_group_span(first));
	if (bpf_core_field_exists(first->flags))
		d->groups_flags = GET(first, flags);
	for (__u32 i = 0; i < MAX_GROUPS; i++) {
		__u32 key = d->level * MAX_GROUPS + i;
		struct group *g = bpf_map_lookup_elem(MAP(groups), &key);

		if (!g)
			break;
		g->weight = 0;
		if (!sg)
			continue;
		d->nr_groups++;
		g->weight = GET(sg, group_weight);
		g->flags = bpf_core_field_exists(sg->flags) ? GET(sg, flags) : 0;
		g->sgc = (__u64)GET(sg, sgc);
		bpf_probe_read_kernel(g->span, sizeof(g->span), sched_group_span(sg));
		sg = GET(sg, next);
		if ((__u64)sg == (__u64)first)
			sg = NULL;
	}
}

static __always_inline int read_domains(struct rq *rq)
{
	struct sched_domain *sd = GET(rq, sd);

	for (__u32 level = 0; level < MAX_LEVELS; level++) {
		__u32 key = level; /* the verifier forgets what is in memory a helper was given */
		struct domain *d = bpf_map_lookup_elem(MAP(domains), &key);

		if (!d)
			break;
		__builtin_memset(d, 0, sizeof(*d));
		if (!sd)
			continue; /* span_weight 0: no such level */
		HEAD(d, 0);
		d->level = level;
		d->flags = GET(sd, flags);
		d->imbalance_pct = GET(sd, imbalance_pct);
		d->span_weight = GET(sd, span_weight);
		d->domain_level = GET(sd, level);
		if (bpf_core_field_exists(sd->imb_numa_nr))
			d->imb_numa_nr = GET(sd, imb_numa_nr);
		if (bpf_core_field_exists(sd->name))
			bpf_probe_read_kernel_str(d->name, sizeof(d->name), GET(sd, name));
		bpf_probe_read_kernel(d->span, sizeof(d->span), sched_domain_span(sd));
		read_groups(d, sd);
		sd = GET(sd, parent);
	}
	return 0;
}

SEC("raw_tp/domains")
int domains_decision(void *ctx)
{
	return read_domains(this_rq());
}

SEC("raw_tp/domains")
int domains_tracepoint(void *ctx)
{
	struct task_struct *cur = CURRENT();

	return read_domains(task_rq(cur));
}
