# Every target works alone, in any order, and again: what is done already is not done twice.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup quickstart test check format sglang-cpu vllm-cpu train-cpu chaos clean bench-scale bench-durability bench-export bench-control bench-real bench-simulator bench-policies bench-paper fit-paper

# The newest Python from 3.11 on that can make environments.
PYTHON ?= $(shell for v in 3.13 3.12 3.11 3; do command -v python$$v >/dev/null && python$$v -c \
	'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python$$v && break; done)
BIN := .venv/bin
CI ?=

help:  ## Say what the targets do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: .venv/.done  ## Install concur and its tools into .venv

.venv/.done: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo 'No usable Python from 3.11 on: on Debian, apt-get install python3 python3-venv'; exit 2; fi
	@echo "Installing concur into .venv with $(PYTHON) (about a minute) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

quickstart: setup  ## Run real agents with real tools on a simulated engine, in under a minute
	@$(BIN)/concur run workloads/quickstart.yaml

test: setup sglang-cpu vllm-cpu train-cpu  ## Every test that needs no GPU, the ones on a real SGLang, vLLM and TRL on the CPU included
	@$(BIN)/pytest

check: setup  ## Lint, format check and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup  ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Without Python 3.11, or for vLLM AVX-512, there is no such build: exit code 3, which only CI takes for a failure.
sglang-cpu:  ## Build a real SGLang for the CPU and the SmolLM2-135M model
	@bash scripts/sglang_cpu/build.sh || { code=$$?; [ $$code -eq 3 ] && [ -z "$(CI)" ] || exit $$code; }

vllm-cpu:  ## Build a real vLLM for the CPU (needs AVX-512) and the same model
	@bash scripts/vllm_cpu/build.sh || { code=$$?; [ $$code -eq 3 ] && [ -z "$(CI)" ] || exit $$code; }

train-cpu:  ## Build what reads exports and trains on them: TRL, datasets, polars on the CPU
	@bash scripts/train_cpu/build.sh || { code=$$?; [ $$code -eq 3 ] && [ -z "$(CI)" ] || exit $$code; }

bench-scale: setup  ## 1,000 and 4,000 agents: turns/s, CPU a turn, memory; with and without a sandbox
	@$(BIN)/python -m concur_batch.bench.scale

bench-durability: setup  ## Journal and Parquet at 2,000 agents: share of the run's CPU, bytes a token
	@$(BIN)/python -m concur_batch.bench.durability

bench-export: setup  ## 1,000,000 turns to tokens in Parquet and messages in JSONL: turns/s, MB/s, memory
	@$(BIN)/python -m concur_batch.bench.export

bench-control: setup  ## 10,000 agents: decisions/s in the core and through Ray, messages a turn, batches as without
	@$(BIN)/python -m concur_batch.bench.control

bench-simulator: setup  ## What simulated batches cost: 24 runs on two cores, up to 10,000 agents, more turns
	@$(BIN)/python -m concur_batch.bench.simulator

bench-real: setup sglang-cpu vllm-cpu  ## Policies on a real SGLang and vLLM, same replayed work: 90 minutes a repetition (REPETITIONS=1: only one), goes on where it stopped
	@$(BIN)/python -m concur_batch.bench.real $(REPETITIONS)

bench-policies: setup  ## Policies in 144 simulated settings, side by side: half an hour, goes on where it stopped
	@$(BIN)/python -m concur_batch.bench.policies.bench

bench-paper: setup  ## The CONCUR paper's tables and figures, simulated, beside its numbers: two minutes
	@$(BIN)/concur bench paper

fit-paper: setup  ## Fit the simulator's calibrated constants to some cells of the paper's Table 1, show all errors
	@$(BIN)/python -m concur_batch.bench.paper.calibration

chaos: setup  ## 100 runs that are killed at random and resumed, compared with one that is not: half an hour, goes on where it stopped
	@$(BIN)/python -m concur_batch.bench.chaos

clean:  ## Remove what the targets made, but not the runs
	rm -rf .venv .venv-sglang .venv-vllm .venv-train models .pytest_cache .mypy_cache .ruff_cache .hypothesis
