# `make` alone lists the targets. Two of them do all the set-up they need: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEV_READY := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast test-process test-releases lint lab publish ssh-server

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY) ## install everything into .venv (about 11 GB, once)

run: $(READY) ## run the suite with parameters/cpu.yaml and publish a report
	@$(BIN)/breakeven run $(or $(PARAMS),parameters/cpu.yaml) $(ARGS)

publish: $(READY) ## write a run's report again: make publish RUN=outputs/by-hand
	@$(BIN)/breakeven publish $(or $(RUN),$(error say which run: make publish RUN=outputs/...))

lab: $(READY) ## open JupyterLab on the notebooks
	@$(BIN)/jupyter lab notebooks

lint: $(DEV_READY) ## ruff and mypy, notebooks included
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

test-fast: $(DEV_READY) ## unit tests alone
	@$(BIN)/python -m pytest -m "not process and not e2e and not releases" --numprocesses 2 --dist worksteal

test-process: ssh-server $(DEV_READY) ## tests that start kernels, small servers, sshd or ranks of their own
	@$(BIN)/python -m pytest -m "process and not e2e" --numprocesses 2 --dist worksteal

test-releases: $(DEV_READY) ## the gates and the change on released sources from the registry (some ten minutes)
	@$(BIN)/python -m pytest -m releases --numprocesses 2 --dist loadfile

test: ssh-server lint test-fast test-process ## everything: lint, unit tests, the real server end to end
	@$(BIN)/python -m pytest -m e2e

ssh-server:
	@[ -x /usr/sbin/sshd ] || { echo "/usr/sbin/sshd is missing: the tests reach a server of their own through it; on Debian and Ubuntu: apt-get install openssh-server" >&2; exit 1; }

# the stamps depend on the lists of packages: a second `make run` installs nothing
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Say which: make PYTHON=python3.12 ...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

$(DEV_READY): $(READY) requirements-dev.txt
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@
