# Everything runs in .venv, which is made on first use: nothing but Python 3.11 or newer and make is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast test-all lint docs clean

# One thread: the demo's matrices are small. On busy cores, threads that wait for each other made it four times slower.
demo: .venv/package
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m experiments.demo

# One thread for each of two processes: threads that wait for each other on busy cores take several times as long. Each
# process starts with one half of the tests, so that the tests of a file share their fixtures. A process that has finished
# takes tests from the other one. The slowest tests are listed at the end.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 60 --durations-min 3

# What a contributor needs: of the exhaustive groups of tests, representatives (tests/groups.py).
test: .venv/ready
	$(PYTEST) -m "not exhaustive"

# Everything: what `make test` runs, then the rest of the exhaustive groups.
test-all: test
	$(PYTEST) -m exhaustive

# The daily loop: without tests that are slow or that need real tables.
test-fast: .venv/ready
	$(PYTEST) -m "not slow and not data and not exhaustive"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Strict: a broken link or a name that is not there is an error. The page of the command line is made from its help.
docs: .venv/ready
	$(BIN)/python -m typer nas.cli utils docs --name nas --output docs/api/commands.md
	$(BIN)/mkdocs build --strict --site-dir results/site

# The package alone is what the demo needs; tests, documentation and pretraining need more.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
.venv/package: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch .venv/package

.venv/ready: .venv/package
	$(INSTALL) -e '.[dev]'
	touch .venv/ready

clean:
	rm -rf .venv results build *.egg-info
