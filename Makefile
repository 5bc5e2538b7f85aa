# `make sweep` and `make test` each set up everything they need on a fresh machine:
# Python >= 3.11, a C++ compiler and make are all that must be there before.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
# Extra options for installing torch, e.g. an index or a folder that holds a CPU build.
TORCH_FLAGS ?=
CXX_FOUND := $(shell command -v $(or $(CXX),c++) 2>/dev/null || command -v g++ 2>/dev/null || command -v clang++ 2>/dev/null)
BACKEND ?= spyre
TIER ?= smoke

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-torch-$(TORCH)

.PHONY: help setup sweep test lint bench clean

help:
	@echo "make sweep   smoke tier of the op sweep on the simulated Spyre: table here, results in runs/"
	@echo "make test    lint, types and the whole test suite"
	@echo "make bench   cost of a sample, of collection, of a worker"
	@echo "Variables: PYTHON VENV TORCH=$(TORCH) TORCH_FLAGS BACKEND=$(BACKEND) TIER=$(TIER)"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "make: Python >= 3.11 is needed; '$(PYTHON)' is missing or older (set PYTHON=...)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "make: $(PYTHON) lacks the venv module (on Debian: apt-get install python3-venv)" >&2; exit 2; }
	@test -n "$(CXX_FOUND)" \
	  || { echo "make: a C++ compiler is needed to build the simulated device (c++, g++ or clang++, or set CXX=...)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH_FLAGS) "torch==$(TORCH)" numpy
	$(BIN)/python -m pip install --quiet -e ".[run,dev]" "torch==$(TORCH)"
	@touch $@

sweep: setup
	$(BIN)/conformance sweep ops --backend $(BACKEND) --tier $(TIER)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto

bench: setup
	$(BIN)/python -m conformance.bench

clean:
	rm -rf $(VENV) build dist *.egg-info
