# Sluice on one machine. Everything it writes lies below SLUICE_HOME, by default var/.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Recipes take these from the environment, because make splits and expands what a path may have in it.
ifndef SLUICE_HOME
SLUICE_HOME := $(CURDIR)/var
endif
ifndef SLUICE_VENV
SLUICE_VENV := $(value SLUICE_HOME)/venv
endif
export SLUICE_HOME SLUICE_VENV NAME SOURCE COLUMNS KEYS

VENV_BIN := "$$SLUICE_VENV"/bin
IN_VENV := $(VENV_BIN)/python
# Three processes share the tests, so that they end together: the unit tests without Spark, and those of platforms,
# which wait most of their time; those that compute rows, and faults of checkpoints; those of tables.
UNITS := $(wildcard tests/unit/engine tests/docs/test_recipes.py tests/streaming/kafka tests/streaming/rows \
	tests/streaming/s3 tests/streaming/jobs/test_backfill.py tests/faults/changes tests/faults/views \
	tests/faults/test_checkpoints.py tests/faults/platforms/test_store_faults.py)
PLATFORMS := $(filter-out $(UNITS) tests/unit/conftest.py,$(wildcard tests/unit/[a-z]* tests/airflow \
	tests/docs/test_*.py tests/faults/platforms/test_*.py tests/faults/test_aimed_kills.py \
	tests/streaming/test_end_to_end.py tests/streaming/test_sql_server.py))
# They run with the lake on S3, too. The others damage files by hand, or start platforms with a disk of their own.
ON_S3 := $(addprefix tests/faults/,test_aimed_kills.py test_backfills.py test_full_refreshes.py test_interleavings.py \
	test_rewinds.py test_windows.py platforms/test_kills.py) \
	$(addprefix tests/streaming/jobs/,test_backfill.py test_replay.py test_rewind.py)

