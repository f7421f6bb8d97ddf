# SPDX-License-Identifier: GPL-2.0-only
"""Names of topologies, and QEMU's arguments for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope.errors import UsageError
from wakescope.testbox.topology import (
    NAMED,
    node_memory,
    parse,
    parse_cpus,
    parse_distances,
    qemu_arguments,
    smp,
)


def test_sockets_cores_threads() -> None:
    shape = parse("2s2c2t")
    assert shape.core_cpus == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shape.llc_cpus == shape.node_cpus == shape.package_cpus == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shape.distances == ((10, 20), (20, 10))
    assert shape.offline == ()


def test_options_change_the_shape() -> None:
    shape = parse("2s4c2t", nodes=4, distance="40", llcs=2, offline="1,4-5")
    assert shape.llc_cpus == shape.node_cpus == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert [row[0] for row in shape.distances] == [10, 40, 40, 40]
    assert shape.offline == (1, 4, 5)


@pytest.mark.parametrize("name", NAMED)
def test_every_name_is_a_shape(name: str) -> None:
    shape = parse(name)
    assert shape.cpus == 8
    assert len(shape.distances) == shape.nodes


def test_names_are_what_they_say() -> None:
    assert len({value for row in parse("uneven").distances for value in row}) == 3
    assert len(parse("llcs").llc_cpus) == 2
    assert len(parse("llcs").package_cpus) == 1
    assert len(parse("snc").node_cpus) > len(parse("snc").package_cpus)
    assert parse("offline").offline == (3,)
    assert parse("offline0").offline == (0,)


def test_an_option_overrules_a_name() -> None:
    assert parse("offline", offline="7").offline == (7,)
    assert parse("llcs", llcs=1).llc_cpus == [[0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("2s2c", {}),
        ("big", {}),
        ("0s2c2t", {}),
        ("1s1c4t", {}),
        ("8s8c2t", {}),
        ("1s3c1t", {"llcs": 2}),
        ("1s3c1t", {"nodes": 2}),
        ("2s2c2t", {"nodes": 0}),
        ("2s2c2t", {"distance": "9"}),
        ("2s2c2t", {"distance": "255"}),
        ("2s2c2t", {"distance": "10,20"}),
        ("2s2c2t", {"distance": "20,20/20,10"}),
        ("2s2c2t", {"distance": "near"}),
        ("2s2c2t", {"offline": "8"}),
        ("2s2c2t", {"offline": "0-7"}),
        ("2s2c2t", {"offline": "a"}),
    ],
)
def test_what_no_machine_has_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse(name, **options)  # type: ignore[arg-type]


def test_uneven_distances_are_kept_as_given() -> None:
    assert parse_distances("10,16,22/16,10,16/22,17,10", 3) == ((10, 16, 22), (16, 10, 16), (22, 17, 10))


@given(st.sets(st.integers(0, 62)))
def test_a_list_of_cpus_is_read_back(cpus: set[int]) -> None:
    assert parse_cpus(",".join(map(str, cpus)), 64) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["9", "8-9", "0-7", "1-99999999999", "3-1", "a", "1-", "-1"])
def test_cpus_that_there_are_not_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_cpus(text, 8)


def test_dies_are_llcs() -> None:
    assert smp(parse("1s4c2t", llcs=2)) == "8,sockets=1,dies=2,cores=2,threads=2"


@given(st.integers(1, 4), st.integers(512, 10_000))
def test_no_memory_is_lost(nodes: int, memory: int) -> None:
    sizes = node_memory(parse(f"{nodes}s1c1t"), memory)
    assert sum(sizes) == memory
    assert max(sizes) - min(sizes) < nodes


def test_arguments_name_every_node_and_pair() -> None:
    arguments = qemu_arguments(parse("uneven"), 4096)
    assert arguments[:4] == ["-smp", "8,sockets=4,dies=1,cores=1,threads=2", "-m", "4096M"]
    assert "node,nodeid=3,cpus=6-7,memdev=m3" in arguments
    assert "memory-backend-ram,id=m3,size=1024M" in arguments
    assert "dist,src=0,dst=2,val=22" in arguments
    assert sum(argument.startswith("dist,") for argument in arguments) == 12
