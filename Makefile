# Every command a person or CI runs. The Dockerfile runs the same ones.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?=
ARGS ?=
READY := $(VENV)/.installed

.PHONY: serve setup test test-gpu check format bench-gpu clean

serve: $(READY)
	exec $(BIN)/tailrace serve $(MODEL) --port $(PORT) $(ARGS)

setup: $(READY)

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# On a machine with a GPU whose python already has torch; the sampler suite runs both ways.
test-gpu:
	TAILRACE_USE_FLASHINFER_SAMPLER=0 $(PYTHON) -m pytest -m gpu tests
	TAILRACE_USE_FLASHINFER_SAMPLER=1 $(PYTHON) -m pytest -m gpu tests/sampling

bench-gpu:
	$(PYTHON) -m benchmarks.record

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
