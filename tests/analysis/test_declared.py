# SPDX-License-Identifier: GPL-2.0-only
"""Every df_ and plot_ function says which tables it needs and what its columns hold; here it is held to both."""

import importlib
import inspect
import json
import pkgutil
import re
import shutil

import pytest
from wakescope import analysis
from wakescope.analysis.distance import NAMES
from wakescope.errors import TraceError
from wakescope.schema import TABLES
from wakescope.tests.analysis.test_corpus import CORPUS
from wakescope.trace import Trace

NUMA = next(path for path in CORPUS if path.stem.startswith("6.12-2s2c2t") and "numa" in path.stem)
MODULES = [importlib.import_module(f"wakescope.analysis.{m.name}") for m in pkgutil.iter_modules(analysis.__path__)]
FUNCTIONS = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if name.startswith(("df_", "plot_")) and function.__module__ == module.__name__
}


def needed(function):
    """The tables a docstring names; None if it does not say."""
    text = " ".join(inspect.getdoc(function).split())
    found = re.search(r"Needs (?:(no table)|tables? ([a-z, ]+?)[.;])", text)
    return found and ([] if found[1] else re.split(r", | and ", found[2]))


def columns_said(function):
    text = " ".join(inspect.getdoc(function).split("Columns:", 1)[1].split())
    for other in re.findall(r"(df_\w+)'", text):
        text += columns_said(FUNCTIONS[other])
    return text


def with_tables(folder, tables):
    """The trace with these tables alone."""
    shutil.copytree(NUMA, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["rows"] = {table: rows for table, rows in meta["rows"].items() if table in tables}
    (folder / "meta.json").write_text(json.dumps(meta))
    for table in set(TABLES) - set(tables):
        (folder / f"{table}.parquet").unlink(missing_ok=True)
    return Trace.open(folder)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_tables_it_needs_are_what_it_needs(name, tmp_path):
    tables = needed(FUNCTIONS[name])
    assert tables is not None, "the docstring does not say"
    assert set(tables) <= set(TABLES)
    FUNCTIONS[name](with_tables(tmp_path / "all", tables))
    for table in tables:
        lacking = with_tables(tmp_path / table, [t for t in tables if t != table])
        with pytest.raises(TraceError, match=f"no {table} table"):
            FUNCTIONS[name](lacking)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n.startswith("df_")])
def test_every_column_is_documented(name):
    said = columns_said(FUNCTIONS[name])
    known = set(re.findall(r"\w+", said))
    known |= set(NAMES) if "one per distance" in said else set()
    columns = set(map(str, FUNCTIONS[name](Trace.open(NUMA)).columns))
    if "p50 … p99.9" in said:
        columns = {c for c in columns if not re.fullmatch(r"p[\d.]+", c)}
    assert columns <= known
