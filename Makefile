# Every command a person, CI or the Dockerfile runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?=
ARGS ?=
READY := $(VENV)/.installed
SERVES := $(VENV)/.serves
KERNEL_TESTS = tests/engine/kernels tests/engine/runner/graphs/test_decode_step.py \
    tests/engine/runner/graphs/test_piecewise_graphs.py \
    tests/engine/runner/graphs/test_whole_graphs.py \
    $(shell find tests/sampling -name '*_kernels.py')
HOST_TESTS = tests/server tests/engine/planning tests/engine/scoring $(wildcard tests/engine/test_*.py)

.PHONY: serve setup install skeleton test coverage test-gpu test-slow mutants kernels kernel-pack compile-kernels \
    lint check format openapi docs bench-gpu clean

serve: $(SERVES)
	exec $(BIN)/tailrace serve $(MODEL) --port $(PORT) $(ARGS)

# What serving needs, without the tools of tests.
$(SERVES): pyproject.toml
	@echo "Installing what serving needs into $(VENV): a few minutes, some GB ..."
	if test -e $(READY); then $(MAKE) setup; else $(MAKE) install EDITABLE=-e; fi
	touch $@

setup: $(READY)

$(READY): pyproject.toml
	$(MAKE) install EXTRAS='[dev]' EDITABLE=-e
	touch $@

# What the images install too, there with EXTRAS='[otel]' or '[cuda,otel]' and without EDITABLE.
install:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(EDITABLE) '.$(EXTRAS)'

# Empty folders for the packages, so that the image's layer of dependencies needs none of our code.
skeleton:
	$(PYTHON) -c "import os, tomllib; \
	    packages = tomllib.load(open('pyproject.toml', 'rb'))['tool']['setuptools']['packages']; \
	    [os.makedirs(name.replace('.', '/'), exist_ok=True) for name in packages]"

# The kernels run through Triton's interpreter, in processes of their own: it is for all or none.
# Tests of one file stay in one process, so that they share its server or model. There is a process
# a core: threads of torch would spin beside them.
test coverage: export OMP_NUM_THREADS = 1
PLAIN := $(BIN)/python -m pytest -n auto --dist loadfile
test: $(READY)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto $(KERNEL_TESTS)
	$(PLAIN)

# The lines that the tests of code without tensors do not reach. Counting lines costs Python 3.11
# half as much CPU time again; of arithmetic, where the other tests' time goes, it says little.
coverage: $(READY)
	$(PLAIN) --cov=server --cov=engine.planning --cov=engine.scoring --cov-report=term $(HOST_TESTS)

# Minutes long: ten thousand requests with clients hanging up, a schema fuzzer, the wheel.
test-slow: $(READY)
	$(BIN)/python -m pip install --quiet -e '.[slow,docs]'
	$(BIN)/python -m pytest -m slow

# The bugs of tests/mutants, each put into a copy of the project, where its tests must fail. Minutes
# long; ARGS names some of them.
mutants: $(READY)
	$(BIN)/python -m tests.mutants.run $(ARGS)

# Every kernel that servers launch, compiled for a Hopper GPU where there is none: see
# docs/testing.md. ARGS names some of the starts.
compile-kernels: $(READY)
	$(BIN)/python -m tests.no_gpu.run $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The description of the API, which is stored for programs that read it.
openapi: $(READY)
	$(BIN)/python -m tests.server.openapi_document

# The documentation as a site, in build/site; `website/` has what is made of the code.
docs: $(READY)
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# On a machine with a GPU whose python already has torch. ARGS names files or folders, and
# `--seconds`, after which what runs is interrupted: see tests/gpu/run.py.
test-gpu:
	$(PYTHON) -m tests.gpu.run $(ARGS)

# FlashInfer's modules, compiled into the image for the GPUs of FLASHINFER_CUDA_ARCH_LIST.
kernels:
	$(BIN)/tailrace warmup --kernels

# The kernels that Triton compiles for MODEL on this machine's GPU, as a wheel in dist.
kernel-pack:
	$(BIN)/tailrace warmup $(MODEL) --pack build/kernels
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist build/kernels

# ARGS names parts, and `--seconds`, after which no more are measured: see benchmarks/record.py.
bench-gpu:
	$(PYTHON) -m benchmarks.record $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
