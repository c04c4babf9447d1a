# `make run` and `make test` install everything they need. The other targets are for development.
#
#   PYTHON=python3.12   the interpreter that creates the environments (3.11 or newer)
#   JOBS=4              number of processes that run the tests
#
# An environment is created once, and updated only when pyproject.toml or a source of the compiled
# code changes. After changing PYTHON, run `make clean` first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
JOBS ?= 2
export PYTHON

# Python modules with a .pxd beside them are compiled as well.
COMPILED := $(wildcard src/penstock/*/*.pyx src/penstock/*/*.pxi src/penstock/*/*.h) \
	$(foreach pxd,$(wildcard src/penstock/*/*.pxd src/penstock/*/*/*.pxd),$(pxd) $(pxd:.pxd=.py))
BUILT = $(wildcard src/penstock/*/*.c src/penstock/*/*.so src/penstock/*/*/*.c src/penstock/*/*/*.so)
IMPORTS = import penstock.clock._clock, penstock.codec._codec, penstock.ledger.sync_pool; \
	import penstock.server._strict_scan, penstock.server._deliveries; \
	import penstock.server.connection
QUICK := tests/operations tests/clock \
	tests/codec/test_{checksum,messages,pack,packer,payloads,scan,unpack}.py \
	tests/ledger/test_{appending,closing,commit,index,manifest,opening,reading,recovery}.py \
	tests/ledger/test_{rotation,snapshots,transactions}.py \
	tests/queue/test_{cancel_purge_pause,dead_letters,dedup,delays,fifo,groups,keys,leases}.py \
	tests/queue/test_{priorities,receipts,retries,retry_info,seek,settings,ttl,why_and_history}.py
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: help
help:
	@echo "make run        install into .venv and serve ./data at http://127.0.0.1:8080"
	@echo "make run-cluster  two brokers on PostgreSQL with a standby, from nothing: see a failover"
	@echo "make demo       a broker with five minutes of lively traffic, to look at in a browser"
	@echo "make pipeline   the order pipeline on Spark for two minutes with faults; nothing may be missing"
	@echo "make test       lint, types, import contracts and the default tests: about 20 minutes"
	@echo "make quick      unit tests of the core, while editing: under a minute"
	@echo "make coverage   the default tests, with the share of lines and branches they run"
	@echo "make test-long  the long tests, and property tests with many more examples: hours"
	@echo "make lint       formatting, lint, types and import contracts only"
	@echo "make format     fix formatting, and what lint can fix"
	@echo "make docs       the documentation as a site, in build/docs/site"
	@echo "make protos     compile the .proto files of gRPC"
	@echo "make wheels     build the sdist and the wheels of this machine into dist/"
	@echo "make bench      the ledger benchmark, in its own environment .venv-bench"
	@echo "make bench-embedded  the embedded queue against other queues"
	@echo "make bench-server    the broker against beanstalkd, Redis and PostgreSQL"
	@echo "make bench-beanstalk  the beanstalk protocol, compared with beanstalkd"
	@echo "make bench-interfaces  every interface of the broker, side by side"
	@echo "make bench-wire  requests over HTTP by wrk, compared with a bare loop"
	@echo "make bench-postgres  the store on PostgreSQL against other queues in PostgreSQL"
	@echo "make bench-tasks     tasks against huey, dramatiq, RQ, Celery, taskiq and procrastinate"
	@echo "make bench-arrow     Arrow tables against Parquet read by pyarrow"
	@echo "make bench-spark     the Spark source against Spark's own Parquet"
	@echo "make bench-spark-scale  the Spark source as data, cores and time grow"
	@echo "make clean      remove environments, builds and caches"

.PHONY: run
run: .venv/.run
	.venv/bin/penstock serve ./data --host 127.0.0.1 --port 8080

.PHONY: run-cluster
run-cluster: machine-cluster .venv/.cluster
	.venv/bin/python scripts/run_cluster.py

.PHONY: demo
demo: .venv/.run
	.venv/bin/penstock demo --port 8080

# Two minutes of orders through queue, bronze, silver and gold, with faults; then everything is compared.
.PHONY: pipeline
pipeline: machine-test .venv/.dev
	.venv/bin/python -m examples.pipeline.run

.PHONY: test
test: machine-test lint
	.venv/bin/pytest -n $(JOBS)

# For use while editing: operations, clock, codec, ledger and queue, with the compiled codec only.
.PHONY: quick
quick: .venv/.dev
	.venv/bin/pytest -n $(JOBS) -x --durations=0 --durations-min=5 \
		-m "not long and not hypothesis" -k "not [python-" $(QUICK)

