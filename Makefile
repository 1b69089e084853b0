# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
ROLL_DATA ?= $(wildcard ../shared/data)
export ROLL_DATA
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo sandbox test check bench clean

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing roll (torch first: any looser requirement would fetch another build)"
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing the tools of the tests"
	$(PIP) --editable ".[dev,data,wandb,swanlab]"
	touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.core
	$(BIN)/roll sft examples/arithmetic.yaml --overwrite
	$(BIN)/roll train examples/arithmetic.yaml "model={path: runs/arithmetic-sft/model}" --overwrite

# What runs untrusted code is tested at the highest level of isolation that there is; bubblewrap is installed where it can be.
sandbox: $(VENV)/.dev
	@command -v bwrap >/dev/null || test "$$(id -u)" != 0 || apt-get install -qq -y bubblewrap >/dev/null 2>&1 || true
	@$(BIN)/python -c "from roll.sandbox.level import available, why_not; \
	print('sandbox level under test:', available().name, why_not())"

test: $(VENV)/.dev sandbox
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not learns and not slow" --quiet

bench: $(VENV)/.dev
	$(BIN)/roll bench all

clean:
	rm -rf $(VENV) runs build dist *.egg-info
