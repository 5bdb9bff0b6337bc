# The short commands. Each target that needs the environment makes it first.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup bench test apply status reverse lint clean check rebuild export wheel dist

BASE ?= v0.5.17
PY := build/venv/bin/python
export PYTHONPATH := $(CURDIR)/python

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## make the locked environment (once per lock file; 2.7 GB in a cache folder)
	@scripts/setup >/dev/null

bench: setup ## as released and patched side by side, on real servers and on the cache alone: tables, JSON, plots
	@$(PY) -m hicache_bench
	@$(PY) -m hicache_bench cache

test: setup ## lint, tool tests, registered tests as released and after each patch, real-server tests
	@scripts/test

apply: target setup ## patch a sglang folder or checkout: make apply TARGET=/path
	@scripts/patchseries apply "$(TARGET)"

status: target setup ## what state a target is in: make status TARGET=/path
	@scripts/patchseries status "$(TARGET)"

reverse: target setup ## take the series out again: make reverse TARGET=/path
	@scripts/patchseries reverse "$(TARGET)"

.PHONY: target
target:
	@test -n "$(TARGET)" || { echo "make: no TARGET; expected a folder that holds sglang/, or a checkout; type: make $(firstword $(MAKECMDGOALS)) TARGET=/path/to/site-packages" >&2; exit 2; }

check: target setup ## say what apply would do, and write nothing: make check TARGET=/path
	@scripts/patchseries check "$(TARGET)"

rebuild: setup ## the series as a git repository, one commit per patch, to edit it in: build/edit/BASE
	@scripts/rebuild $(BASE)

export: setup ## write the commits of build/edit/BASE back as patches
	@scripts/patchseries export build/edit/$(BASE)

wheel: setup ## a wheel of the patched release for this python, in dist/
	@scripts/patchseries wheel --base $(BASE) --out dist

dist: setup ## this project's own wheel and sdist, the series inside, in dist/
	@$(PY) -m patchseries.dist --out dist

lint: setup ## patches, our packages (ruff, mypy --strict) and what goes upstream (black, isort, ruff)
	@scripts/lint

clean: ## remove build/ (the shared environment and wheel cache stay; see scripts/setup)
	rm -rf build