# One directory after another: a test process that hangs loses only the data of its directory.
.PHONY: coverage
coverage: machine-test .venv/.dev
	.venv/bin/coverage erase
	failed=; for part in $(sort $(dir $(wildcard tests/*/test_*.py))) "$(wildcard tests/test_*.py)"; do \
		PENSTOCK_HTTP=python .venv/bin/coverage run -m pytest -n $(JOBS) --timeout=600 $$part \
			|| failed+=" $$part"; \
	done; \
	.venv/bin/coverage combine --quiet; \
	.venv/bin/coverage report --skip-covered; \
	[ -z "$$failed" ] || { echo "Tests failed in:$$failed" >&2; exit 1; }

# The hypothesis plugin marks every property test, so they can be selected.
.PHONY: test-long
test-long: machine-long .venv/.long
	HYPOTHESIS_PROFILE=long .venv/bin/pytest -n $(JOBS) -m "long or hypothesis" --timeout=3600 -o faulthandler_timeout=4000

.PHONY: lint
lint: .venv/.dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

.PHONY: format
format: .venv/.dev
	.venv/bin/ruff check --fix-only
	.venv/bin/ruff format

# The documentation as a site. A broken link or anchor is an error; nothing is loaded from the network.
.PHONY: docs
docs: .venv/.docs
	.venv/bin/python scripts/build_docs.py build/docs

# After a change of a .proto file. A test compares the result with them.
.PHONY: protos
protos: .venv/.dev
	.venv/bin/python scripts/compile_protos.py

# The sdist, the wheel of this Python with its manylinux tag, and the one without compiled code.
.PHONY: wheels
wheels: .venv/.dev
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[release]'
	.venv/bin/python scripts/make_wheels.py

.PHONY: bench
bench: .venv-bench/.bench
	.venv-bench/bin/python benchmarks/ledger.py

.PHONY: bench-embedded
bench-embedded: .venv-bench/.bench
	.venv-bench/bin/python benchmarks/embedded.py

.PHONY: bench-server
bench-server: machine-bench .venv-bench/.bench
	.venv-bench/bin/python benchmarks/server.py

.PHONY: bench-beanstalk
bench-beanstalk: machine-bench .venv-bench/.bench
	.venv-bench/bin/python benchmarks/beanstalk.py

.PHONY: bench-interfaces
bench-interfaces: .venv-bench/.bench
	.venv-bench/bin/python benchmarks/interfaces.py

.PHONY: bench-wire
bench-wire: machine-bench .venv-bench/.bench
	.venv-bench/bin/python benchmarks/wire.py

.PHONY: bench-postgres
bench-postgres: machine-bench .venv-bench/.bench
	.venv-bench/bin/python benchmarks/postgres.py

.PHONY: bench-tasks
bench-tasks: machine-bench .venv-bench/.bench
	.venv-bench/bin/python benchmarks/tasks.py

.PHONY: bench-arrow
bench-arrow: .venv/.dev
	.venv/bin/python benchmarks/arrow_tables.py

.PHONY: bench-spark
bench-spark: machine-test .venv/.dev
	.venv/bin/python benchmarks/spark.py

.PHONY: bench-spark-scale
bench-spark-scale: machine-test .venv/.dev
	.venv/bin/python benchmarks/spark_scale.py

.PHONY: clean
clean:
	rm -rf .venv .venv-bench build dist src/*.egg-info $(BUILT)
	rm -rf .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# System packages that each kind of work needs: run, cluster, build, test, long, bench.
.PHONY: machine-%
machine-%:
	@scripts/setup-machine $*

# A stamp per environment and purpose. The compiled codec is optional for `make run` only. For the
# others it must import, because a failed build falls back to pure Python silently.
.venv/.created .venv-bench/.created: | machine-run
	$(PYTHON) -m venv --clear $(@D)
	touch $@

.venv/.run: .venv/.created pyproject.toml $(COMPILED)
	rm -f $(BUILT)
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[cli,server,tasks]'
	touch $@

.venv/.cluster: .venv/.run
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[cli,postgres]'
	touch $@

.venv/.docs: .venv/.created pyproject.toml
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[docs]'
	touch $@

.venv/.dev: .venv/.created pyproject.toml $(COMPILED) | machine-build
	rm -f $(BUILT)
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[dev]'
	PENSTOCK_HTTP=compiled .venv/bin/python -c '$(IMPORTS)'
	touch $@ .venv/.run .venv/.cluster .venv/.docs

.venv/.long: .venv/.dev
	@echo "Installing into .venv: a few minutes"
	.venv/bin/python $(PIP_INSTALL) --editable '.[long]'
	touch $@

.venv-bench/.bench: .venv-bench/.created benchmarks/requirements.txt pyproject.toml $(COMPILED) | machine-build
	rm -f $(BUILT)
	@echo "Installing into .venv-bench: a few minutes"
	.venv-bench/bin/python $(PIP_INSTALL) --requirement benchmarks/requirements.txt --editable '.[server,cli,postgres,grpc]'
	PENSTOCK_HTTP=compiled .venv-bench/bin/python -c '$(IMPORTS)'
	touch $@
