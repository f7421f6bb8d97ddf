# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.benchmarks import middle, publish

DOCUMENT = """# Benchmarks

## One

Machine: an old one.
Command: `make bench`.

| what | measured |
|---|---|
| old | 1 |

Prose of One.

## Two

Machine: an old one.

| what | measured |
|---|---|
| kept | 2 |
"""


def test_a_sections_table_is_replaced_and_its_prose_kept(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text(DOCUMENT)
    publish(document, "One", iter([("new", "3"), (r"\1 stays", "4")]))
    text = document.read_text()
    assert "| old | 1 |" not in text
    assert "| new | 3 |\n| \\1 stays | 4 |\n\nProse of One.\n\n## Two\n\nMachine: an old one.\n" in text
    assert text.endswith("| kept | 2 |\n")


def test_a_section_that_is_not_there_stops_before_anything_is_measured(tmp_path):
    def measured():
        raise AssertionError("measured")
        yield

    document = tmp_path / "benchmarks.md"
    document.write_text(DOCUMENT)
    with pytest.raises(SystemExit, match="no section 'Three'"):
        publish(document, "Three", measured())


def test_the_middle_is_the_median_with_its_range():
    assert middle([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0, 3 rounds)"
