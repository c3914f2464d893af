# Two commands: `make train` sets everything up and runs the main job, `make test` sets everything up and runs the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export OMP_NUM_THREADS ?= 2

.PHONY: train test setup dev lint

train: setup
	$(BIN)/holdfast train

test: dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.setup
dev: $(VENV)/.dev

$(VENV)/.setup: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.setup
	$(BIN)/pip install -q -c constraints.txt -e '.[train,dev]'
	touch $@
