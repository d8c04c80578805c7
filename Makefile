# Each target does its own set-up: a fresh clone, Python 3.11 or newer and cargo are enough.
#
#   make demo     build, then load one model from each format, convert one, and compare with torch
#   make test     the checks of every change, which CI runs: lints, the core's tests, the package's tests
#   make check    all checks: also other feature sets, sanitizers, the documents' and the benchmarks' tests
#   make bench    the benchmarks against torch and safetensors (BENCH="--quick --json out.json" passes options on)
#   make counts   count instructions of parsers and kernels, and compare with the kept counts (COUNTS="--update" keeps new ones)
#   make sanitize run the Rust tests under AddressSanitizer (SANITIZER=thread: the threaded ones under ThreadSanitizer)
#   make cross    run the core's tests for another processor under qemu, or for Windows under wine (TARGET=aarch64-unknown-linux-gnu,
#                 x86_64-pc-windows-gnu)
#   make deny     check licenses and sources of dependencies, if cargo-deny is installed
#   make fuzz     run every fuzz target for a minute with coverage guidance (FUZZ="pickle zip" SECONDS_EACH=600 to choose)
#   make mutants  plant faults in a copy of the sources, and count those that the tests catch (MUTANTS="--list", "zip-", "--named")
#   make memory   measure memory over time while stock loaders and rustload load a model (MEMORY="--rounds 1", "--limit")
#   make docs     build the site of the documentation in target/docs/html, with a page that opens files (needs Debian, lld-22)
#   make release-check  build the wheel twice, check and use it; lint workflows; test the site and pages of `rustload view` in Chromium
#   make build    only the extension, in .venv
#   make fmt      format Rust and Python

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
# `make test PYTHON=python3.13`: another Python than that of .venv has an environment beside it.
MINOR := -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
OTHER := $(if $(filter command,$(origin PYTHON)),$(filter-out $(shell .venv/bin/python $(MINOR)),$(shell $(PYTHON) $(MINOR))))
VENV := $(CURDIR)/.venv$(if $(and $(OTHER),$(wildcard .venv/bin/python)),-$(OTHER))
PY := $(VENV)/bin/python
RELEASE := $(CURDIR)/.cache/release
CARGO := cargo
BENCH ?=
COUNTS ?=
MEMORY ?=
FUZZ ?=
MUTANTS ?=
SANITIZER ?= address
TARGET ?= aarch64-unknown-linux-gnu
PYTEST ?=
JOBS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export VIRTUAL_ENV := $(VENV)
export PYO3_PYTHON := $(PY)
export HF_HUB_OFFLINE := 1
# Without .pyc files each of the thousands of processes that tests start would compile the package.
unexport PYTHONHOME PYTHONPATH CONDA_PREFIX PYTHONDONTWRITEBYTECODE

INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built
DOCS_VENV := $(CURDIR)/target/docs-venv
EXTENSION := python/rustload/_rustload.abi3.so
RUST := $(shell find src -name '*.rs')
# Two at once, the output of each in one piece.
AT_ONCE := @$(MAKE) --no-print-directory --jobs=2 --output-sync=target

.PHONY: help demo test check docs release-check bench counts sanitize sanitize-changed fuzz mutants memory test-portable \
	cross check-macos check-windows build build-rust fmt clean cargo lint-rust lint-features deny crate-user test-rust lint-python test-python test-project

help:
	@sed -n 's/^#   //p' Makefile

demo: build
	@$(PY) -m examples.demo

bench: build
	@$(PY) -m benches.python $(BENCH)

counts: $(INSTALLED) cargo
	@$(PY) -m benches.counts $(COUNTS)

sanitize: cargo
	fuzz/sanitize $(SANITIZER)

fuzz: build
	fuzz/run $(FUZZ)

mutants: $(INSTALLED) cargo
	@$(PY) tests/mutants/run.py $(MUTANTS)

memory: build $(VENV)/.plots
	@$(PY) -m benches.memory $(MEMORY)

# What builds in target/debug runs beside the installation and what builds in target/release; then the tests, which measure and need
# a quiet machine.
test: cargo
	$(AT_ONCE) build-rust lint-python
	@$(MAKE) --no-print-directory --jobs=1 test-rust sanitize-changed test-python

check: cargo
	$(AT_ONCE) build-rust lint-python
	@$(MAKE) --no-print-directory --jobs=1 lint-features check-macos check-windows deny crate-user test-rust sanitize test-project test-python

