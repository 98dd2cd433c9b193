# Everything a clone needs, from nothing to a demo. Each step is skipped when it is done already.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
MINUTES ?= 10
WORKERS ?= 3
EXAMPLES := bash_env code_env gsm8k_env plot_env node_env

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup venv engine base check docs image test soak bench demo examples clean

help: ## Show this list
	@sed -n -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

setup: venv engine base ## Virtual environment, Docker engine and base image

venv: $(READY)

$(READY): pyproject.toml requirements-dev.txt
	@bash .ci/venv.sh "$(PYTHON)" "$(VENV)"
	@echo "venv: installing ors-host and its development tools"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=off -r requirements-dev.txt -e . 2>&1 | \
	    sed -u -E -e '/^ *(Requirement already|Looking in|WARNING: Location|Obtaining|Downloading|Using cached)/d' \
	        -e '/^ *(Preparing|Getting|Checking|Building|Created|Stored|Installing|Successfully)/d' \
	        -e 's/ \(from .*//; s#^Processing .*/#Collecting #'
	@touch $@

engine: ## Find a Docker engine, or install and start one (root on Debian or Ubuntu)
	@bash images/engine.sh

base: venv engine ## Build the base image of the environments
	@$(BIN)/python -m host.base_image

check: venv ## Formatting, lint, types and documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

docs: venv ## Build the documentation: docs/_build/index.html
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "docs: docs/_build/index.html"

image: setup ## Build the image of the host itself (deploy/Dockerfile), without a registry if need be
	@$(BIN)/python -m deploy.image

test: setup ## Run the test suite (ARGS="-k name" to choose: by one process, in order)
ifdef ARGS
	$(BIN)/pytest $(ARGS)
else
	@failed=0; \
	$(BIN)/pytest -m "not alone" --numprocesses=$(WORKERS) --dist=loadscope --no-loadscope-reorder || failed=1; \
	echo "test: now those that can't bear company, one after the other"; \
	$(BIN)/pytest -m alone || failed=1; \
	echo "test: now one host's tests again, with a Ray cluster in its place"; \
	ORS_TEST_ENGINE=ray $(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadscope --no-loadscope-reorder tests/docker || failed=1; \
	exit $$failed
endif

soak: setup ## Sessions and faults at random (MINUTES=10, SEED=… to repeat; or CYCLES=5000: create and delete)
	@$(BIN)/python -m tests.lifecycle.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CYCLES),--cycles $(CYCLES))

bench: setup ## Measure against ors-sdk's own server and the engine itself (QUICK=1: 3 minutes; ONLY=row,…)
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

examples: setup
	@for name in $(EXAMPLES); do $(BIN)/ors-host build examples/$$name -t $${name//_/-}:latest; done

demo: examples ## Serve the examples and play whole episodes on them
	@$(BIN)/python examples/demo.py

clean: ## Remove what was made in this folder (images and engine stay)
	rm -rf $(VENV) build dist docs/_build bench/.cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
