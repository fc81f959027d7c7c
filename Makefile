# Everything a newcomer needs: `make demo`, `make test`. Both create the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# With it, every process would compile rayfl again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

# The stamp makes a second `make` instant; it is older than pyproject.toml when dependencies changed.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rayfl needs Python 3.11 or newer; say which with: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	@# pip would compile on one core only. Some packages have files that are no Python; pip does not mind either.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

install: $(VENV)/.installed  ## the environment in .venv with rayfl in it

demo: $(VENV)/.installed  ## FedAC finds planted clusters in the digits; the last line is the run folder
	@$(BIN)/rayfl run

format: $(VENV)/.installed  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.installed  ## format, lint, imports and types, as CI checks them
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

test: $(VENV)/.installed  ## format, lint, types and all tests
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

# Two at a time, in order: much of it waits for processes to start. The files of one worker share one Ray.
pytest: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# One of them: make bench BENCH=round; a short form: make bench QUICK=--quick
BENCH ?= round trainers start similarity judgement scale sweep partition peers
bench: $(VENV)/.installed  ## speeds, as ratios measured in one run; on an idle machine
	@set -e; for name in $(BENCH); do $(BIN)/python benchmarks/$$name.py $(QUICK); done

chaos: $(VENV)/.installed  ## 200 random faults, seeded; every table must equal the undisturbed one
	@$(BIN)/python tests/chaos.py

soak: $(VENV)/.installed  ## 300 rounds with an actor killed every 10: nothing may grow or leak
	@$(BIN)/python tests/soak.py

cluster-test: $(VENV)/.installed  ## the real launcher on three virtual hosts (as root)
	@$(BIN)/python tests/cluster/on_virtual_hosts.py

graph: $(VENV)/.installed  ## write the import graph into CONTRIBUTING.md
	@$(BIN)/python docs/import_graph.py

clean:  ## forget the environment and the caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help install demo format lint test pytest bench chaos soak cluster-test graph clean
