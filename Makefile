# `make demo` and `make test` are all a newcomer needs: each makes the virtual environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-all fuzz lint bench docs clean

demo: $(INSTALLED)
	$(BIN)/strop demo --out demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile

fuzz: $(INSTALLED)
	FUZZ_SECONDS=$${FUZZ_SECONDS:-3600} FUZZ_RESULTS=benchmarks/results/fuzz.json \
		$(BIN)/python -m pytest tests/fuzz -k damaged

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	for script in encode files loading render; do $(BIN)/python benchmarks/$$script.py || exit 1; done

docs: $(INSTALLED)
	$(BIN)/python docs/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# pip first takes torch alone, so that no other package can choose its build.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo build dist site
