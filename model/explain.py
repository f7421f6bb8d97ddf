# SPDX-License-Identifier: GPL-2.0-only
"""One decision as a chain of reasons in kernel terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TraceError
from ..schema import NEVER, Outcome
from ..topology import Topology
from ..trace import Trace
from .affine import Affine
from .compiled import plain
from .explain_idlest import idlest_reasons
from .flips import record_wakee
from .idle import Path, scan_depth, test_idle_cores
from .kernels import policy_for
from .loads import NONE, Loads, find_loads
from .policy import Policy, Scan
from .reasons import Reason, Source
from .replay import RESULT, Certainty, decide, decide_new
from .select import Decision, select_task_rq_fair
from .topo import (
    SD_BALANCE_EXEC,
    SD_BALANCE_FORK,
    SD_BALANCE_WAKE,
    Machine,
    Row,
    cpumask_test_cpu,
    cpumask_weight_and,
    groups,
    machine,
)
from .wakeup import NO_CPU, UNKNOWN, Asked, Doubt, Wakeup, as_ints, fill, is_sync, new, scratch

MISSED = {
    Doubt.SYNC: "whether it is a sync wakeup (wake_flags)",
    Doubt.WIDE: "the flips of waker or wakee",
    Doubt.ALONE: "whether current is the only runnable task here (nr_running, h_nr_queued, h_nr_runnable)",
    Doubt.WEIGHT: "a load or capacity that wake_affine_weight compares",
    Doubt.KTHREAD: "whether current is a per-CPU kthread in task context",
    Doubt.IDLE_CORES: "has_idle_cores of the target's LLC",
    Doubt.SCAN_DEPTH: "how far the scan may go (nr_idle_scan, or avg_idle and avg_scan_cost)",
    Doubt.IDLE: "which CPUs are idle",
    Doubt.CAPACITY: "which CPUs fit the task (utilisation and clamps)",
    Doubt.SUMS: "the loads of whole nodes or LLCs",
    Doubt.RECENT: "what recent_used_cpu another kernel would have left",
    Doubt.GROUPS: "what the CPUs of each group carry, or which groups there are",
}

# Questions in the order in which the kernel comes to them: as far as the target, and from there on.
TO_TARGET = (Doubt.WIDE, Doubt.SYNC, Doubt.IDLE, Doubt.ALONE, Doubt.WEIGHT, Doubt.SUMS)
FROM_TARGET = (Doubt.CAPACITY, Doubt.IDLE, Doubt.KTHREAD, Doubt.RECENT, Doubt.IDLE_CORES, Doubt.SCAN_DEPTH)
FALLBACKS = (Path.FALLBACK_PREV, Path.FALLBACK_RECENT, Path.FALLBACK_TARGET)
U32 = 2**32 - 1
SCANS = (Path.SMT, Path.CORE, Path.CORE_SIBLING, Path.CPU, *FALLBACKS)


class Explanation:
    """The reasons for one row of schema.WAKEUPS under a policy, and the verdict.

    Works in plain Python, so that a single decision needs no compiler.
    """

    def __init__(self, row: Row, topology: Topology, policy: Policy, hz: int, loads: Loads = NONE) -> None:
        self.row = row
        self.policy = as_ints(policy)
        self.hz = hz
        self.machine: Machine = machine(topology)
        self.topology = topology
        self.w: Wakeup = scratch(topology)
        plain(fill)(self.w, row, self.policy, self.machine)
        self.result: Any = np.zeros(1, RESULT)[0]
        if plain(new)(row):
            plain(find_loads)(self.w, loads.find(np.array([row])), 0)
            self.groups = groups(topology)
            plain(decide_new)(self.policy, self.machine, self.groups, self.w, int(row["chosen_cpu"]), self.result)
            return
        plain(decide)(self.policy, self.machine, self.w, hz, int(row["chosen_cpu"]), self.result)
        self.decided = self._try(Doubt.NONE)

    def _try(self, answers: Doubt) -> tuple[Decision, list[int]]:
        """The decision with yes for some open questions and no for others, and the CPUs asked whether they idle."""
        self.w.answers, self.w.calls = answers.value, 0
        decision = plain(select_task_rq_fair)(self.policy, self.machine, self.w, self.hz)
        trail = self.w.trail[: self.w.calls]
        return decision, [int(cpu) for what, cpu, _ in trail if what == Asked.AVAILABLE_IDLE]

    def _tries(self, doubts: Doubt) -> list[tuple[Decision, list[int]]]:
        """The same for all answers to those of some questions that are asked."""
        asked = int(self.result["doubt"]) & doubts.value
        answers = [answer for answer in range(asked + 1) if answer & ~asked == 0]
        return [self._try(Doubt(answer)) for answer in answers]

    def _open(self, order: tuple[Doubt, ...], found: Callable[[Decision], Any]) -> Doubt:
        """The first question, in the kernel's order, by whose answer what is found differs; NONE if none does."""
        so_far = Doubt.NONE
        for doubt in order:
            so_far |= doubt
            if len({found(decision) for decision, _ in self._tries(so_far)}) > 1:
                return doubt
        return Doubt.NONE

    def reasons(self) -> list[Reason]:
        """The chain, in the order the kernel comes to it."""
        chain = self._wakeup()
        if self.w.sd_flag != SD_BALANCE_WAKE:
            where = (self.machine, self.groups)
            steps = idlest_reasons(self.policy, *where, self.w, Path(self.result["path"]))
            return [*chain, *steps, *self._missed()]
        if self.result["path"] == Path.CURRENT_CPU:
            return [*chain, Reason("select_task_rq_fair", "WF_CURRENT_CPU: the waking CPU", Source.DERIVED)]
        chain += self._flips()
        open_question = self._open(TO_TARGET, lambda decision: (decision.affine, decision.target))
        if open_question:
            stage = "select_task_rq_fair" if open_question == Doubt.WIDE else "wake_affine"
            return chain + self._stop(stage, open_question)
        return [*chain, self._affine(), *self._idle()]

    def _stop(self, stage: str, question: Doubt) -> list[Reason]:
        """The end of a chain at an open question."""
        chain = [Reason(stage, f"depends on {MISSED[question]}, which was not captured", Source.UNKNOWN)]
        if self.result["certainty"] != Certainty.UNDECIDABLE:
            text = f"CPU {self.result['cpu']}, whatever was missed"
            chain.append(Reason("select_task_rq_fair", text, Source.DERIVED))
        return chain + self._missed()

    def verdict(self) -> str:
        """What the model chose, what the kernel chose, and how sure the first is."""
        chosen = int(self.row["chosen_cpu"])
        certainty = Certainty(self.result["certainty"])
        if certainty == Certainty.UNDECIDABLE:
            among = "one of the CPUs" if self.result["possible"] else "none of the CPUs"
            return f"undecidable; the kernel chose CPU {chosen}, {among} the missed facts allow"
        agrees = "as the kernel" if self.result["cpu"] == chosen else f"but the kernel chose CPU {chosen}"
        raced = ", with something it looked at changing meanwhile" if certainty == Certainty.RACED else ""
        return f"CPU {self.result['cpu']} ({Path(self.result['path']).name.lower()}), {agrees}{raced}"

    def _wakeup(self) -> list[Reason]:
        w = self.w
        if w.sd_flag == SD_BALANCE_FORK:
            return [Reason("wake_up_new_task", f"CPU {w.cpu} forks a task from CPU {w.prev_cpu}", Source.MEASURED)]
        if w.sd_flag == SD_BALANCE_EXEC:
            return [Reason("sched_exec", f"the task on CPU {w.cpu} execs", Source.MEASURED)]
        text = f"CPU {w.cpu} wakes a task last on CPU {w.wakee_cpu}"
        if w.wakee_cpu != w.prev_cpu:
            text += f", its wake_cpu (prev) CPU {w.prev_cpu}"
        sync, more = self._sync()
        return [Reason("try_to_wake_up", text + sync, Source.MEASURED), *more]

    def _sync(self) -> tuple[str, list[Reason]]:
        """What wake_flags say, and what is made of it or missing."""
        flags, stage = int(self.row["wake_flags"]), "select_task_rq_fair"
        if flags == NEVER:
            text = "whether it is a sync wakeup was not captured (wake_flags)"
            unknown = [Reason(stage, text, Source.UNKNOWN)]
            exiting = [Reason(stage, "current is exiting: not sync", Source.DERIVED)]
            return "", unknown if self.w.sync == UNKNOWN else exiting
        not_exiting = 0
        if not plain(is_sync)(self.policy, flags, not_exiting):
            return ", not sync", []
        if self.w.sync == UNKNOWN:
            text = "whether current is exiting, and so not sync, was not captured (current.flags)"
            return ", sync", [Reason(stage, text, Source.UNKNOWN)]
        text = "sync, but current is exiting: not sync"
        return ", sync", [] if self.w.sync else [Reason(stage, text, Source.DERIVED)]

    def _flips(self) -> list[Reason]:
        w = self.w
        if w.waker_flips == UNKNOWN or w.wakee_flips == UNKNOWN:
            return [Reason("wake_wide", "flips were not captured", Source.UNKNOWN)]
        if w.factor == UNKNOWN:
            return [Reason("wake_wide", "the factor was not captured", Source.UNKNOWN)]
        flips, stamp, _ = plain(record_wakee)(
            int(w.recorded),
            self.hz,
            int(w.waker_flips),
            int(w.waker_decay_ts),
            int(w.waker_last_wakee),
            int(w.wakee_tag),
        )
        decayed = "halved, " if stamp != w.waker_decay_ts else ""
        again = "the same wakee again" if w.waker_last_wakee == w.wakee_tag else "another wakee than last time"
        recorded = f"waker's flips {w.waker_flips}: {decayed}{again}, now {flips}"
        master, slave = max(flips, int(w.wakee_flips)), min(flips, int(w.wakee_flips))
        product = (slave * int(w.factor)) & U32
        wraps = f", in 32 bits {product}" if product != slave * w.factor else ""
        if slave < w.factor:
            why = f"slave {slave} < factor {w.factor}: not wide"
        elif master < product:
            why = f"master {master} < slave {slave} x factor {w.factor}{wraps}: not wide"
        else:
            why = f"slave {slave} >= factor {w.factor} and master {master} >= slave x factor{wraps}: wide"
        return [Reason("record_wakee", recorded, Source.DERIVED), Reason("wake_wide", why, Source.DERIVED)]

    def _affine(self) -> Reason:
        w, rule = self.w, Affine(self.result["affine"])
        this, target = int(w.cpu), int(self.result["target"])
        text = {
            Affine.WIDE: "wide, so prev stays the target",
            Affine.DISALLOWED: f"CPU {this} is not allowed, so prev stays the target",
            Affine.SAME: "prev is the waking CPU: nothing to choose",
            Affine.NO_DOMAIN: "no domain with SD_WAKE_AFFINE holds both: prev stays the target",
            Affine.THIS_IDLE: f"CPU {this} is idle and shares its cache with prev: CPU {this}",
            Affine.BOTH_IDLE: f"CPU {this} is idle and shares its cache with prev, but prev is idle too: prev",
            Affine.SYNC: f"sync, and current is the only runnable task of CPU {this} ({self._running()}): CPU {this}",
            Affine.PREV_IDLE: "prev is idle: prev",
            Affine.SYNC_LOAD: f"sync, and current's load {w.waker_h_load} > CPU {this}'s {w.this_load}: CPU {this}",
            Affine.WEIGHT_THIS: f"{self._weights()}: CPU {this}",
            Affine.WEIGHT_PREV: f"{self._weights()}: prev",
            Affine.UNDECIDED: "WA_IDLE finds nothing and WA_WEIGHT is off: prev",
            Affine.NEVER: "wake_affine always refuses: prev",
            Affine.SHARED_PULL: f"CPU {this} and prev share their cache: CPU {this}",
            Affine.SHARED_KEEP: f"CPU {this} and prev share their cache: prev",
        }[rule]
        stage = "wake_affine" if rule >= Affine.THIS_IDLE else "select_task_rq_fair"
        if stage == "wake_affine":
            text += f" (target {target}, domain {self._domain()})"
        return Reason(stage, text, Source.DERIVED)

    def _running(self) -> str:
        delayed = f", {self.w.this_nr_delayed} of them delayed" if self.policy.sync_runnable else ""
        return f"nr_running {self.w.this_nr_running}{delayed}"

    def _weights(self) -> str:
        w = self.w
        current = f" - current's {w.waker_h_load}" if w.sync == 1 else ""
        return (
            f"loads: this ({w.this_load}{current} + wakee's {w.wakee_h_load}) on capacity {w.this_capacity} against "
            f"prev ({w.prev_load} - {w.wakee_h_load}) on {w.prev_capacity}"
        )

    def _domain(self) -> str:
        for sd in self.topology.chain(int(self.w.cpu)):
            if "WAKE_AFFINE" in sd.flags and int(self.w.prev_cpu) in sd.span:
                return f"{sd.name}, imbalance_pct {sd.imbalance_pct}"
        return "none"

    def _idle(self) -> list[Reason]:
        """What select_idle_sibling looked at, CPU by CPU, and the check that returned."""
        w, path, cpu = self.w, Path(self.result["path"]), int(self.result["cpu"])
        question = self._open(FROM_TARGET, lambda decision: (decision.path, decision.cpu))
        chain = self._looks(question)
        if path in SCANS and question in (Doubt.NONE, Doubt.IDLE_CORES, Doubt.SCAN_DEPTH):
            chain += self._limits()
        if question:
            return chain + self._stop("select_idle_sibling", question)
        nothing = self._nothing()
        said = f"CPU {cpu}"
        text = {
            Path.TARGET: f"the target is usable: {said}",
            Path.PREV: f"prev shares the target's cache and is usable: {said}",
            Path.KTHREAD: f"current is a per-CPU kthread that wakes what queued its work: stack on {said}",
            Path.RECENT: f"recent_used_cpu {w.recent_used_cpu} shares the target's cache and is usable: {said}",
            Path.NO_LLC: f"the target has no LLC domain: {said}",
            Path.SMT: f"an idle SMT sibling: {said}",
            Path.CORE: f"a core all of whose threads are idle: {said}",
            Path.CORE_SIBLING: f"no core is idle; an idle thread met on the way: {said}",
            Path.CPU: f"the first usable CPU of the scan: {said}",
            Path.FALLBACK_PREV: f"{nothing}: prev, usable but in another cluster: {said}",
            Path.FALLBACK_RECENT: f"{nothing}: recent_used_cpu, in another cluster: {said}",
            Path.FALLBACK_TARGET: f"{nothing}: the target, busy as it is: {said}",
            Path.SLOW: "a domain has SD_BALANCE_WAKE: find_idlest_cpu, whose figures are not captured for wakeups",
            Path.ASYM: "CPUs differ in capacity: select_idle_capacity, which is not modelled",
        }[path]
        source = Source.UNKNOWN if cpu == NO_CPU else Source.DERIVED
        return [*chain, Reason("select_idle_sibling", text, source), *self._missed()]

    def _looks(self, question: Doubt) -> list[Reason]:
        """The CPUs asked whether they idle, as far as that does not depend on what was missed."""
        tries = self._tries(Doubt(sum(FROM_TARGET))) if question else [self.decided]
        looked = _common_start([cpus for _, cpus in tries])
        if not looked:
            return []
        # The probe of tier tracepoint keeps who idles from one switch to the next (has_masks 2).
        source = Source.MEASURED if self.w.has_masks == 1 else Source.DERIVED
        return [Reason("available_idle_cpu", "; ".join(self._looked(cpu) for cpu in looked), source)]

    def _looked(self, cpu: int) -> str:
        test = plain(cpumask_test_cpu)
        if test(cpu, self.w.idle):
            return f"CPU {cpu} idle"
        return f"CPU {cpu} runs only SCHED_IDLE tasks" if test(cpu, self.w.sched_idle) else f"CPU {cpu} busy"

    def _limits(self) -> list[Reason]:
        """What bounds the search for an idle CPU: what is known of it, and what is not."""
        w, here = self.w, self.result["target"] == self.w.cpu
        facts = {"has_idle_cores": w.this_has_idle_cores if here else w.prev_has_idle_cores}
        if self.policy.sis_util:
            facts["nr_idle_scan"] = w.this_nr_idle_scan if here else w.prev_nr_idle_scan
        elif self.policy.sis_prop:
            facts |= {"avg_idle": w.this_avg_idle, "avg_scan_cost": w.this_avg_scan_cost}
        order = "core, CPU, SMT" if self.policy.scan == Scan.CORE_CPU_SMT else "SMT, then core or CPU"
        known = ", ".join(f"{name} {value}" for name, value in facts.items() if value != UNKNOWN)
        unknown = ", ".join(name for name, value in facts.items() if value == UNKNOWN)
        chain = []
        if known:
            chain.append(Reason("select_idle_cpu", f"{known}; search order {order}", Source.MEASURED))
        if unknown:
            chain.append(Reason("select_idle_cpu", f"not captured: {unknown}", Source.UNKNOWN))
        return chain

    def _nothing(self) -> str:
        """What the scan of the target's LLC came to where it found nothing."""
        w, policy, target = self.w, self.policy, int(self.result["target"])
        if policy.scan == Scan.GROUPS or self.result["path"] not in FALLBACKS:
            return "nothing found"
        if self.result["doubt"] & (Doubt.IDLE_CORES | Doubt.SCAN_DEPTH).value:
            return "no CPU is taken by the scan, however far it goes"
        cores = self.machine.smt_active and plain(test_idle_cores)(w, target)
        whole_cores = bool(cores) and policy.scan != Scan.CORE_CPU_SMT
        nr = plain(scan_depth)(policy, self.machine, w, whole_cores, target)
        if nr == 1:
            why = f"avg_idle {w.this_avg_idle} / 512 < avg_scan_cost {w.this_avg_scan_cost} + 1"
            if policy.sis_util:
                why = "nr_idle_scan is 0"
            elif not self.machine.cpus[w.cpu].llc:
                why = f"CPU {w.cpu} has no LLC domain"
            return f"the scan of the LLC's CPUs is not begun, as {why}"
        span = self.machine.cpus[target].llc_span
        scanned = plain(cpumask_weight_and)(span, span if policy.scan_all else w.allowed)
        if whole_cores or scanned < nr:
            return "nothing found"
        return f"the scan is given up after {nr - 1} CPU{'' if nr == 2 else 's'}"

    def _missed(self) -> list[Reason]:
        asked = int(self.result["doubt"])
        return [Reason("", f"missed: {text}", Source.UNKNOWN) for doubt, text in MISSED.items() if asked & doubt.value]