# In an environment of its own: it reads the sources and needs no extension.
docs: $(DOCS_VENV)/.installed
	@$(DOCS_VENV)/bin/python -m docs.site

# What takes long or needs programs that `make test` does without.
release-check: $(BUILT) $(RELEASE)/.installed docs test-portable
	$(PY) -m pytest tests/browser $(PYTEST)
	$(RELEASE)/bin/python -m pytest tests/release $(PYTEST)

# The core's tests with the modules that other systems than Linux get.
test-portable: cargo
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/portable-rustc \
		$(CARGO) test --locked --features internals --lib --test integration

cross: cargo
	tests/cross $(TARGET)

build: $(BUILT)

fmt: $(INSTALLED) cargo
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

clean:
	rm -rf .venv .venv-* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist target
	rm -f python/rustload/*.so

build-rust: lint-rust
	$(CARGO) test --locked --workspace --features internals --no-run

# All features, which include the binding, with all tests, benches and fuzz targets; none; and the documentation.
lint-rust: cargo | $(PY)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

# What others depend on, with its default features; what the core's tests are built with; and all features for other systems.
lint-features: $(INSTALLED) cargo
	$(CARGO) clippy --locked -- -D warnings
	$(CARGO) clippy --locked --workspace --all-targets --features internals -- -D warnings
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings --cfg rustload_portable

# The types of the core and the binding for other systems: nothing can be linked for macOS here.
check-macos: SYSTEM := aarch64-apple-darwin
check-windows: SYSTEM := x86_64-pc-windows-gnu
check-macos check-windows: cargo
	@if [ $@ = check-windows ] && ! command -v x86_64-w64-mingw32-dlltool >/dev/null; then \
		echo "skipped: make $@: mingw-w64 is not installed (apt-get install mingw-w64)" >&2; \
	elif environment=$$(tests/rust-web); then \
		eval "$$environment" && \
			$(CARGO) check --locked --target $(SYSTEM) -Zbuild-std --features internals,python; \
	else \
		echo "skipped: make $@: the standard library for $(SYSTEM) cannot be built" >&2; \
	fi

# Without advisories, which would have to be downloaded.
deny: cargo
	@if command -v cargo-deny >/dev/null; then \
		$(CARGO) deny --workspace check bans licenses sources; \
	else \
		echo "skipped: make deny: cargo-deny is not installed (cargo install cargo-deny --locked)" >&2; \
	fi

# A program that depends on the crate, with the versions of this repository. It needs no tests' features, so it is built apart.
crate-user: cargo
	@cp Cargo.lock tests/crate_user/Cargo.lock
	CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}" \
		$(CARGO) run --quiet --manifest-path tests/crate_user/Cargo.toml

test-rust: cargo
	$(CARGO) test --locked --workspace --features internals

# Where git can tell that parsers, unsafe code or their tests have changed.
sanitize-changed: cargo
	@if fuzz/touched; then fuzz/sanitize address; fi

lint-python: $(BUILT)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m mypy.stubtest rustload --mypy-config-file pyproject.toml \
		--allowlist tests/python/stubtest-allowlist.txt

test-python: $(BUILT)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not project" $(PYTEST)

test-project: $(BUILT)
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m project $(PYTEST)

cargo:
	@command -v $(CARGO) >/dev/null || { \
		echo "cargo not found: install Rust 1.89 or newer (https://rustup.rs), then run make again" >&2; exit 1; }

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) not found: install Python 3.11 or newer, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) -V): rustload needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Most modules are never imported, so none is compiled before.
$(INSTALLED): requirements/test.txt | $(PY)
	$(PY) -m pip install --quiet --no-compile --requirement requirements/test.txt
	@touch $@

# Apart from .venv: some of these tools need other versions of the same packages.
$(RELEASE)/.installed: requirements/release.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --requirement requirements/release.txt
	@touch $@

$(VENV)/.plots: requirements/plots.txt $(INSTALLED)
	$(PY) -m pip install --quiet --requirement requirements/plots.txt
	@touch $@

$(DOCS_VENV)/.installed: requirements/docs.txt
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement requirements/docs.txt
	@touch $@

# The stamp is rebuilt when the extension itself is gone.
ifeq ($(wildcard $(EXTENSION)),)
.PHONY: $(BUILT)
endif
$(BUILT): $(INSTALLED) Cargo.toml Cargo.lock pyproject.toml $(RUST) | cargo
	PIP_QUIET=1 $(VENV)/bin/maturin develop --release --locked --quiet
	@touch $@
