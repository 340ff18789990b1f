# Every target sets itself up: a fresh machine needs python 3.11 or newer, make and the package registry, nothing else.

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))))
BIN := .venv/bin
READY := .venv/ready
BIN_HTTPX := .venv-httpx/bin
READY_HTTPX := .venv-httpx/ready

.PHONY: help demo test test-httpx test-frameworks lint bench clean

help:
	@echo 'make demo    two agents are killed in the middle of their work and carry on'
	@echo 'make test    every check that a change has to pass'
	@echo 'make test-httpx   the interceptors on the last SDKs that speak httpx; part of make test'
	@echo 'make test-frameworks   agents of every supported framework, killed everywhere; writes docs/frameworks.md'
	@echo 'make lint    the checks that run no test'
	@echo 'make bench   the figures'
	@echo 'make clean   remove what these targets made'

demo: $(READY)
	$(BIN)/python examples/demo/main.py

test: lint test-httpx
	$(BIN)/python -m tests.frameworks.build light
	$(BIN)/python -m pytest -n 2

test-httpx: $(READY_HTTPX)
	$(BIN_HTTPX)/python -m pytest -n 2 tests/interceptors

test-frameworks: $(READY)
	$(BIN)/python -m tests.frameworks.run

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python bench/run.py

clean:
	rm -rf .venv .venv-httpx .venv-frameworks build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(READY_HTTPX): pyproject.toml constraints-httpx.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv-httpx
	$(BIN_HTTPX)/python -m pip install --quiet --disable-pip-version-check -c constraints-httpx.txt -e '.[test]'
	@touch $@

define python-is-there
@test -n '$(PYTHON)' || { echo 'steplog needs python 3.11 or newer; name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo '$(PYTHON) has no venv module; install it (on Debian: apt-get install python3-venv) and run make again' >&2; exit 1; }
endef
