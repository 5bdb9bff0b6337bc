# The short commands. Each target that needs the environment makes it first.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup bench test apply status reverse lint clean

BASE ?= v0.5.17
PY := build/venv/bin/python
export PYTHONPATH := $(CURDIR)/python

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## make the locked environment (once per lock file; 2.5 GB in a cache folder)
	@scripts/setup

bench: setup ## as released and patched side by side on a real server: table, JSON and plot under build/bench/
	@$(PY) -m hicache_bench

test: setup ## lint, tool tests, registered tests as released and after each patch, real-server tests
	@scripts/test

apply: setup ## patch a sglang folder or checkout: make apply TARGET=/path
	@$(PY) -m patchseries apply $(if $(TARGET),"$(TARGET)",)

status: setup ## what state a target is in: make status TARGET=/path
	@$(PY) -m patchseries status $(if $(TARGET),"$(TARGET)",)

reverse: setup ## take the series out again: make reverse TARGET=/path
	@$(PY) -m patchseries reverse $(if $(TARGET),"$(TARGET)",)

lint: setup ## patches, our packages (ruff, mypy --strict) and what goes upstream (black, isort, ruff)
	@scripts/lint

clean: ## remove build/ (the shared environment and wheel cache stay; see scripts/setup)
	rm -rf build
