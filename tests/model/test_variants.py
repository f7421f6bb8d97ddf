# SPDX-License-Identifier: GPL-2.0-only
"""Each patch against a table worked out from its definition, the names of policies, and where patches are refused."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

import pytest
from wakescope.errors import ModelError
from wakescope.model.affine import Affine
from wakescope.model.compiled import plain
from wakescope.model.flips import record_both
from wakescope.model.idle import Path
from wakescope.model.kernels import kernel
from wakescope.model.old import OLD
from wakescope.model.policy import AffineBy, Flips
from wakescope.model.variants import PATCHES, RELEASES, named, patched, to_json
from wakescope.tests.maketrace import topology

from .decisions import BOX, HZ, SYNC, decide

META = {"kernel": "6.12.8", "sched_features": None}
STOCK = kernel("6.12")


def variant(*names):
    return patched(STOCK, list(names))


# prev, idle CPUs, loads of this and prev, sync -> CPU stock, skip-affine, nak-affine, nak-affine-shared. CPUs 0-3 and
# 4-7 share a cache each; the waker is on CPU 0, the wakee's load is 500, no idle core, the scan begins at target + 1.
AFFINE_TABLE = [
    (2, [], 100, 5000, False, (0, 0, 2, 2)),  # the loads favour CPU 0
    (2, [], 5000, 100, False, (2, 0, 2, 2)),  # the loads favour prev
    (2, [], 100, 100, True, (0, 0, 2, 2)),  # sync and more load here than there is: CPU 0
    (2, [2], 100, 5000, False, (2, 2, 2, 2)),  # an idle prev is taken in any case
    (2, [0], 5000, 100, False, (0, 0, 0, 0)),  # from prev the scan comes round to an idle CPU 0, too
    (2, [1], 5000, 100, False, (1, 1, 1, 1)),
    (5, [], 100, 5000, False, (0, 0, 5, 0)),  # no shared cache: only nak-affine says no
    (5, [], 5000, 100, False, (5, 5, 5, 5)),
    (0, [], 100, 5000, False, (0, 0, 0, 0)),  # prev is the waker's CPU
]


@pytest.mark.parametrize(("prev", "idle", "this_load", "prev_load", "sync", "cpus"), AFFINE_TABLE)
def test_affine_variants(prev, idle, this_load, prev_load, sync, cpus):
    names = ([], ["skip-affine-core-siblings"], ["nak-affine"], ["nak-affine-shared"])
    flags = {"wake_flags": SYNC} if sync else {}
    given = {"prev": prev, "idle": idle, "this_load": this_load, "prev_load": prev_load, "waker_h_load": 600, **flags}
    results = [decide(variant(*patch), **given) for patch in names]
    assert tuple(result["cpu"] for result in results) == cpus


def test_affine_variants_say_so():
    rules = {
        "skip-affine-core-siblings": (Affine.SHARED_PULL, 0),
        "nak-affine": (Affine.NEVER, 2),
        "nak-affine-shared": (Affine.SHARED_KEEP, 2),
    }
    for name, (rule, target) in rules.items():
        result = decide(variant(name))
        assert (result["affine"], result["target"]) == (rule, target)


# (flips, decay stamp) of waker and wakee, another wakee?, jiffies -> (flips, stamp) of both under BOTH and HEAVY; the
# factor is 4, so HEAVY counts for the wakee above 8 times its flips
RECORD_TABLE = [
    ((5, 900), (3, 900), True, 1000, ((6, 900), (4, 900)), ((6, 900), (3, 900))),
    ((5, 900), (3, 900), False, 1000, ((5, 900), (3, 900)), ((5, 900), (3, 900))),
    ((5, 900), (3, 700), True, 1000, ((6, 900), (2, 1000)), ((6, 900), (3, 700))),  # only the wakee decays
    ((5, 700), (3, 900), True, 1000, ((3, 1000), (4, 900)), ((3, 1000), (3, 900))),  # only the waker does
    ((5, 700), (3, 700), False, 1000, ((2, 1000), (1, 1000)), ((2, 1000), (3, 700))),  # both do, none counts
    ((8, 900), (1, 900), True, 1000, ((9, 900), (2, 900)), ((9, 900), (1, 900))),  # 8 is not above 8 * 1
    ((9, 900), (1, 900), True, 1000, ((10, 900), (2, 900)), ((10, 900), (2, 900))),  # 9 is
    ((9, 900), (1, 900), False, 1000, ((9, 900), (1, 900)), ((9, 900), (1, 900))),
    ((17, 700), (1, 900), True, 1000, ((9, 1000), (2, 900)), ((9, 1000), (1, 900))),  # decayed to 8 first
    ((1, 900), (0, 900), True, 1000, ((2, 900), (1, 900)), ((2, 900), (1, 900))),
    ((0, 900), (0, 900), True, 1000, ((1, 900), (1, 900)), ((1, 900), (0, 900))),
]


@pytest.mark.parametrize("function", [record_both, plain(record_both)])
@pytest.mark.parametrize(("waker", "wakee", "another", "jiffies", "both", "heavy"), RECORD_TABLE)
def test_record_wakee_variants(function, waker, wakee, another, jiffies, both, heavy):
    last = 9 if another else 2
    for flips, ((waker_flips, waker_ts), (wakee_flips, wakee_ts)) in ((Flips.BOTH, both), (Flips.HEAVY, heavy)):
        found = function(int(flips), 4, jiffies, HZ, (*waker, last), wakee, 2)
        assert found == (waker_flips, waker_ts, 2, wakee_flips, wakee_ts)


# waker's and wakee's flips, the same wakee again, so that none changes -> wide in stock (factor 4), with the wakee's
# flips asked of the asymmetric rule, with couple-heavy-wakers, with llc-size-cores (factor 2)
WIDE_TABLE = [
    (16, 4, (True, False, True, True)),  # asymmetric: 4 is not above 4
    (21, 5, (True, True, True, True)),
    (20, 5, (True, False, True, True)),  # 20 is not above 4 * 5
    (5, 21, (True, False, True, True)),  # the wakee is the one that flips
    (15, 4, (False, False, False, True)),
    (4, 2, (False, False, False, True)),
    (3, 2, (False, False, False, False)),
    (7, 1, (False, False, False, False)),
    (8, 1, (False, False, True, False)),  # 8 = (4 >> 1) * 4 lets couple-heavy-wakers do without the wakee's
    (12, 3, (False, False, True, True)),
    (11, 3, (False, False, False, True)),  # but the waker must still flip 4 times as often
]


@pytest.mark.parametrize(("waker", "wakee", "wide"), WIDE_TABLE)
def test_wake_wide_variants(waker, wakee, wide):
    policies = [STOCK, variant("wake-wide-asymmetric"), variant("couple-heavy-wakers"), variant("llc-size-cores")]
    found = [decide(policy, waker_flips=waker, wakee_flips=wakee, wakee_decay_ts=1_000_000) for policy in policies]
    assert tuple(bool(result["wide"]) for result in found) == wide


def test_coupled_flips_make_wide_what_was_not():
    given = {"waker_flips": 15, "wakee_flips": 3, "waker_last_wakee": 9, "wakee_decay_ts": 1_000_000}
    assert decide(STOCK, **given)["wide"] == 0  # 3 < 4
    assert decide(variant("couple-wakee-flips"), **given)["wide"] == 1  # 16 and 4
    assert decide(variant("twiddle"), **given | {"waker_flips": 2, "wakee_flips": 1})["wide"] == 0  # 3 and 2, factor 2
    assert decide(variant("twiddle"), **given | {"waker_flips": 3, "wakee_flips": 1})["wide"] == 1  # 4 and 2


def test_llc_size_counts_groups():
    whole = topology(nodes=1, cores=4, threads=1)
    given = {"waker_flips": 16, "wakee_flips": 4, "llc_size": 4, "prev": 2}
    stock, cores = (decide(p, whole, **given)["wide"] for p in (STOCK, variant("llc-size-cores")))
    assert stock == cores == 1  # without SMT the groups are the CPUs
    unknown = topology(nodes=1, cores=2, threads=2)
    unknown.domains = [replace(sd, groups=0) for sd in unknown.domains]
    result = decide(variant("llc-size-cores"), unknown, this_load=100)
    assert result["certainty"] == 2  # nobody said how many groups there are


def balancing(machine):
    """The machine with SD_BALANCE_WAKE on every domain."""
    machine.domains = [replace(sd, flags=[*sd.flags, "BALANCE_WAKE"]) for sd in machine.domains]
    return machine


THREAD_PATCH = "skip-affine-core-siblings"

# affine or not, CPU idle or not -> which wakeups take the slow path where domains have SD_BALANCE_WAKE
WIDE = {"waker_flips": 16, "wakee_flips": 4}
SLOW_TABLE = [
    # what, stock, prefer-idle-cpu, want-affine-rework
    ({}, False, True, False),  # affine beats the balance flags, a busy CPU or not, but for the patch
    ({"idle": [2]}, False, False, False),
    (WIDE, True, True, False),
    ({"allowed": [2, 3]}, True, True, False),
    ({**WIDE, "idle": [2]}, True, False, False),  # only the patch looks
    ({**WIDE, "idle": [3]}, True, False, False),
]


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize(("given", "stock", "prefer", "rework"), SLOW_TABLE)
def test_slow_path(by_policy, given, stock, prefer, rework):
    machine = BOX if by_policy else balancing(topology(nodes=2, cores=2, threads=2))
    names = ["balance-wake"] if by_policy else []
    for patch, slow in (([], stock), (["prefer-idle-cpu"], prefer), (["want-affine-rework"], rework)):
        result = decide(variant(*names, *patch), machine, **given)
        assert (result["path"] == Path.SLOW) == slow
        assert (result["certainty"] == 2) == slow  # find_idlest_cpu is not modelled


def test_prefer_idle_cpu_on_its_own_base():
    """4.2 never left select_idle_sibling; with the patch it does, for a busy CPU, where a domain asks for it."""
    base = kernel("4.2")
    patch = patched(base, ["prefer-idle-cpu"])
    machine = balancing(topology(nodes=2, cores=2, threads=2))
    for given, slow in ((WIDE, True), ({**WIDE, "idle": [2]}, False), ({**WIDE, "idle": [3]}, False)):
        assert decide(base, machine, **given)["path"] != Path.SLOW
        assert (decide(patch, machine, **given)["path"] == Path.SLOW) == slow
        assert decide(patch, BOX, **given)["path"] != Path.SLOW


def test_the_rules_of_4_13_and_4_14_rc_for_a_shared_cache_can_be_turned_round():
    for release, patch, stock, other in (("4.13", "nak-affine-shared", 0, 2), ("4.14-rc", THREAD_PATCH, 2, 0)):
        assert decide(kernel(release))["target"] == stock
        assert decide(patched(kernel(release), [patch]))["target"] == other


def test_want_affine_rework_changes_nothing_by_default():
    for given in ({}, WIDE, {"allowed": [2, 3]}, {"prev": 0}, {"prev": 5, "idle": [4]}):
        stock, rework = decide(STOCK, **given), decide(variant("want-affine-rework"), **given)
        for field in ("cpu", "path", "affine", "certainty"):
            assert stock[field] == rework[field]


# what -> wake_wide as stock, 4.2 and want-affine-rework ask it: its verdict, -1 where it is not asked
VERY_WIDE = {"waker_flips": 40, "wakee_flips": 5}
ASKED_TABLE = [
    (VERY_WIDE, 1, 1, 1),
    ({}, 0, 0, 0),
    ({**VERY_WIDE, "prev": 0}, 1, -1, -1),  # there is nothing to choose between
    ({**VERY_WIDE, "allowed": [2, 3]}, 1, -1, -1),
]


@pytest.mark.parametrize(("given", "stock", "old", "rework"), ASKED_TABLE)
def test_a_verdict_is_told_only_where_wake_wide_is_asked(given, stock, old, rework):
    asymmetric = kernel("4.2")
    assert decide(STOCK, **given)["wide"] == stock
    assert decide(asymmetric, **given)["wide"] == old
    assert decide(variant("want-affine-rework"), **given)["wide"] == rework
    if old < 0:
        assert decide(asymmetric, **given)["affine"] != Affine.WIDE


@pytest.mark.parametrize(
    ("given", "slow"),
    [
        ({"waker_flips": 4, "wakee_flips": 16}, True),  # a dispatcher is woken, and prev's LLC has no idle CPU
        ({"waker_flips": 16, "wakee_flips": 4}, False),  # it is the waker that dispatches
        ({"waker_flips": 4, "wakee_flips": 15}, False),  # not wide
        ({"waker_flips": 4, "wakee_flips": 16, "idle": [3]}, False),  # one is found
        ({"waker_flips": 4, "wakee_flips": 16, "idle": [4]}, True),  # of another LLC, where nobody looked
    ],
)
def test_wake_wide_idle(given, slow):
    assert (decide(variant("wake-wide-idle"), **given)["path"] == Path.SLOW) == slow


def test_beef_up_wake_wide_makes_4_2_to_4_3():
    assert patched(kernel("4.2"), ["beef-up-wake-wide"]) == kernel("4.3")
    assert patched(kernel("4.3"), ["wake-wide-asymmetric"]) == kernel("4.3") | {"wide": 1}


def test_numa_patches_do_not_touch_wakeups():
    for name in (name for name in PATCHES if name.startswith("numa-delay-retry")):
        changed = {k for k in STOCK._fields if getattr(variant(name), k) != getattr(STOCK, k)}
        assert changed == {"numa_backoff", "numa_compare"}


def test_names():
    assert named("6.12", META) == STOCK
    assert named("own", META) == kernel("6.12.8")
    assert named("own+nak-affine", META).affine_by == AffineBy.NEVER
    assert named("6.12+couple-wakee-flips+llc-size-cores", META) == variant("twiddle")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("6.12+nonsense", ModelError, "there is no patch nonsense"),
        ("3.10", ModelError, "not modelled"),
        ("next", ModelError, "not a kernel release"),
        ("4.12.x", ModelError, "not a kernel release"),
        ("6.12+beef-up-wake-wide", ModelError, "beef-up-wake-wide makes no sense where wake_wide is symmetric"),
        ("4.13+skip-affine-core-siblings", ModelError, "takes the waker's CPU at once if prev shares its cache"),
        ("6.12+nak-affine+nak-affine", ModelError, "no sense where wake_affine always refuses"),
        ("6.12+numa-idlest-stay-local", ModelError, "must overcome the imbalance to leave their node already"),
        ("6.12+init-numa-migrate-retry", ModelError, "without a NUMA deadline already"),
        ("4.2+numa-delay-retry", ModelError, "where wake_affine compares effective loads"),
        ("4.2+want-affine-rework", ModelError, "wake_wide is asked by wake_affine"),
    ],
)
def test_refusals(name, error, text):
    with pytest.raises(error, match=text):
        named(name, META)


@pytest.mark.parametrize("patch", PATCHES.values(), ids=list(PATCHES))
def test_every_refusal_has_its_words(patch):
    base = STOCK | {feature: values[0] for feature, values in patch.needs.items()}
    assert patch.refusal(base) is None
    for feature, values in patch.needs.items():
        kind = type(values[0])
        for other in set(kind if issubclass(kind, IntEnum) else (0, 1)) - set(values):
            refusal = patch.refusal(base | {feature: other})
            assert refusal.startswith(f"{patch.name} makes no sense where ")


def test_where_patches_apply():
    assert PATCHES["beef-up-wake-wide"].kernels() == ["4.2"]
    assert "6.1" not in PATCHES["init-numa-migrate-retry"].kernels()
    assert {"5.10", "5.15"} <= set(PATCHES["init-numa-migrate-retry"].kernels())
    stay_local = ["4.12.0", "4.12", "4.13", "4.14-rc", "4.14", "4.15", "4.16"]
    assert PATCHES["numa-idlest-stay-local"].kernels() == stay_local
    assert PATCHES["balance-wake"].kernels() == list(RELEASES)  # a what-if where it cannot be set
    for patch in PATCHES.values():
        assert patch.kernels(), patch.name


def test_every_old_series_is_among_the_releases_in_order():
    assert [release for release in RELEASES if release in OLD] == list(OLD)


@pytest.mark.parametrize("release", RELEASES)
def test_a_patch_changes_something_and_applies_once(release):
    base = kernel(release)
    for patch in PATCHES.values():
        if patch.refusal(base) is None:
            assert base | patch.edit != base, patch.name
            assert patch.refusal(base | patch.edit) is not None, f"{patch.name} applies twice"


def test_to_json_names_all():
    rows = to_json()
    assert [row["name"] for row in rows] == list(PATCHES)
    assert all(row["origin"] and row["changes"] and row["kernels"] and row["edit"] for row in rows)
