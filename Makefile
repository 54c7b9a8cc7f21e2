PYTHON ?= python3
# Another Python, as in `make test PYTHON=python3.13`, gets its own venv: .venv-3.13.
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(or $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'),$(error $(PYTHON) does not run))
endif
BIN := $(VENV)/bin
BENCH := .bench-venv
# More than there are cores: many tests wait for processes.
JOBS ?= 3
# Containers often set PYTHONDONTWRITEBYTECODE. Each worker would then compile all tests in each run.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest
# The length of a soak on each store.
MINUTES ?= 10
SEED ?=
# The tests that depend most on the version of Python: stores, surfaces without the browser, forks.
VERSION_TESTS := tests/stores tests/surfaces tests/hazards/test_threads_and_forks.py --ignore=tests/surfaces/test_page_browser.py
# The long tests that CI runs on the newest Python.
VERSION_SAMPLE := tests/surfaces/test_page_http.py tests/surfaces/test_server_process.py tests/hazards/test_threads_and_forks.py tests/unit/test_flock.py tests/unit/test_jobs_reaping.py
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make .venv with everything that development needs

$(VENV)/.ready: pyproject.toml dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint dev.lock --editable '.[dev]'
	@touch $@

run: setup ## See it work: a tour of about ten seconds on a store in a temporary folder
	$(BIN)/holdfast tour

test: setup ## Run the gate, for every change (under 5 minutes on 2 cores)
	tools/test-needs $(BIN)
	$(PYTEST) -n $(JOBS) --dist worksteal

test-quick: setup ## Run only the rules, on the fast stores (under a minute)
	$(PYTEST) -n $(JOBS) --dist worksteal -m 'not prove and not exhaustive and not slow' -k 'not postgres and not files' tests/unit tests/house

prove: setup ## Run long and statistical tests: kills, power loss, crowds, browser (about 20 minutes)
	tools/test-needs $(BIN)
	$(BIN)/python -m proof -n $(JOBS) --dist worksteal -m 'prove and not exhaustive'

test-agents: setup ## Drive the real tools (Claude Code, Codex, opencode, Gemini CLI), installed from npm
	tools/test-needs $(BIN)
	tools/agent-tools
	$(BIN)/python -m proof -n $(JOBS) --dist worksteal -m tools tests/real_agents

prove-all: setup ## Run the tests that take hours: exceptions raised at every line of every operation
	tools/test-needs $(BIN)
	$(BIN)/python -m proof -n $(JOBS) --dist worksteal -m exhaustive

test-version: setup ## Run the gate and long tests that depend on the Python: PYTHON=python3.13
	tools/test-needs $(BIN)
	$(PYTEST) -n $(JOBS) --dist worksteal
	$(BIN)/python -m proof -n $(JOBS) --dist worksteal -m 'prove and not exhaustive' $(VERSION_TESTS)

test-newest: setup ## Run the gate with coverage on the newest Python here, if newer than that of .venv
	@newest=$$($(BIN)/python tools/newest_python.py) && { [ -z "$$newest" ] || $(MAKE) test-covered PYTHON="$$newest"; }

# sys.monitoring makes coverage nearly free, and exists since Python 3.12.
test-covered: setup
	tools/test-needs $(BIN)
	COVERAGE_CORE=sysmon $(PYTEST) -n $(JOBS) --dist worksteal --cov=holdfast --cov-report=
	@echo "coverage of the gate: $$($(BIN)/coverage report --format=total) %"
	$(BIN)/python -m proof -n $(JOBS) --dist worksteal -m 'prove and not exhaustive' $(VERSION_SAMPLE)

frozen: setup ## Rewrite the snapshots of what users see (tests/frozen)
	tools/test-needs $(BIN)
	$(BIN)/python -m tests.frozen

check: setup ## Check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## Write dev.lock with the newest versions that development needs
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --extra dev --upgrade --output-file dev.lock pyproject.toml

bench: ## Measure against peers and write docs/benchmarks.md
	bench/needs $(PYTHON) $(BENCH)
	$(BENCH)/bin/python -m bench

soak: setup ## Use all domains under kills: MINUTES=10 on each store, SEED= to repeat a run
	$(BIN)/python -m proof.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutate: setup ## Break each rule of kernel and primitives, and write docs/mutation.md
	$(BIN)/python -m proof.mutation

docs: setup ## Draw the pictures of the docs and write the dashboard
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/dashboard.py
	$(BIN)/python -m tools.page_pictures

record: setup ## Record a session with the real Claude Code (docs/recording.md)
	tools/agent-tools
	$(BIN)/python -m tools.agent_recording

clean: ## Remove what the other targets made
	rm -rf .venv .venv-3.* $(BENCH) .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup run test test-quick test-version test-newest test-covered test-agents prove prove-all frozen check lock format bench soak mutate docs record clean
