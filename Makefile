# The commands of this project: demo and test need nothing but python3, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS ?= 3
# Tests start thousands of processes: each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow check bench clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	sh scripts/install_servers.sh
	$(MAKE) check
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"
	sh scripts/check_wheel.sh

test-slow: $(VENV)/.test
	sh scripts/install_servers.sh
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m slow

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .servers dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e ".[torch]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt "pip>=25.1"
	$(PIP) install -c constraints.txt -e . --group test
	touch $@ $(VENV)/.demo
