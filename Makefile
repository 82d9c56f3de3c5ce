PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMMA := ,
# Forks of one process that has collected the tests: see tests/forked_workers.py.
WORKERS := $(shell n=$$(nproc); [ $$n -lt 4 ] && echo $$n || echo 4)

# An installed torch (ROCm, CUDA or CPU) is used as it is, with the triton that it brings; only without
# one are the pinned builds installed. Triton is installed where it is missing and has a wheel: it also
# compiles for GPUs that are not here.
HAS_TORCH := $(shell $(PYTHON) -c "import torch" 2>/dev/null && echo yes)
ifeq ($(HAS_TORCH),yes)
VENV_FLAGS := --system-site-packages
CONSTRAINTS :=
HAS_TRITON := $(shell $(PYTHON) -c "import triton" 2>/dev/null && echo yes)
else
VENV_FLAGS :=
CONSTRAINTS := -c constraints.txt
endif
EXTRAS := [hf$(if $(HAS_TRITON),,$(COMMA)triton)]
DEV_EXTRAS := dev$(if $(HAS_TRITON),,$(COMMA)triton)

.PHONY: install install-dev demo test lint docs bench clean
.DEFAULT_GOAL := test

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".$(EXTRAS)"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[$(DEV_EXTRAS)]"
	@touch $@ $(VENV)/.installed

demo: install
	$(BIN)/ratchet optimize llama-8m --budget 5m --until-proven --out ratchet-demo

# Compiled tests and modules are kept, whatever PYTHONDONTWRITEBYTECODE says: processes start sooner.
# Tests that failed run once more, alone, and say by which values: one that passes then was disturbed
# by what ran beside it.
test: install-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers $(WORKERS) --assert=plain --durations=25 \
	|| { test $$? -eq 1 && echo "Once more, alone: the tests that failed beside others" \
	&& OMP_NUM_THREADS=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install-dev
	$(BIN)/python -m pytest -q tests/docs

bench: install
	$(BIN)/python benchmarks/train/optimize_step.py llama-60m

clean:
	rm -rf $(VENV) ratchet-demo
