# Every target makes what it needs: with Python 3.11 or later, a C compiler (optional) and a package index, `make demo`
# and `make test` work in a fresh clone. ARGS is passed on: make demo ARGS=--json, make test ARGS=tests/unit.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
# Without it each worker and each server of a test compiles all modules again, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test check format bench simulate torture cluster moto minio proto sync-client clean

ROOTS := cli client migration pipeline proto service storage testing tiering
CODE := $(ROOTS) tests benchmarks hatch_build.py
BIN := .venv/bin
ARGS ?=
# As many workers as tests/conftest.py says. A worker takes tests that lie side by side, so most files, and with them the
# servers that their tests share, stay with one worker. ARGS come last: make test ARGS="-n0 tests/unit/log" runs in one process, as --pdb does.
PYTEST := $(BIN)/python -m pytest -n auto --dist=worksteal

# Spark needs Java 17 or later; the spark extra is installed where it is found.
SPARK := $(shell scripts/has_java.sh && echo ,spark)
# What an installation is made of: a change of any of these installs again. Sources of the roots are used in place.
INSTALLED_FROM := pyproject.toml hatch_build.py scripts/install.sh \
	$(shell find $(ROOTS) -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.c' -o -name '*.h')
DEMO := .venv/.installed-demo$(SPARK)
DEV := .venv/.installed-dev$(SPARK)

help:  ## Say what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-11s %s\n", $$1, $$2 }'

demo: $(DEMO)  ## Replay real data through append, tiering, compaction, restore and Spark, and check it
	@$(BIN)/stratalog demo $(ARGS)

install: $(DEV)  ## Install all that checks and tests need into .venv

test: $(DEV)  ## Run all tests on all cores, or some: make test ARGS=tests/unit
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST) $(ARGS)

check: $(DEV)  ## Run all static checks, to the last one whichever fails
	@scripts/check.sh $(BIN)

format: $(DEV)  ## Format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)  ## Run the benchmarks, each beside its reference: make bench ARGS=--quick
	@for benchmark in $$(grep -l '__main__' benchmarks/*.py benchmarks/service/*.py benchmarks/spark/*.py); do \
		echo "== $$benchmark"; PYTHONPATH=.:benchmarks $(BIN)/python $$benchmark $(ARGS); done

# MinIO, a second S3 server that is not a mock, takes minutes to build: tests use it where it is, and this builds it.
simulate: $(DEV)  ## Run the simulations and all sweeps, nothing sampled, with new seeds; takes hours
	@if command -v go >/dev/null; then scripts/minio.sh || echo "MinIO could not be built: its tests skip"; fi
	@export HYPOTHESIS_PROFILE=simulate STRATALOG_SIMULATION_SEEDS=$${STRATALOG_SIMULATION_SEEDS:-500}; \
	export STRATALOG_SIMULATION_FIRST_SEED=$${STRATALOG_SIMULATION_FIRST_SEED:-$$(date +%s)}; \
	$(PYTEST) --timeout=0 tests/simulation tests/property tests/model tests/crash tests/integration/tier tests/integration/restore tests/cluster \
		$$(grep -rlE 'CrashSweep\(|Sampling\(|some_seeds\(|whole_only' tests/unit tests/integration/cli tests/integration/kafka tests/integration/service) $(ARGS)

torture: $(DEV)  ## Local logs under everything at once, clients through restarts and kills for ten minutes each, and a soak of an hour
	@export STRATALOG_TORTURE_S=$${STRATALOG_TORTURE_S:-600}; \
	export STRATALOG_SOAK_S=$${STRATALOG_SOAK_S:-3600}; \
	export STRATALOG_TORTURE_SEED=$${STRATALOG_TORTURE_SEED:-$$(date +%s)}; \
	$(BIN)/python -m pytest tests/torture $(ARGS)

cluster: $(DEV)  ## Spark on a cluster of two workers that the tests start, with lost tasks and executors; takes minutes
	@STRATALOG_CLUSTER=1 $(BIN)/python -m pytest tests/cluster $(ARGS)

moto: $(DEV)  ## Serve S3 from memory on this machine, for trying out: make moto ARGS="--port 0"
	@$(BIN)/stratalog dev s3 moto $(ARGS)

minio: $(DEMO)  ## Build MinIO once (needs Go) and serve S3 on this machine, for trying out
	@scripts/minio.sh
	@$(BIN)/stratalog dev s3 minio --data .cache/minio $(ARGS)

proto: $(DEV)  ## Generate stubs, the client's values and docs/api.md from the .proto files; new parts join the contract
	scripts/generate_stubs.sh
	$(BIN)/python scripts/client_values.py
	$(BIN)/python scripts/api_page.py
	$(BIN)/python scripts/api_breaks.py

sync-client: $(DEV)  ## Write the calls of the synchronous client from the asynchronous one
	$(BIN)/python scripts/sync_client.py

clean:  ## Delete everything that can be made again
	rm -rf .cache .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(ROOTS) -name '*.so' -delete
	find $(ROOTS) tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@scripts/create_venv.sh

.venv/.installed-demo%: $(INSTALLED_FROM) | $(BIN)/python
	@scripts/install.sh demo$*
	@touch $@

.venv/.installed-demo: $(INSTALLED_FROM) | $(BIN)/python
	@scripts/install.sh demo
	@touch $@

.venv/.installed-dev%: $(INSTALLED_FROM) | $(BIN)/python
	@scripts/install.sh dev$*
	@touch $@ .venv/.installed-demo$*

.venv/.installed-dev: $(INSTALLED_FROM) | $(BIN)/python
	@scripts/install.sh dev
	@touch $@ .venv/.installed-demo
