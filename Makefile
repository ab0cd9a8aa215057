# One entry for people and for CI: `make check` is what .ci/run runs.
PYTHON ?= python
FOR ?= --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 -d out/wheels
export OMP_WAIT_POLICY = PASSIVE

.PHONY: help check lint types layers recipes test slow kernels gpu wheels golden map pages rules format

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1\t/' | expand -t 12

check: lint types layers recipes test  ## everything CI asks: lint, types, layers, recipes, tests

lint:  ## ruff: the rules, and the format
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:  ## mypy, strict: the package, and the step modules it generates
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --explicit-package-bases $(sort $(wildcard tests/golden/*/*/step.py))

layers:  ## import-linter: who may import whom
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()" --no-logo

recipes:  ## validate every recipe that ships
	$(PYTHON) -m specflow validate recipes

test:  ## the tests, less the slow ones and those that need a GPU
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadfile

slow:  ## the long proofs
	$(PYTHON) -m pytest -m slow

kernels:  ## compile every kernel of every recipe, or of RECIPES, for sm_90 and sm_100; up to 10 minutes
	$(PYTHON) benchmarks/kernels.py $(RECIPES)

gpu:  ## on a CUDA device: kernels, captured steps, and what a step costs, in some 5 minutes
	$(PYTHON) benchmarks/gpu.py

wheels:  ## out/wheels: what a machine with torch, triton and numpy alone lacks, to carry to one without a network
	rm -rf out/wheels
	$(PYTHON) -m pip wheel -q --no-deps -w out/wheels 'antlr4-python3-runtime==4.9.*'
	$(PYTHON) -m pip download -q --no-deps $(FOR) 'omegaconf>=2.3,<2.4'
	$(PYTHON) -m pip download -q $(FOR) jinja2 platformdirs 'pydantic>=2.10,<3' pyyaml rich 'transformers>=5.24,<5.25'
	rm -f out/wheels/numpy-*
	du -sh out/wheels

golden:  ## rewrite golden files and diagnostics pages; read the diff
	$(PYTHON) -m pytest -q tests/golden tests/diagnostics --update-golden
	git diff --stat -- tests

map:  ## rewrite the map of the house in README.md
	$(PYTHON) docs/make_map.py

pages:  ## rewrite the pages of docs/ that are made of the code: rules, fields, words of engines
	$(PYTHON) docs/make_pages.py

rules:  ## list every rule
	$(PYTHON) -m specflow rules

format:  ## let ruff rewrite what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
