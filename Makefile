# Every target sets up what it needs: a virtual environment, its packages and, as root, system
# packages. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.PHONY: help setup run test lint types unit test-agents test-system bench-box bench-money bench-audit bench-logs redaction-report clean

help:
	@echo "make run          box a small real agent that repairs a failing test (no key, no network)"
	@echo "make test         formatting, types, and all tests that run on this machine"
	@echo "make test-agents  every known agent program in a box, installed below ~/.cache (2.5 GB)"
	@echo "make test-system  the same promises in a Debian virtual machine with cgroup v2"
	@echo "make bench-box    measure the box and the kill beside their peers"
	@echo "make bench-logs   measure the redactor beside other scanners, and under floods"
	@echo "make redaction-report  its precision and recall on a generated corpus"
	@echo "make bench-money  measure the gateway and the ledger, beside LiteLLM's proxy"
	@echo "make bench-audit  measure lint, verification and the unit's exposure"

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup "$(PYTHON)" "$(VENV)"
	@touch $@

setup: $(VENV)/.ready

run: setup
	@PATH="$(CURDIR)/$(RUN):$$PATH" examples/demo

lint: setup
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .

types: setup
	$(RUN)/mypy

unit: setup
	$(RUN)/pytest tests/unit tests/arch

test: lint types
	$(RUN)/pytest

test-agents: setup
	$(RUN)/pytest tests/agents/every_program.py tests/agents/test_*.py

test-system: setup
	PATH="$(CURDIR)/$(RUN):$$PATH" tests/system/run

bench-box: setup
	$(RUN)/python -m bench.box

bench-logs: setup
	$(RUN)/python -m bench.logs

redaction-report: setup
	$(RUN)/python -m bench.redaction

bench-money: setup
	$(RUN)/python -m bench.money

bench-audit: setup
	$(RUN)/python -m bench.audit

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
