# make demo   serve the demo on 127.0.0.1:8091
# make test   everything that CI checks
# make soak   the faults many times and an hour of mixed load; about three hours, result in docs/soak.md
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3.11)
# cpu or cuda: which engine extra .venv gets
ENGINE ?= cpu
BIN := .venv/bin

.PHONY: setup demo check test soak

setup:
	@$(PYTHON) scripts/setup.py $(ENGINE)

demo: setup
	@$(BIN)/omni-app serve demo --host 127.0.0.1 --port 8091

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: check
	@$(BIN)/pytest -n 2 --no-loadscope-reorder

soak: setup
	@$(BIN)/python -m bench.soak
