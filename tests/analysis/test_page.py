# SPDX-License-Identifier: GPL-2.0-only
import re
import subprocess
from html.parser import HTMLParser

import pytest
from wakescope.analysis.page import FIGURES, ROWS, to_html, write_page
from wakescope.analysis.report import build_report
from wakescope.analysis.sections import SECTIONS
from wakescope.errors import OutputError
from wakescope.tests.analysis.test_declared import NUMA
from wakescope.tests.conftest import WAKESCOPE
from wakescope.tests.maketrace import make_trace, switch, task, topology, wake
from wakescope.trace import Trace

get_plotlyjs = pytest.importorskip("plotly.offline").get_plotlyjs
pytest.importorskip("networkx")


class Outline(HTMLParser):
    """Tags with their ids, in order; what is inside scripts; and links to anything outside."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.scripts, self.links, self.text = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("src", "href") if name in given]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data
        else:
            self.text.append(data)

    def handle_endtag(self, tag):
        self.tags.append("/" + tag)


def test_the_page_of_a_real_trace():
    outline = Outline(to_html(build_report(Trace.open(NUMA))))
    assert [i for i in outline.ids if i in SECTIONS] == list(SECTIONS)
    figures = [i for i in outline.ids if re.fullmatch(r"\w+-\d", i)]
    assert figures == [
        "placement-0", "placement-1", "flips-0", "flips-1", "affine-0", "affine-1", "latency-0", "latency-1", "numa-0",
    ]  # fmt: skip
    assert outline.tags.count("li") == 3
    assert outline.links == []  # one file, no network


def test_names_from_a_trace_stay_names(trace):
    evil = b"</script><b>"
    made = trace(
        topology(cores=2),
        tasks=[task(1, evil), task(2, b"<i>&\x1b")],
        wakeups=[wake(1000 + i, 0, 1, 2, 1, 1, waker_flips=9) for i in range(3)],
        switches=[switch(1500, 1, 0, 2)],
    )
    text = to_html(build_report(made)).replace(get_plotlyjs(), "")
    outline = Outline(text)
    assert evil.decode() not in text
    assert "\x1b" not in text
    assert {"b", "i"}.isdisjoint(outline.tags)
    assert f"{evil.decode()}:1" in outline.text
    drawn = [s for s in outline.scripts if s]
    assert len(drawn) == len([i for i in outline.ids if re.fullmatch(r"\w+-\d", i)])
    assert any(r"\u0026lt;" in s or "&lt;" in s or r"\u003c" in s for s in drawn)


def test_an_empty_trace_and_a_missing_table_say_so(trace, tmp_path):
    empty = Outline(to_html(build_report(trace())))
    assert [i for i in empty.ids if i not in SECTIONS] == []  # no figures
    lacking = make_trace(tmp_path / "a.wake", {"wakeups": [], "tasks": []})
    assert any("no switches table" in text for text in Outline(to_html(build_report(lacking))).text)
    assert set(FIGURES) <= set(SECTIONS)


def test_long_tables_are_cut_and_say_how_much_is_missing(trace):
    tasks = [task(pid, b"x") for pid in range(1, ROWS + 6)]
    made = trace(tasks=tasks, wakeups=[wake(10 * pid, 0, pid, 1 + pid % 7, 0, 0) for pid in range(1, ROWS + 6)])
    outline = Outline(to_html(build_report(made, ["placement"])))
    assert "5 more rows with --json" in outline.text


def test_an_existing_file_is_not_touched(trace, tmp_path):
    page = tmp_path / "there.html"
    page.write_text("mine")
    done = subprocess.run(
        [*WAKESCOPE, "report", trace().path, "--html", page], capture_output=True, text=True, check=False
    )
    assert (done.returncode, page.read_text()) == (OutputError.exit_code, "mine")
    assert done.stderr == f"wakescope: {page} exists: name another file\n"
    with pytest.raises(OutputError, match="cannot write"):
        write_page(tmp_path / "no" / "such" / "folder.html", build_report(trace()))
