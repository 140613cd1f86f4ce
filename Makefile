# `make help` lists what there is. Everything is installed into .venv, from the lock file, by the first target
# that needs it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTS ?= tests
PROCESSES ?= 2
CHECKOV := 3.3.30

.PHONY: help setup demo up test unit lint format bench lock clean checkov

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-8s %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## Install everything into .venv (Python 3.11 or later)

demo: $(INSTALLED) ## Run the main job on real orders, break it on the way, prove that it did no harm
	$(BIN)/echoproof demo

up: $(INSTALLED) ## Start the whole pipeline on this machine; Ctrl-C stops it
	$(BIN)/echoproof up

test: $(INSTALLED) ## Run every test; what this machine lacks is skipped with a line that says so
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile $(TESTS)

unit: $(INSTALLED) ## Run the unit tests alone, in seconds
	$(BIN)/pytest -q tests/unit

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v terraform >/dev/null; then terraform -chdir=infra fmt -check -diff -recursive; \
		else echo "terraform is not installed: the format of infra/ is not checked"; fi
	@if [ -x .venv-checkov/bin/checkov ]; then $(MAKE) -s checkov; \
		else echo "checkov is not installed (make checkov): the deployment is not scanned"; fi

checkov: .venv-checkov/bin/checkov ## Scan infra/ for what is open or unencrypted; skips are explained in the code
	.venv-checkov/bin/checkov --directory infra --framework terraform --compact --quiet --skip-download

format: $(INSTALLED) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## Measure the hot paths beside the usual way and the raw floor (minutes)
	$(BIN)/python -m benchmarks

lock: $(INSTALLED) ## Renew requirements.lock from pyproject.toml, and from both what the functions install
	$(BIN)/uv pip compile -q pyproject.toml --all-extras --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --python-version 3.11 --upgrade -o requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --constraints requirements.lock --generate-hashes --no-emit-index-url \
		--no-header --no-annotate --python-version 3.11 -o infra/requirements.txt

clean: ## Remove what was installed and built
	rm -rf .venv .venv-checkov .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts

# In an environment of its own, because it pins many packages that others here want newer.
.venv-checkov/bin/checkov: | $(INSTALLED)
	@echo "installing checkov into .venv-checkov (once) …"
	@$(PYTHON) -m venv --clear .venv-checkov
	@.venv-checkov/bin/python -m pip install -qq --disable-pip-version-check "checkov==$(CHECKOV)"

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: install it, or set PYTHON"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed, $(PYTHON) is $$($(PYTHON) -V): set PYTHON"; exit 1; }
	@echo "installing into .venv (once, a minute or two) …"
	@$(PYTHON) -m venv .venv || { echo "python3-venv is needed: on Debian, apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