LOCK = $(VENV_BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --custom-compile-command "make lock"

# Each of the processes shows what it did at its end.
SIDE_BY_SIDE = $(MAKE) --no-print-directory --jobs=3 --output-sync=target test-platforms test-units test-tables
# Of all tests, those with this mark.
MARKED :=

# What checks Sluice needs more packages than what runs it.
dev docs test test-rest test-all test-setup test-platforms test-units test-tables faults-on-s3 cluster-test yarn-test soak protocol lint mutants: DEV := --dev

.DEFAULT_GOAL := help
.PHONY: help setup dev s3 connect tlc yarn store sbom audit class-data venv up down status demo new-table remove-examples check test test-rest test-all test-setup test-platforms test-units test-tables lint lock docs compose-env screenshot vendored console-tour recording bench faults faults-on-s3 cluster-test yarn-test soak protocol mutants clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: venv ## start everything that does not run yet; return when the streams run
	@$(IN_VENV) -m include.local.up

down: ## stop everything that `make up` started, and nothing else
	@if test -x $(IN_VENV); then $(IN_VENV) -m include.local.down; \
	else echo "nothing was stopped: there is no environment $$SLUICE_VENV; set SLUICE_VENV as for make up"; fi

status: venv ## what runs, and how far behind it is
	@$(IN_VENV) -m include.local.status

demo: venv ## walk through the examples that run: a row, its way, the quarantine, a killed driver that comes back
	@$(IN_VENV) -m include.local.demo

new-table: venv ## write the first file of a table: NAME=silver.orders SOURCE=bronze.orders COLUMNS="..."
	@$(IN_VENV) -m include.local.new_table "$$NAME" --source "$$SOURCE" --columns "$$COLUMNS" --keys "$$KEYS"

remove-examples: venv ## take the shipped examples out of this checkout
	@$(IN_VENV) -m include.local.remove_examples

check: setup ## refuse wrong table files, all in one run; DRAFTS=1: drafts, too
	@$(IN_VENV) -m include.cli check $(if $(DRAFTS),--drafts)

test: test-setup ## each guarantee at least once, in about 12 minutes on two cores
	@$(SIDE_BY_SIDE) MARKED="not slow"

test-rest: test-setup ## what `make test` leaves out
	@$(SIDE_BY_SIDE) MARKED=slow

test-all: test-setup ## all tests at once, which is quicker than the two above in turn
	@$(SIDE_BY_SIDE)

test-setup: setup s3 connect tlc
	-@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target class-data store

test-platforms: setup s3 connect tlc ## of all tests, those of Airflow and the documentation, and those without Spark
	@$(IN_VENV) -m pytest -m "$(MARKED)" $(PLATFORMS)

test-units: setup s3 connect ## of all tests, those of the engine's units, of brokers, stores and databases
	@$(IN_VENV) -m pytest -m "$(MARKED)" $(UNITS)

test-tables: setup s3 ## of all tests, the others, which share one Spark session
	@$(IN_VENV) -m pytest -m "$(MARKED)" $(patsubst %,--ignore=%,$(PLATFORMS) $(UNITS))

lint: venv ## style, format and types
	@$(VENV_BIN)/ruff check .
	@$(VENV_BIN)/ruff format --check .
	@$(VENV_BIN)/mypy
	@awk 'FNR == 1 {code = 0} /^```/ {code = !code} !code && length > 120 \
		{print FILENAME ":" FNR ": longer than 120 characters"; wrong = 1} END {exit wrong}' *.md docs/*.md docs/*/*.md

setup: venv ## the virtual environment and the JVM artifacts, nothing started
	@$(IN_VENV) -m include.local.artifacts

dev: venv ## what tests and style checks need, too, in the virtual environment

s3: venv ## the JVM artifacts for files that land on S3, 13 MB
	@$(IN_VENV) -m include.local.artifacts s3

connect: venv ## the JVM artifacts for changes of a PostgreSQL database, 8 MB
	@$(IN_VENV) -m include.local.artifacts connect

tlc: venv ## the model checker of TLA+, 3 MB
	@$(IN_VENV) -m include.local.artifacts tlc

yarn: venv ## a YARN for the test of its launcher, 66 MB
	@$(IN_VENV) -m include.local.artifacts yarn

sbom: setup ## write the bill of materials, $SLUICE_HOME/sbom.cdx.json, and check the pinned digests
	@$(IN_VENV) -m include.local.sbom

audit: setup ## look up all components in the advisories of OSV; fails if one is affected, or was not looked up
	@$(IN_VENV) -m include.local.advisories

store: venv ## the local S3 store, built by Go in 80 seconds, 61 MB
	@$(IN_VENV) -m include.local.object_store

class-data: setup ## the archive of classes that makes drivers start sooner, 200 MB; `make up` makes it by itself
	@$(IN_VENV) -m include.local.class_data

compose-env: ## write the secrets of docker-compose.yaml into .env, for `docker compose up`; STORE=1: with an S3 store
	@"$(PYTHON)" -m include.containers.compose_env $(if $(STORE),--store)

venv:
	@"$(PYTHON)" -m include.local.install $(DEV)

docs: venv ## the documentation as a site in $SLUICE_HOME/site, built without the network
	@PYTHONPATH="$$PWD" $(IN_VENV) docs/build_site.py

screenshot: dev ## take the screenshot of docs/start/demo.md from the running platform; needs Chromium
	@PYTHONPATH="$$PWD" $(IN_VENV) docs/screenshot.py

vendored: dev ## compare the scripts in include/console/static with npm's packages; needs npm and its registry
	@$(IN_VENV) -m tests.support.vendored

console-tour: dev ## walk through the console of the running platform in Chromium; kills a driver
	@PYTHONPATH="$$PWD" $(IN_VENV) -m docs.console_tour

recording: venv ## put what `make demo` prints on the running platform into the README
	@PYTHONPATH="$$PWD" $(IN_VENV) docs/record_demo.py

bench: setup ## the benchmarks
	@$(IN_VENV) -m benchmarks

faults: ## make test-all and faults-on-s3 at full length: what is killed while data flows must lose and double nothing
	@SLUICE_FAULTS=full $(MAKE) test-all
	@SLUICE_FAULTS=full $(MAKE) faults-on-s3

faults-on-s3: setup s3 ## kills, windows, interleavings, backfills, rewinds and replays with the lake on S3
	-@$(MAKE) --no-print-directory store
	@SLUICE_TEST_LAKE=s3 $(IN_VENV) -m pytest $(ON_S3)

cluster-test: setup s3 ## the Helm chart on a Kubernetes that is built and started here, as root; 20 GB of disk
	@$(IN_VENV) -m tests.support.cluster.tools
	@SLUICE_FAULTS=full $(IN_VENV) -m pytest tests/docs/test_helm.py tests/docs/test_helm_runs.py

yarn-test: setup s3 yarn ## drivers and bounded jobs on a YARN of one node, killed and taken over
	@SLUICE_FAULTS=full $(IN_VENV) -m pytest tests/faults/platforms/test_yarn.py

soak: setup ## 300 starts of flows, 10,000 batches and a million deletes in one driver, with what it holds and costs
	@SLUICE_FAULTS=full $(IN_VENV) -m pytest -s tests/streaming/test_growth.py

protocol: setup tlc ## check the model of leases in 25 million states, which takes up to an hour
	@$(IN_VENV) -m tests.support.tlc

mutants: setup s3 ## break the code that protects tables, one line at a time, and name the breaks that no test notices
	@SLUICE_JARS="$$SLUICE_HOME"/jars $(IN_VENV) tests/support/mutants.py $(MUTANTS)

lock: venv ## resolve requirements.txt and requirements-dev.txt into their locks
	@$(LOCK) requirements-dev.txt -o requirements-dev.lock
	@$(LOCK) --no-annotate --constraints requirements-dev.lock requirements.txt -o requirements.lock

clean: down ## stop everything and delete all it wrote, tables included
	@"$(PYTHON)" -m include.local.home
