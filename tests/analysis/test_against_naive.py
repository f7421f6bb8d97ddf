# SPDX-License-Identifier: GPL-2.0-only
"""The numbers of each section a second time: by plain loops over the rows as the files hold them.

Nothing of analysis/ is used here but the table under test and the labels of tasks. The traces of the corpus have no
loss, so only the definitions are computed again, not what loss does to them.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from statistics import median

import pytest
from wakescope.analysis.affine import df_affine_verdicts, df_pulls
from wakescope.analysis.balance import WITHIN_MS, df_crossings, df_migrations, df_undone_counts
from wakescope.analysis.bounces import df_bounces
from wakescope.analysis.fights import df_delay_retry, df_fights
from wakescope.analysis.flips import BINS, df_flippers, df_flips_over_time
from wakescope.analysis.graph import EDGE, df_edges
from wakescope.analysis.numa import df_numa_events, df_preferred, df_retries
from wakescope.analysis.placement import df_moves, df_outcomes, df_pairs
from wakescope.analysis.runqueue import df_runqueue
from wakescope.analysis.stacking import df_stacking, df_stacking_pairs
from wakescope.analysis.wide import df_wide
from wakescope.schema import NEVER64, Context, NumaEvent, Outcome
from wakescope.tests.analysis.naive import PLACED, RUNNABLE, Rows
from wakescope.tests.analysis.test_corpus import CORPUS

pytestmark = pytest.mark.parametrize("rows", CORPUS, indirect=True, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def rows(request):
    return Rows(request.param)


def test_placement(rows):
    outcomes = df_outcomes(rows.trace).set_index("outcome")["wakeups"].to_dict()
    assert outcomes == Counter(Outcome(row["outcome"]).name for row in rows.wakeups)
    moves = df_moves(rows.trace).set_index("distance")
    assert Counter(moves["moved"].to_dict()) == Counter(rows.far(r["prev_cpu"], r["chosen_cpu"]) for r in rows.decided)
    assert Counter(moves["from_waker"].to_dict()) == Counter(rows.far(r["cpu"], r["chosen_cpu"]) for r in rows.decided)
    pairs, kinds = Counter(), Counter()
    for row in rows.placed:
        if row["context"] in (Context.TASK, Context.UNKNOWN) and row["waker_pid"]:
            pairs[row["waker"], row["wakee"]] += 1
            kinds["to_waker"] += row["chosen_cpu"] == row["cpu"]
            kinds["to_prev"] += row["chosen_cpu"] == row["prev_cpu"] != row["cpu"]
    table = df_pairs(rows.trace)
    assert table.set_index(["waker", "wakee"])["decisions"].to_dict() == pairs
    assert Counter(table[["to_waker", "to_prev"]].sum().to_dict()) == kinds
    most = Counter()
    for (waker, wakee), count in pairs.items():
        for end in (("by", waker), ("of", wakee)):
            most[end] = max(most[end], count)
    edges = {p for p, n in pairs.items() if n >= EDGE * max(most["by", p[0]], most["of", p[1]])}
    assert set(df_edges(rows.trace)[["waker", "wakee"]].itertuples(index=False, name=None)) == edges


def test_flips(rows):
    begin, end = rows.trace.span
    width = -(-(end - begin + 1) // BINS)
    seen, bins = defaultdict(list), defaultdict(list)
    for row in rows.wakeups:
        after = rows.after(row) if row["outcome"] == Outcome.PLACED else (row["waker_flips"], False, False)
        seen[row["waker"]].append(after)
        bins[row["waker"], min(max((row["ts"] - begin) // width, 0), BINS - 1)].append(after)

    def summed(found):
        return {
            key: (len(x), sum(f for *_, f in x), sum(d for _, d, _ in x), max(n for n, *_ in x), x[-1][0])
            for key, x in found.items()
        }

    columns = ["wakeups", "flipped", "decayed", "highest", "last"]
    table = df_flippers(rows.trace).set_index("task")[columns]
    assert {k: tuple(v) for k, v in zip(table.index, table.to_numpy().tolist(), strict=True)} == summed(seen)
    table = df_flips_over_time(rows.trace).set_index(["task", "bin"])[columns]
    assert {k: tuple(v) for k, v in zip(table.index, table.to_numpy().tolist(), strict=True)} == summed(bins)


def test_wake_wide(rows):
    groups = {d.cpu: d.groups for d in rows.trace.topology.domains if "SHARE_LLC" in d.flags}  # the last is the widest
    pairs = defaultdict(Counter)
    for row in rows.placed:
        now, then = rows.is_wide(row), rows.is_wide(row, groups[row["cpu"]])
        pairs[row["waker"], row["wakee"]] += Counter({"decisions": 1, "wide": now, "changed": now != then})
    table = df_wide(rows.trace).set_index(["waker", "wakee"])[["decisions", "wide", "changed"]]
    assert {key: Counter(row) for key, row in table.to_dict("index").items()} == pairs


def test_affine_verdicts_and_pulls(rows):
    """By the rules, by schedstats, and by the LLC; without a replay."""
    affine = {(d.cpu, other) for d in rows.trace.topology.domains if "WAKE_AFFINE" in d.flags for other in d.span}
    exact = tuple(map(int, rows.trace.meta["kernel"].split("-")[0].split("+")[0].split(".")[:2])) >= (6, 1)
    verdicts, begun, pulls = Counter(), Counter(), Counter()
    near = ["cpu", "smt", "llc", "node", "cross", "unknown"]
    for row in rows.placed:
        cpu, prev, chosen, attempts = row["cpu"], row["prev_cpu"], row["chosen_cpu"], row["affine_attempts"]
        llc = {c: rows.cpus[c].llc for c in (cpu, prev, chosen)}
        verdict = "unknown"
        if attempts == 0 and rows.is_wide(row):
            verdict = "wide"
        elif attempts == 0 and cpu not in row["allowed"]:
            verdict = "disallowed"
        elif attempts == 0 and cpu == prev:
            verdict = "same_cpu"
        elif attempts == 0 and (cpu, prev) not in affine:
            verdict = "no_domain"
        elif attempts and (row["affine_moves"] == 0 or (row["affine_moves"] and exact)):
            verdict = "granted" if row["affine_moves"] else "refused"
        elif attempts and llc[cpu] != llc[prev] and llc[chosen] in (llc[cpu], llc[prev]):
            verdict = "granted" if llc[chosen] == llc[cpu] else "refused"
        verdicts[verdict] += 1
        start, end = rows.far(prev, cpu), rows.far(chosen, cpu)
        begun[start] += 1
        if near.index(end) < near.index(start):
            pulls[start, end] += 1
    assert df_affine_verdicts(rows.trace).groupby("verdict")["wakeups"].sum().to_dict() == verdicts
    table = df_pulls(rows.trace).set_index("start")
    assert Counter(table["wakeups"].to_dict()) == begun
    assert Counter(table[near].stack().to_dict()) == pulls


@pytest.mark.parametrize("by", ["task", "pair"])
def test_bounces(rows, by):
    chosen, bounces, dwells = defaultdict(list), Counter(), defaultdict(list)
    for row in rows.decided:
        key = row["wakee"] if by == "task" else (row["waker"], row["wakee"])
        chosen[key].append((row["chosen_cpu"], row["ts"]))
    for key, places in chosen.items():
        for (a, _), (b, left), (c, back) in zip(places, places[1:], places[2:], strict=False):
            if a == c != b:
                bounces[key] += 1
                dwells[key].append((back - left) / 1e3)
    table = df_bounces(rows.trace, by).set_index("task" if by == "task" else ["waker", "wakee"])
    assert table["bounces"].to_dict() == bounces
    assert table["dwell_p50"].to_dict() == pytest.approx({key: median(d) for key, d in dwells.items()})
    assert table["decisions"].to_dict() == {key: len(chosen[key]) for key in bounces}


def idle_at(rows):
    """CPUs idle at each wakeup: as the record says within its LLCs, elsewhere by who was switched in last."""
    switches = rows.table("switches")
    running = {}
    for switch in switches:
        running.setdefault(switch["cpu"], switch["prev_pid"])
    coming, found, j = {}, [], 0
    for row in rows.wakeups:
        while j < len(switches) and switches[j]["ts"] <= row["ts"]:
            running[switches[j]["cpu"]] = switches[j]["next_pid"]
            coming.pop(switches[j]["next_pid"], None)
            j += 1
        rebuilt = {cpu for cpu, pid in running.items() if not pid and cpu not in coming.values()}
        llcs = {rows.cpus[row["cpu"]].llc, rows.cpus[row["prev_cpu"]].llc} if row["has_masks"] else set()
        covered = {cpu for cpu, at in rows.cpus.items() if at.llc in llcs}
        found.append((row["idle"] & covered | rebuilt - covered, covered | set(running)))
        if row["outcome"] in RUNNABLE:
            coming.setdefault(row["wakee_pid"], row["chosen_cpu"])
    return found


def test_stacking(rows):
    waits, _ = rows.waits
    switches = defaultdict(list)
    for switch in rows.table("switches"):
        switches[switch["cpu"]].append(switch)
    kinds, pairs = Counter(), defaultdict(Counter)
    stacked, others, awake = defaultdict(list), defaultdict(list), defaultdict(list)
    for i, (row, (idle, known)) in enumerate(zip(rows.wakeups, idle_at(rows), strict=True)):
        if row["outcome"] not in (Outcome.PLACED, Outcome.FORK):
            continue
        cpu, pair = row["chosen_cpu"], (row["waker"], row["wakee"])
        free = idle & row["allowed"]
        if cpu not in known:
            kind = "unknown"
        elif cpu in idle or (row["has_masks"] and cpu in row["sched_idle"]):
            kind = "idle"
        elif any(rows.cpus[other].llc == rows.cpus[cpu].llc for other in free):
            kind = "llc"
        else:
            kind = "machine" if free else "no_other"
        kinds[kind] += 1
        pairs[pair]["stacked"] += kind in ("llc", "machine")
        is_awake = False
        if cpu == row["cpu"] and row["context"] in (Context.TASK, Context.UNKNOWN) and row["waker_pid"]:
            out = next((s for s in switches[cpu] if s["ts"] > row["ts"]), None)
            pairs[pair]["on_waker"] += 1
            is_awake = bool(out and out["prev_pid"] == row["waker_pid"] and out["prev_on_rq"])
            pairs[pair]["awake"] += is_awake
        if i not in waits:
            continue
        if is_awake:
            awake[pair].append(waits[i] / 1e3)
        if kind in ("llc", "machine"):
            stacked[pair].append(waits[i] / 1e3)
        elif kind != "unknown" and not is_awake:
            others[pair].append(waits[i] / 1e3)
    assert df_stacking(rows.trace).set_index("stacking")["decisions"].to_dict() == kinds
    table = df_stacking_pairs(rows.trace).set_index(["waker", "wakee"])
    expected = {pair: counts for pair, counts in pairs.items() if counts["stacked"] or counts["on_waker"]}
    assert {k: +Counter(v) for k, v in table[["stacked", "on_waker", "awake"]].to_dict("index").items()} == {
        pair: +counts for pair, counts in expected.items()
    }
    for column, found in (("cost_ms", stacked), ("awake_cost_ms", awake)):
        costs = {p: sum(w - median(others[p]) for w in found[p]) / 1e3 for p in expected if others[p]}
        assert table[column].dropna().to_dict() == pytest.approx(costs, abs=1e-9)


def test_runqueue(rows):
    _, ended = rows.waits
    state, sums = {}, defaultdict(Counter)
    for i, switch in enumerate(rows.table("switches")):
        now = switch["ts"]
        for pid, comes in ((switch["prev_pid"], False), (switch["next_pid"], True)):
            task = rows.holder(pid, now)
            begun, was = state.get(task, (None, "unseen"))
            if comes:
                state[task] = now, "running"
            else:
                state[task] = now, "runnable" if switch["prev_on_rq"] else "sleeping"
            if task is None:
                continue
            if comes and i in ended:
                sums[task] += Counter({"wake_wait_ms": ended[i], "wake_waits": 1})
            if comes and was in ("runnable", "sleeping"):
                slept = max(now - begun - (ended.get(i, 0) if was == "sleeping" else 0), 0)
                time, count = ("preempt_wait_ms", "preemptions") if was == "runnable" else ("sleep_ms", "sleeps")
                sums[task] += Counter({time: slept, count: 1})
            elif not comes and was == "running":
                sums[task] += Counter({"running_ms": now - begun, "runs": 1})
            else:
                sums[task]["cut"] += 1
    table = df_runqueue(rows.trace).set_index("task")
    mine = {task: counts for task, counts in sums.items() if set(counts) != {"cut"}}
    assert set(table.index) == set(mine)
    for column in table.columns:
        scale = 1e6 if column.endswith("_ms") else 1
        assert table[column].to_dict() == pytest.approx({task: c[column] / scale for task, c in mine.items()}), column


def test_migrations_and_what_they_undid(rows):
    table = df_migrations(rows.trace).set_index("mover")["migrations"]
    assert table.to_dict() == Counter(mover for _, _, mover, *_ in rows.migrations)
    crossed = [(t, m, rows.node(a), rows.node(b)) for _, t, m, a, b in rows.migrations if rows.far(a, b) == "cross"]
    table = df_crossings(rows.trace)[["task", "mover", "from_nid", "to_nid"]]
    assert list(table.itertuples(index=False, name=None)) == crossed
    undone = Counter()
    for ts, task, mover, orig, dest in rows.migrations:
        mine = (row for row in reversed(rows.wakeups) if row["wakee"] == task and row["ts"] <= ts)
        last = next((row for row in mine if row["outcome"] in PLACED), None)
        if mover == "wakeup" or not last or last["chosen_cpu"] != orig:
            continue
        if ts - last["ts"] > WITHIN_MS * 1e6:
            continue
        prev, kind = last["prev_cpu"], "away"
        for group, name in (("node", "back_node"), ("llc", "back_llc"), ("cpu", "back")):
            at = {c: getattr(rows.cpus[c], group) for c in (prev, orig, dest)}
            if at[dest] == at[prev] != at[orig]:
                kind = name
        undone[kind, mover] += 1
    assert df_undone_counts(rows.trace).set_index(["undone", "mover"])["migrations"].to_dict() == undone


@pytest.fixture(scope="module")
def history(rows):
    """What records say of each task's NUMA state, in the order of time; preferred is None in a waker's."""
    found = []
    for row in rows.table("numa"):
        task = rows.holder(row["pid"], row["ts"])
        if task:
            state = row["preferred_nid"], row["migrate_retry"], row["scan_period"], True, row["event"]
            found.append((row["ts"], 0, task, row["jiffies"], *state))
    for row in rows.wakeups:
        for order, who in ((1, "waker"), (2, "wakee")):
            preferred = row["wakee_preferred_nid"] if who == "wakee" else None
            state = preferred, row[f"{who}_migrate_retry"], row[f"{who}_scan_period"], False, None
            found.append((row["ts"], order, row[who], row["jiffies"], *state))
    found = [state for state in sorted(found, key=lambda s: s[:2]) if state[5] != NEVER64]
    live = {task for _, _, task, _, _, retry, _, own, _ in found if retry or own}
    tasks = defaultdict(list)
    for state in found:
        if state[2] in live:
            tasks[state[2]].append(state)
    return tasks


def interval(period, hz):
    return min(hz, -(-period * hz // 1000) // 16)


def attempts_of(states, hz):
    """(jiffies of the attempt, deadline before it, new deadline, own) of each new deadline of one task."""
    found, before = [], None
    for _, _, _, jiffies, _, retry, period, own, _ in states:
        made = retry - interval(period, hz)
        if (before is not None and retry != before) or (before is None and own and made <= jiffies < retry):
            found.append((made, before or None, retry, own))
        before = retry
    return found


def test_numa(rows, history):
    hz = rows.trace.meta["hz"]
    events, results = Counter(), {}
    for row in rows.table("numa"):
        name = NumaEvent(row["event"]).name.lower()
        if name == "stick" and row["dst_cpu"] < 0:
            name = "no_cpu"
        to = row["dst_nid"] if name == "fault" else rows.node(row["dst_cpu"])
        events[name, rows.node(row["src_cpu"]), to] += 1
        if name != "fault":
            results[rows.holder(row["pid"], row["ts"]), row["migrate_retry"]] = name
    table = df_numa_events(rows.trace).set_index(["event", "from_nid", "to_nid"])["events"]
    assert table.to_dict() == events
    tried, late, changes = defaultdict(Counter), defaultdict(list), []
    for task, states in history.items():
        for made, deadline, retry, own in attempts_of(states, hz):
            tried[task] += Counter({"attempts": 1, results.get((task, retry), "settled"): 1, "checked": own})
            if deadline:
                late[task].append((made - deadline) * 1000 / hz)
        known = [(ts, nid) for ts, _, _, _, nid, *_ in states if nid is not None]
        changes += [(task, (t - rows.trace.span[0]) / 1e6, a, b) for (_, a), (t, b) in pairwise(known) if a != b]
    table = df_retries(rows.trace).set_index("task")
    names = ["attempts", "settled", "move", "swap", "stick", "no_cpu", "checked"]
    assert {task: +Counter(row) for task, row in table[names].to_dict("index").items()} == tried
    assert table["late_p50_ms"].dropna().to_dict() == pytest.approx({task: median(x) for task, x in late.items()})
    assert table["off_rule"].sum() == 0
    table = df_preferred(rows.trace)[["task", "until_ms", "from_nid", "to_nid"]]
    assert sorted(table.itertuples(index=False, name=None)) == sorted(changes)


def test_fights(rows):
    pulls = [row for row in rows.decided if rows.far(row["prev_cpu"], row["chosen_cpu"]) == "cross"]
    found = []
    for ts, task, mover, orig, dest in rows.migrations:
        last = next((row for row in reversed(pulls) if row["wakee"] == task and row["ts"] <= ts), None)
        if mover == "wakeup" or not last or ts - last["ts"] > 1e9:
            continue
        home, pulled = rows.node(last["prev_cpu"]), rows.node(last["chosen_cpu"])
        if (rows.node(dest), rows.node(orig), rows.node(last["cpu"])) == (home, pulled, pulled):
            found.append((task, last["waker"], mover, (ts - last["ts"]) / 1e6))
    table = df_fights(rows.trace)[["task", "waker", "mover", "held_ms"]]
    assert list(table.itertuples(index=False, name=None)) == found


def test_back_offs(rows, history):
    """Grants as schedstats have them, or the LLC chosen."""
    hz = rows.trace.meta["hz"]
    counted_pulls = tuple(map(int, rows.trace.meta["kernel"].split("-")[0].split("+")[0].split(".")[:2])) >= (6, 1)
    until = defaultdict(list)
    for row in rows.placed:
        if (
            rows.far(row["prev_cpu"], row["cpu"]) != "cross"
            or row["wakee_preferred_nid"] < 0
            or row["affine_attempts"] < 1
        ):
            continue
        same_llc = rows.cpus[row["chosen_cpu"]].llc == rows.cpus[row["cpu"]].llc
        if row["affine_moves"] > 0 if counted_pulls else row["affine_moves"] and same_llc:
            for who in ("waker", "wakee"):
                period = max(1000, 4 * row[f"{who}_scan_period"])
                until[row[who]].append((row["jiffies"], row["jiffies"] + -(-period * hz // 1000)))
    expected = {}
    for task, states in history.items():
        counts = Counter()
        for made, _, retry, _ in attempts_of(states, hz):
            end = next((end for at, end in reversed(until[task]) if at <= made), -1)
            counts += Counter({"attempts": 1, "meant": made < end, "merged": retry > end})
        if counts:
            expected[task] = counts
    table = df_delay_retry(rows.trace).set_index("task")[["attempts", "meant", "merged"]]
    assert {task: +Counter(row) for task, row in table.to_dict("index").items()} == expected
