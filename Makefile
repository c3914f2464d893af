# Two commands. `make train` sets everything up and runs the main job; `make test` sets everything up and runs the tests.
#
#   make PYTHON=/path/to/python3.12 train     another interpreter, 3.11 or newer (also from the environment)
#   make VENV=/tmp/holdfast test              another place for the environment (also from the environment)
#   make ARGS="--train.steps 20" train        settings for the main job, or arguments of pytest
#   make UV= train                            install with pip, although there is uv
#   make ARGS="--run.threads 4" train         more CPU threads than one, which is enough for the tiny model

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
# uv, where there is one, installs in seconds what pip installs in minutes.
UV     := $(shell command -v uv)
PIP    := $(if $(UV),$(UV) pip install -q --python $(BIN)/python,$(BIN)/python -m pip install -q --disable-pip-version-check) \
	-c constraints.txt
ARGS   ?=

.PHONY: train test quick test-all numerics lint sizes setup dev golden chaos gpu accuracy contracts docs site constraints \
	dist clean

train: setup
	$(BIN)/holdfast train $(ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not long" $(ARGS)

# Less than a minute on two cores: before every commit. The commands of the pages, which take longest, are in `make test`.
quick: dev
	$(BIN)/ruff check -q .
	$(BIN)/ruff format --check -q .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow and not long" \
		--ignore tests/contracts/test_pages_run.py tests/losses tests/agent tests/diagnose tests/contracts $(ARGS)

# And the tests that are long and rarely fail when the others pass.
test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

# Fixed runs, replayed and compared with what was recorded: before and after a change that should change nothing.
golden: dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/golden.py $(ARGS)

# Runs that are killed, damaged and starved, servers and files that are broken. HOLDFAST_CHAOS is the seed.
chaos: dev
	HOLDFAST_CHAOS=$${HOLDFAST_CHAOS:-0} $(BIN)/python -m pytest tests/chaos $(ARGS)

# Tests and benchmarks on one GPU, in 12 minutes: docs/reference/gpu.md.
gpu: dev
	$(BIN)/python benchmarks/gpu.py --docs docs/reference/gpu.md $(ARGS)

# Every number of docs/reference/diagnose-accuracy.md but the history, and the page: after a change of the rules. TOOLS has
# an environment for each other tool, PUBLIC is a folder of public logs, STRANGERS are folders with LABELS.txt; without one
# of them its part of the page stays as it was. research/README.md has the commands.
RESEARCH := OMP_NUM_THREADS=1 $(BIN)/python -m holdfast_research
accuracy: dev
	mkdir -p build
	for set in $(PUBLIC) $(STRANGERS); do $(RESEARCH).public_logs "$$set" --keep || exit 1; done
	$(if $(and $(PUBLIC),$(STRANGERS)),$(RESEARCH).leave_one_out --others $(PUBLIC) $(STRANGERS) --keep leave_one_out)
	$(RESEARCH).pages.diagnosis --testbeds --keep
	for set in fourth real-model; do $(RESEARCH).pages.single_turn $$set --json build/$$set.json && \
		$(RESEARCH).pages.diagnosis_page --take $$set build/$$set.json || exit 1; done
	$(RESEARCH).null_model --jobs 2 --json build/null.json
	$(RESEARCH).pages.diagnosis_page --take null_model build/null.json
	$(if $(TOOLS),$(RESEARCH).head_to_head --tools "$(TOOLS)" $(if $(PUBLIC),--public $(PUBLIC)) --keep head_to_head)
	$(if $(and $(TOOLS),$(STRANGERS)),$(RESEARCH).head_to_head --tools "$(TOOLS)" --sets --null 0 --public $(STRANGERS) \
		--keep head_to_head_strangers)
	$(RESEARCH).pages.diagnosis_page

# The tests once more as another processor might run them: with torch's kernels for the oldest CPUs, and linear layers that
# round otherwise (tests/jitter.py). JITTER is the seed; 0 leaves their rounding as it is.
numerics: dev
	ATEN_CPU_CAPABILITY=default JITTER=$${JITTER:-1} OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.jitter -n auto \
		--maxprocesses 4 --dist worksteal -m "not long" $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files of Python and lines of code (neither blank, nor a comment or a docstring), by part.
sizes:
	@$(PYTHON) tools/code_lines.py src/holdfast src/holdfast/*/ tests research/src research/tests benchmarks

setup: $(VENV)/.setup
dev: $(VENV)/.dev

# A torch you installed yourself (a CPU build, say) stays.
$(VENV)/.setup: pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "holdfast needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.setup research/pyproject.toml
	$(PIP) -e '.[train,dev,docs]' -e research
	@touch $@

# The adapters against the trainers they are for, each in an environment of its own: minutes and some GB the first time.
# tools/contracts.py says which and how. LATEST=1 takes the newest versions, PRIME_RL is a checkout, ARGS are of pytest.
CONTRACTS = $(PYTHON) tools/contracts.py --venv "$(VENV)" $(if $(LATEST),--latest) $(if $(PRIME_RL),--prime-rl "$(PRIME_RL)")
contracts:
	$(CONTRACTS) trl verl vllm verifiers openenv skyrl-gym --arguments $(ARGS)
contracts-%:
	$(CONTRACTS) $* --arguments $(ARGS)

# The parts of pages that are made: metrics, codes and methods from code, diagrams from their tables, the gallery and
# the picture of a terminal from what the command prints. Settings and commands are made when the site is built.
docs: dev
	$(BIN)/python docs/_site/made.py
	$(BIN)/python docs/_site/diagrams.py
	$(BIN)/python -m holdfast_research.pages.gallery
	$(BIN)/python -m holdfast_research.pages.terminal
	$(BIN)/python -m holdfast_research.pages.stale

# The site, with every link checked: build/site/index.html, which works without a server.
site: dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# constraints.txt, from a fresh environment with the newest of everything but torch.
constraints:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install -q $$(grep '^torch==' constraints.txt)
	build/constraints/bin/python -m pip install -q '.[train,dev,docs]'
	$(PYTHON) tools/frozen.py build/constraints constraints.txt > build/constraints.txt
	mv build/constraints.txt constraints.txt

# What is published, in dist/, checked; and beside it the packages that an installation of the wheel brings, as a CycloneDX
# SBOM. docs/contributing/release.md has the steps around it.
dist: $(VENV)-dist/.setup
	rm -rf dist build/sbom
	$(VENV)-dist/bin/python -m build --outdir dist
	$(VENV)-dist/bin/twine check --strict dist/*
	$(PYTHON) -m venv --without-pip build/sbom
	$(VENV)-dist/bin/python -m pip --python build/sbom/bin/python install -q -c constraints.txt dist/*.whl
	sed "s/^dynamic = .*/version = \"$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/holdfast/__init__.py)\"/" pyproject.toml > build/sbom.toml
	$(VENV)-dist/bin/cyclonedx-py environment --pyproject build/sbom.toml --mc-type library --output-reproducible \
		--output-file build/holdfast-rl.cdx.json build/sbom/bin/python

$(VENV)-dist/.setup:
	test -x $(VENV)-dist/bin/python || $(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install -q --disable-pip-version-check build twine cyclonedx-bom
	@touch $@

clean:
	rm -rf build dist $(VENV)/.setup $(VENV)/.dev
