# Needs Python 3.11 or newer and make; everything else is installed into .venv from uv.lock.
PYTHON ?= python3
UV_VERSION = 0.12.24
VENV = .venv
RUN = $(VENV)/bin/python
NATIVE = hatch_build.py $(wildcard rknn_jax/kernels/native/*.cc rknn_jax/kernels/native/*.h)
# The package is built anew, because a build that uv keeps does not bring back the native kernels.
SYNC = $(VENV)/bin/uv sync --quiet --frozen --inexact --compile-bytecode --reinstall-package rknn-jax
DEMO_OUT = runs/demo
SECONDS = 20
QUICK_XLA = --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true
export UV_PROJECT_ENVIRONMENT = $(VENV)
# Compiled files are kept, whatever the environment says: without them each of some hundred processes compiles all again.
export PYTHONDONTWRITEBYTECODE =

# A compiler from PyPI that links against an old C library, so that the wheel runs on Linux of 2018 and later.
OLD_LINUX = x86_64-linux-gnu.2.28
PLATFORM = manylinux_2_28_x86_64
# Programs with a result, the README's first, but for those that want an accelerator or another checkout, or have a target of their own.
stems = $(notdir $(basename $(wildcard $(1))))
BENCH = measured goals distill pages $(filter-out accelerator checkouts cifar10% faults fuzz mutants simulate% soak,$(filter $(call stems,benchmarks/*.py),$(call stems,benchmarks/results/*.json)))

.PHONY: demo test long processes wheel dist test-all lint docs compare regression fuzz faults simulate soak bench mutants cves sbom clean

demo: $(VENV)/.demo  ## label scikit-learn's digits at epsilon = 1, train the student, name the report
	rm -rf $(DEMO_OUT)
	$(RUN) -m train.distill --dataset digits --epsilon 1 --out $(DEMO_OUT)

# Half of the time goes into compiling, so that the compiler does less here than in test-all. The programs are the same.
test: $(VENV)/.dev  ## under five minutes on two free cores
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m pytest -n 2 --dist worksteal -m "not slow and not long"

long: $(VENV)/.dev  ## the tests of some seconds each that are not in `make test`, and all audits of README and docs: a quarter of an hour
	TMPDIR="$${TMPDIR:-/tmp}" XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m pytest -n 2 --dist worksteal -m "long and not slow"
	$(RUN) -m pytest -n 2 tests/test_neighbors.py -m "not slow"  # as users compile: XLA once fused what had to be rounded

processes: $(VENV)/.dev  ## a federation whose client is killed, a Ray cluster that loses machines, an S3 server: two minutes
	$(RUN) -m pytest tests/test_federation_processes.py -k killed_between
	$(RUN) -m pytest tests/test_engines.py tests/test_s3.py -m slow
	$(RUN) -m pytest tests/test_distributed.py -k 1_and_8_devices

test-all: $(VENV)/.dev  ## slow tests too, and random keys are tracked in all of them
	JAX_DEBUG_KEY_REUSE=1 $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# Versions of Python that pyenv keeps are found by their names once they are chosen, the current one first.
wheel: $(VENV)/.dev  ## build the wheel, and install and run it under every Python of this machine that it supports: a minute each
	export PYENV_VERSION=$$(pyenv version-name 2>/dev/null):$$(pyenv versions --bare 2>/dev/null | paste -s -d :); \
	$(RUN) -m pytest -n 2 tests/test_wheel.py

# From the source archive, as building in the checkout would replace its kernels.
dist: $(VENV)/.uv  ## what an index takes, in dist/: a wheel with kernels for Linux on x86-64, one without any, and the source
	rm -rf dist
	$(VENV)/bin/uv build --quiet --sdist --out-dir dist
	RKNN_NATIVE=0 $(VENV)/bin/uv build --quiet --wheel --out-dir dist dist/rknn_jax-*.tar.gz
	$(VENV)/bin/uv run --quiet --isolated --frozen --only-group wheel sh -ec '\
		CXX="$$(command -v python) -m ziglang c++ -target $(OLD_LINUX)" \
			$(abspath $(VENV))/bin/uv build --quiet --wheel --out-dir dist/here dist/rknn_jax-*.tar.gz; \
		auditwheel repair --plat $(PLATFORM) --wheel-dir dist dist/here/*.whl; \
		rm -r dist/here; \
		twine check --strict dist/*'

docs: $(VENV)/.dev  ## the site, in site/: warnings are errors, and the notebook and the pages are executed
	$(RUN) -m pytest -q tests/test_documentation.py -m slow
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet
	$(RUN) -m pytest -q tests/test_site.py -m slow

compare: $(VENV)/.dev  ## every method on scikit-learn's digits, side by side: runs/compare-digits/compare.html
	$(RUN) -m train.compare --dataset digits

regression: $(VENV)/.dev  ## the hot functions against peers at small sizes: ratios of CPU time in one run
	$(RUN) -m benchmarks.regression

fuzz: $(VENV)/.dev  ## mutated files for every reader of bytes, SECONDS each, two readers at a time: what fails is kept in runs/fuzz
	$(RUN) -m benchmarks.fuzz --seconds $(SECONDS) $(FUZZ)

faults: $(VENV)/.dev  ## every system call of every command fails once: what is told is true, and another run finishes: hours
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.faults $(FAULTS)

simulate: $(VENV)/.dev  ## releases and their ledger under faults of disk, processes and power, and rounds and secure sums under those of a network: a million steps each; SEED=17, NETWORK_SEED=17 or SUMS_SEED=17 for one history
ifdef SEED
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate --seed $(SEED)
else ifdef NETWORK_SEED
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate_network --seed $(NETWORK_SEED)
else ifdef SUMS_SEED
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate_sums --seed $(SUMS_SEED)
else
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate_network
	XLA_FLAGS="$(QUICK_XLA)" $(RUN) -m benchmarks.simulate_sums
endif

soak: $(VENV)/.dev  ## a server with TLS and 2,000 clients who come and go, some of them hostile: three hours, and it continues; SOAK="--minutes 20" for less
	$(RUN) -m benchmarks.soak $(SOAK)

bench: $(VENV)/.dev  ## measure every result again that is not of the present code, the README's first, with MNIST in RKNN_MNIST_DIR; it continues
	$(RUN) -m benchmarks.stale --measure $(BENCH)
	$(RUN) -m benchmarks.tables

mutants: $(VENV)/.dev  ## plant faults in what privacy stands on, and count those that the tests notice: hours, and it continues
	$(VENV)/bin/uv sync --quiet --frozen --inexact --compile-bytecode --all-extras --group mutants
	$(RUN) -m benchmarks.mutants

$(VENV)/.uv: Makefile
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet uv==$(UV_VERSION)
	touch $@

$(VENV)/.demo: $(VENV)/.uv uv.lock pyproject.toml $(NATIVE)
	$(SYNC) --no-default-groups
	touch $@

$(VENV)/.dev: $(VENV)/.uv uv.lock pyproject.toml $(NATIVE)
	$(SYNC) --all-extras
	touch $@ $(VENV)/.demo

cves: $(VENV)/.uv  ## vulnerabilities that OSV lists of what uv.lock pins; an error without a network
	$(VENV)/bin/uv audit --frozen --preview-features audit-command

sbom: $(VENV)/.uv  ## what uv.lock pins, for a release: dist/rknn-jax.cdx.json, in CycloneDX
	mkdir -p dist
	$(VENV)/bin/uv export --quiet --frozen --no-default-groups --all-extras --preview-features sbom-export \
		--format cyclonedx1.5 --output-file dist/rknn-jax.cdx.json

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
