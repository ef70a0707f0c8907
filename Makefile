PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
WARM := $(VENV)/.warm

# Python keeps what it compiled of each module, tests with their asserts rewritten included: without, each of pytest's
# workers does it again at each run, twelve seconds of CPU each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve fit-judge compile pure checks test coverage lint typecheck layers test-books test-system test-engines fuzz clean

serve: $(COMPILED)
	$(BIN)/forebay serve $(ARGS)

# The token path, policy, limits and guard as C, beside their sources: two minutes of CPU, and a quarter less CPU time a
# request. Without a compiler, or after `make pure`, the same files run as Python.
compile: $(COMPILED)

$(COMPILED): $(STAMP) tools/compile.py tools/compile_setup.py $(wildcard src/forebay/*.py src/forebay/*/*.py) \
		$(wildcard src/forebay/cache/semantic/guard/*.py)
	$(BIN)/python tools/compile.py
	touch $@

# Until the next `make serve`, `make test` or `make bench-NAME`
pure:
	$(BIN)/python tools/compile.py --remove
	rm -f $(COMPILED)

$(STAMP): pyproject.toml
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

# Without a cache: it does not notice that a module came to be, which changes where imports of it are sorted.
lint: $(STAMP)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

# The tests' bytecode, once and not by three at the same time; what is wrong with a test is said when it runs.
$(WARM): $(STAMP) $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true
	touch $@

checks: $(COMPILED) lint $(WARM) layers typecheck

# Compiling begins with half a minute on one core.
test: $(STAMP)
	$(MAKE) --no-print-directory -j 2 checks
	$(BIN)/pytest -m "not system and not engines and not books" -n 3 --dist worksteal $(ARGS)

# Which lines of src the tests run. Tracing takes a minute, so that it is not part of test.
coverage: $(STAMP) pure
	$(BIN)/pytest -m "not system and not engines" -n 2 --cov --cov-report=term $(ARGS)

# What takes longer of the ledger: one to two minutes.
test-books: $(COMPILED)
	$(BIN)/pytest -m books -n 3 --dist worksteal $(ARGS)

# Needs programs of the operating system: apt-get install nginx-light wrk nodejs npm systemd
test-system: $(COMPILED)
	$(BIN)/pytest -m system $(ARGS)

# Real vLLM (2.5 GB, once, some minutes) into an environment of its own in the user's cache; llama.cpp (34 MB) into .venv,
# its model (93 MB) into the cache.
test-engines: $(COMPILED)
	$(BIN)/python -m pip install --quiet --editable ".[local]"
	$(BIN)/python tests/engines/install.py
	$(BIN)/pytest -m engines -n 0 -rs --timeout 400 --durations 5 $(ARGS)

# Every property test, with 200 times the examples; hypothesis marks them itself.
fuzz: $(COMPILED)
	$(BIN)/pytest -m hypothesis --hypothesis-profile=fuzz --timeout 3600 $(ARGS)

# Fits the judge of answers to its pairs, and measures it on those that are held out.
fit-judge: $(COMPILED)
	HELD=1 $(BIN)/python -m benchmarks.cache.judging

# CHECK=1 exits 1 where a bar is missed; what else each one takes is in benchmarks/NAME/README.md
bench-%: $(COMPILED)
	$(BIN)/python -m benchmarks.$*

# cancel: N random cancels in every state of a request, clients, gateway and engines each a process: what leaks, how late
# the engine knows. engines: ROUNDS engines killed, frozen and restarted under load: no request lost that another engine
# could have answered. CHECK=1 exits 1 where a bar is missed.
campaign-%: $(COMPILED)
	PYTHONPATH=tests $(BIN)/python -m campaigns.$*

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov results
