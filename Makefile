# SPDX-License-Identifier: GPL-2.0-only
# make demo and make test work on a fresh Debian or Ubuntu machine, as root. Nothing else needs typing.

VENV := .venv
BIN := $(VENV)/bin
OBJECTS := tracers/probes64t.bpf.o tracers/probes64.bpf.o tracers/probes512t.bpf.o tracers/probes512.bpf.o
BPF_FLAGS := -O2 -g -Wall -Werror -target bpf -mcpu=v3 -I/usr/include/$(shell uname -m)-linux-gnu

.PHONY: setup demo test check bench fidelity clean

setup: $(VENV)/.done $(OBJECTS)

$(VENV)/.packages: packages.sh
	@mkdir -p $(VENV)
	sh packages.sh
	@touch $@

$(VENV)/.done: pyproject.toml $(VENV)/.packages
	python3 -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev,plots]'
	@touch $@

# t: typed loads; 64 and 512: most CPUs (tracers/probes.bpf.c)
tracers/probes64t.bpf.o: WORDS := 1
tracers/probes64.bpf.o: WORDS := 1
tracers/probes512t.bpf.o: WORDS := 8
tracers/probes512.bpf.o: WORDS := 8
tracers/probes64t.bpf.o tracers/probes512t.bpf.o: BPF_FLAGS += -DTYPED

$(OBJECTS): tracers/probes.bpf.c $(wildcard tracers/*.h) $(VENV)/.packages
	clang $(BPF_FLAGS) -DWORDS=$(WORDS) -c $< -o $@.new && mv $@.new $@

demo: setup
	@sh demo.sh

test: setup check
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/wakescope
	cd $(VENV)/src && MYPYPATH=. ../bin/mypy --config-file wakescope/pyproject.toml \
		-p wakescope.tracers -p wakescope.analysis -p wakescope.model -p wakescope.testbox -m wakescope.cli

# About an hour on two cores; what build/fidelity already holds is not recorded again.
fidelity: setup
	$(BIN)/python -m wakescope.testbox.campaign fidelity build/fidelity
	$(BIN)/python -m wakescope.testbox.campaign forks build/fidelity
	$(BIN)/python -m wakescope.model.fidelity tests/corpus build/fidelity > docs/fidelity.md.new
	mv docs/fidelity.md.new docs/fidelity.md

bench: setup
	$(BIN)/python -m wakescope.tracers.bench docs/benchmarks.md
	$(BIN)/python -m wakescope.analysis.bench docs/benchmarks.md

clean:
	rm -rf $(VENV) $(OBJECTS) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
