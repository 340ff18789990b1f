# Every target sets itself up: a fresh machine needs python 3.11 or newer, make and the package registry, nothing else.

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))))
BIN := .venv/bin
READY := .venv/ready

# The pairs of SDK releases that the interceptors are tested with besides the newest, which is `.venv` itself. Each is
# named after its constraints/NAME.txt and lives in .venv-NAME.
ROWS := oldest httpx httpx2
# What a row runs, and what of it `make test` leaves to the newest pair, because it does not depend on the SDKs' release.
ROW_TESTS := tests/interceptors tests/matrix
NEWEST_ONLY := contract reported_programs mcp ambient ambient_aside websockets secret_corpus http google requests requests_library \
	end_marks encodings

# Every test starts processes, and each of them would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

# make 3, which some systems still have, mixes the lines of what runs at the same time.
IN_ONE_PIECE := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help demo test light-frameworks test-oldest test-nightly test-matrix test-sdk-suites test-coexistence test-frameworks lint bench compare clean

help:
	@echo 'make demo    two agents are killed in the middle of their work and carry on'
	@echo 'make test    every check that a change has to pass'
	@echo 'make test-nightly   what takes longer: more examples of each model, more kills, larger values'
	@echo 'make test-matrix   the interceptors on every pair of SDK releases that is supported'
	@echo 'make test-row-NAME   on one pair: $(ROWS) newest'
	@echo 'make test-frameworks   agents of every supported framework, killed everywhere; writes docs/frameworks.md'
	@echo 'make test-sdk-suites   the SDKs own tests, with steplog installed; an hour'
	@echo 'make test-coexistence   beside other tools that put themselves into the same SDKs'
	@echo 'make test-oldest   of the oldest SDKs, what make test runs'
	@echo 'make light-frameworks   the environment of the frameworks that make test runs'
	@echo 'make lint    the checks that run no test'
	@echo 'make bench   the figures, beside other systems; writes docs/benchmarks.md'
	@echo 'make compare   the same agents under other recorders; writes docs/comparison.md'
	@echo 'make clean   remove what these targets made'

demo: $(READY)
	$(BIN)/python examples/demo/main.py

# First the checks, the light frameworks and the oldest row, two at a time, each with its output in one piece; then the
# suite, as it goes. Three workers on two cores: many tests wait for a process, or for time to pass.
test:
	$(MAKE) --jobs=2 $(IN_ONE_PIECE) lint light-frameworks test-oldest
	$(BIN)/python -m pytest -n 3 --dist worksteal

light-frameworks: $(READY)
	$(BIN)/python -m tests.frameworks.build light

test-oldest: .venv-oldest/ready
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal $(ROW_TESTS) $(NEWEST_ONLY:%=--ignore=tests/interceptors/test_%.py)

# Everything that takes minutes, and every test with generated examples, with many more of them and never the same.
test-nightly: $(READY)
	env -u CI $(BIN)/python -m pytest -n 2 --hypothesis-profile=nightly -m 'nightly or part or hypothesis'

test-matrix: $(ROWS:%=test-row-%) test-row-newest

test-row-newest: $(READY)
	$(BIN)/python -m pytest -n 2 $(ROW_TESTS)

test-row-%: .venv-%/ready
	.venv-$*/bin/python -m pytest -n 2 $(ROW_TESTS)

test-sdk-suites: .venv-suites/ready $(READY)
	$(BIN)/python -m tests.suites.run $(CURDIR)/.venv-suites/bin/python build/suites

test-coexistence: .venv-coexistence/ready
	.venv-coexistence/bin/python -m pytest -n 2 tests/coexistence

test-frameworks: $(READY)
	$(BIN)/python -m tests.frameworks.run

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) .venv-peers/ready
	$(BIN)/python bench/run.py $(PARTS)

compare: $(READY) .venv-recorders/ready
	$(BIN)/python bench/compare_recorders.py $(CASES)

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv-suites/ready .venv-coexistence/ready: .venv-%/ready: tests/%/requirements.txt pyproject.toml
	$(python-is-there)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r $< -e .
	@touch $@

# The systems that the benchmark compares with. steplog itself is measured in `.venv`.
.venv-peers/ready: bench/peers/requirements.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The recorders that steplog is compared with.
.venv-recorders/ready: bench/recorders/requirements.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv-recorders
	.venv-recorders/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Made by a pattern, so make would take the stamps for scraps and remove them.
.PRECIOUS: .venv-%/ready
.venv-%/ready: pyproject.toml constraints/%.txt
	$(python-is-there)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/$*.txt -e '.[test]'
	@touch $@

define python-is-there
@test -n '$(PYTHON)' || { echo 'steplog needs python 3.11 or newer; name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo '$(PYTHON) has no venv module; install it (on Debian: apt-get install python3-venv) and run make again' >&2; exit 1; }
endef