def _common_start(lists: list[list[int]]) -> list[int]:
    alike = 0
    for values in zip(*lists, strict=False):
        if len(set(values)) > 1:
            break
        alike += 1
    return lists[0][:alike]


def explain(row: Row, topology: Topology, policy: Policy, hz: int, loads: Loads = NONE) -> tuple[list[Reason], str]:
    """The chain of reasons for one row of schema.WAKEUPS, outcome PLACED, FORK or EXEC, and the verdict in a sentence.

    hz: ticks a second of the traced kernel; loads: of the trace.
    """
    explanation = Explanation(row, topology, policy, hz, loads)
    return explanation.reasons(), explanation.verdict()


def explain_wakeup(trace: Trace, number: int) -> tuple[list[Reason], str]:
    """explain() for a row of a trace's wakeups table, under its own kernel's policy.

    Raises TraceError if there is no such row, or it never came to placement; ModelError if the kernel is not modelled.
    """
    rows = trace.rows("wakeups")
    if not 0 <= number < rows:
        raise TraceError(f"{trace.path} has no wakeup {number}: its {rows:,} are numbered from 0")
    row = trace.array("wakeups")[number]
    if row["outcome"] not in (Outcome.PLACED, Outcome.FORK, Outcome.EXEC):
        raise TraceError(f"wakeup {number} never came to placement: {Outcome(row['outcome']).name.lower()}")
    return explain(row, trace.topology, policy_for(trace.meta).policy, trace.meta.get("hz") or 250, Loads.of(trace))
