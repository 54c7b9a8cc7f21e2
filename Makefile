PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .bench-venv
# More than there are cores: most tests wait for processes.
JOBS ?= 3
# Of a soak, on each store.
MINUTES ?= 10
SEED ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Make .venv with everything that development needs

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

run: setup ## See it work: a tour of half a minute on a store in a temporary folder
	$(BIN)/holdfast tour

test: setup ## Run the whole suite (under 15 minutes on 2 cores)
	tools/test-needs
	$(BIN)/pytest -n $(JOBS) --dist worksteal

test-quick: setup ## Run the quick part of the suite (under a minute)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not slow'

check: setup ## Check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ## Measure against peers and write docs/benchmarks.md
	bench/needs $(PYTHON) $(BENCH)
	$(BENCH)/bin/python -m bench

soak: setup ## Use everything while it is killed: MINUTES=10 on each store, SEED= to repeat one
	$(BIN)/python -m tools.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutate: setup ## Break each rule of kernel and primitives, and write docs/mutation.md
	$(BIN)/python -m tools.mutate

docs: setup ## Draw the pictures of the docs and write the dashboard
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/dashboard.py
	$(BIN)/python -m tools.page_pictures

clean: ## Remove what the other targets made
	rm -rf $(VENV) $(BENCH) .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup run test test-quick check format bench soak mutate docs clean
