# Needs Python 3.11+, Java 17+ and make; everything else is installed into .venv.

PYTHON ?= python3
SEED := $(or $(SEED),$(shell date +%s))
PART := 1/1

BIN := .venv/bin
RUNTIME := .venv/installed
TOOLS := .venv/installed-dev
CLASSES := .venv/spark-classes/classes.jsa

# Every process that a test starts would compile headrace again.
unexport PYTHONDONTWRITEBYTECODE

# Both names: pip 25.3 and newer take the build's constraints from the second. Relative, because
# pip splits the value at spaces.
export PIP_CONSTRAINT := requirements.lock
export PIP_BUILD_CONSTRAINT := requirements.lock
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-fast test-deep check peers bench clean java

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

setup: $(RUNTIME) ## make .venv and install headrace into it

demo: setup ## run the main job end to end on this machine
	@$(BIN)/headrace demo

test: $(TOOLS) $(CLASSES) ## run every test but the deep ones, and name the ten slowest
	@$(BIN)/pytest -m "not deep" -n 3 --dist loadfile --no-loadscope-reorder --durations=10

test-fast: $(TOOLS) ## run the short tests, without Spark and without kills, in under a minute
	@$(BIN)/pytest -q -m "not (spark or crash or long or deep)" --hypothesis-profile=fast -n auto --dist worksteal

test-deep: $(TOOLS) $(CLASSES) ## run every test, with new examples and kills; SEED=n repeats it, PART=2/5 runs a fifth
	HEADRACE_SEED=$(SEED) $(BIN)/pytest --hypothesis-profile=deep --hypothesis-seed=$(SEED) --timeout=1800 \
	  -n 3 --dist loadfile --no-loadscope-reorder --part=$(PART)

check: $(TOOLS) ## formatting, lint, types, and the rules of tests/test_tidy.py
	$(BIN)/ruff format --check src tests examples
	$(BIN)/ruff check src tests examples
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_tidy.py

# Without them those tests are skipped, and say so.
PEERS := prometheus victoria-metrics

peers: ## install what tests compare the stores with, where apt-get may
	@for peer in $(PEERS); do command -v $$peer >/dev/null || missing="$$missing $$peer"; done; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] || { \
	  echo "tests that need$$missing are skipped: install them" >&2; exit 0; }; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing >/dev/null || \
	  echo "could not install$$missing: tests that need them are skipped" >&2

bench: setup ## measure what docs/ states
	@$(BIN)/headrace bench journal
	@$(BIN)/headrace bench catalog
	@$(BIN)/headrace bench shuffle
	@$(BIN)/headrace bench members
	@$(BIN)/headrace bench scale
	@$(BIN)/headrace bench queue
	@$(BIN)/headrace bench utilisation
	@$(BIN)/headrace bench recovery
	@$(BIN)/headrace bench ledger
	@$(BIN)/headrace bench ingest
	@$(BIN)/headrace bench exchange
	@$(BIN)/headrace bench spark

clean: ## remove .venv, caches and builds
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,WHAT): into .venv, which is made anew unless it works.
define install
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "headrace needs Python 3.11 or newer, and '$(PYTHON)' is not: install it," \
	    "or name another with make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "headrace needs the venv module, and '$(PYTHON)' has none: install it" \
	    "(on Debian and Ubuntu the package python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "making .venv with $$("$(PYTHON)" --version)"; "$(PYTHON)" -m venv --clear .venv; }
	@echo "installing $(1) and what it needs into .venv: the first time about half a gigabyte," \
	  "mostly Spark, which takes a minute or more"
	@$(BIN)/python -m pip install --no-input --editable '$(1)'
	@echo "installed: run 'source .venv/bin/activate', or .venv/bin/headrace"
endef

$(RUNTIME): pyproject.toml requirements.lock | java
	$(call install,.)
	@touch $@

$(TOOLS): pyproject.toml requirements.lock | java
	$(call install,.[dev])
	@touch $(RUNTIME) $@

# Tests run without it, too, but slowly.
$(CLASSES): $(TOOLS) tests/spark/class_archive.py
	@echo "writing an archive of Spark's classes, so that the tests' JVMs start faster"
	-@$(BIN)/python -m tests.spark.class_archive

# Found as Spark finds it.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${major:-0}" -ge 17 ] || { \
	  echo "headrace needs Java 17 or newer, and '$$java' is not: install a JDK or JRE," \
	    "and put it on PATH or set JAVA_HOME" >&2; exit 1; }
