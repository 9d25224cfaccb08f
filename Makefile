# Every command a person, CI or the Dockerfile runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?=
ARGS ?=
READY := $(VENV)/.installed
KERNEL_TESTS = tests/engine/kernels $(shell find tests/sampling -name '*_kernels.py')

.PHONY: serve setup install skeleton test test-gpu test-slow kernels lint check format bench-gpu clean

serve: $(READY)
	exec $(BIN)/tailrace serve $(MODEL) --port $(PORT) $(ARGS)

setup: $(READY)

$(READY): pyproject.toml
	$(MAKE) install EXTRAS='[dev]' EDITABLE=-e
	touch $@

# What the image installs too, there with EXTRAS='[cuda]' or none and without EDITABLE.
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
test: $(READY)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto $(KERNEL_TESTS)
	$(BIN)/python -m pytest

# Minutes long: ten thousand requests with clients hanging up, a schema fuzzer.
test-slow: $(READY)
	$(BIN)/python -m pip install --quiet -e '.[slow]'
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# On a machine with a GPU whose python already has torch; the sampler suite runs both ways. Most of
# the time kernels compile, on the host's cores.
test-gpu:
	TAILRACE_USE_FLASHINFER_SAMPLER=0 $(PYTHON) -m pytest -n 8 -m gpu tests/sampling tests/engine
	TAILRACE_USE_FLASHINFER_SAMPLER=1 $(PYTHON) -m pytest -n 8 -m gpu tests/sampling

# FlashInfer's modules, compiled into the image for the GPUs of FLASHINFER_CUDA_ARCH_LIST.
kernels:
	$(BIN)/tailrace warmup --kernels

bench-gpu:
	$(PYTHON) -m benchmarks.record

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
