# Wayfare's house: `make help` lists the targets.
#
# Everything lives in .venv, built from requirements.lock (exact versions, with hashes).
# Two stamps say how far it got, and each is written last, so an interrupted setup is
# never mistaken for a finished one:
#
#   .venv/.locked   the locked packages are in; holds the checkout's path and the
#                   interpreter, because a .venv that was moved or lost its Python is useless
#   .venv/.ready    the project itself is in (editable)

BIN := .venv/bin
LOG := .setup.log
UV_VERSION := 0.13.7
# Two more than there are cores: a live test mostly waits, and somebody else can work meanwhile.
PYTEST_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

# Nothing of the caller's Python set-up may leak into .venv.
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_USER := 0
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo servers test check cover chaos bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo "  PYTHON=... chooses the interpreter (3.11 or newer) for .venv"

setup: .venv/.ready ## create .venv with everything in it (the others do this when needed)

demo: .venv/.ready ## the whole system, once
	@$(BIN)/wayfare demo --out build/demo

test: .venv/.ready servers ## everything that CI runs: format, lint, types, all tests
	@$(BEGIN) \
	$(STATIC) \
	run tests $(PYTEST); \
	$(END)

check: .venv/.ready servers ## the quick round before a commit: as `test`, without slow tests
	@$(BEGIN) \
	$(STATIC) \
	run tests $(PYTEST) -m "not slow"; \
	$(END)

# By itself: it makes simulations several times as slow, and fails nothing that `test` would not.
cover: .venv/.ready ## which lines and branches the quick tests do not reach
	@$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered

# CHAOS="--minutes 60 --json", CHAOS="--profile keep --seed 7": see CHAOS=--help.
chaos: .venv/.ready ## ten minutes of random faults on real brokers and clients (CHAOS=--help)
	@cd tests && ../$(BIN)/python -m chaos $(CHAOS)

bench: .venv/.ready ## benchmarks, as JSON; of live brokers a quick round
	@$(BIN)/wayfare bench matching --json
	@$(BIN)/wayfare bench cover --json
	@$(BIN)/wayfare bench sim --json
	@$(BIN)/wayfare bench broker --quick --json
	@$(BIN)/wayfare bench move --quick --json
	@$(BIN)/wayfare bench roam --quick --json

clean: ## remove .venv and everything that was built or cached
	rm -rf .venv build dist htmlcov .coverage .coverage.* $(LOG) \
		.hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- steps: run them all, then say which failed ---------------------------------------

PYTEST = $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --maxprocesses 8 --dist loadgroup
BEGIN = failed=; run() { step=$$1; shift; echo "== $$step"; "$$@" || failed="$$failed $$step"; };
STATIC = run format $(BIN)/ruff format --check .; \
	run lint $(BIN)/ruff check .; \
	run types $(BIN)/mypy --strict;
END = if [ -n "$$failed" ]; then echo "make $@: FAILED:$$failed" >&2; exit 1; fi; \
	echo "make $@: all passed"

# ---- other people's servers -------------------------------------------------------------

# Tests of the mobility service run on real systems. What cannot be installed is named, and its tests
# are skipped (in CI they fail). Installed servers are not started: a policy says so, for as long as
# it takes, where the machine has none of its own.
POLICY := /usr/sbin/policy-rc.d
SAY = $(BIN)/python -c "from wayfare.service import overlays; [print(one) for one in overlays.$(1)()]"
APT = DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20

servers: .venv/.ready ## install servers that are missing, as root on Debian or Ubuntu
	@missing=$$($(call SAY,packages)); \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing" $$missing "(a minute or two)"; \
		if [ ! -e $(POLICY) ]; then \
			trap "rm -f $(POLICY)" EXIT; trap "exit 1" INT TERM HUP; \
			printf "#!/bin/sh\nexit 101\n" >$(POLICY) && chmod 755 $(POLICY); \
		fi; \
		install() { $(APT) install -y --no-install-recommends $$missing; }; \
		if { install || { $(APT) update && install; }; } </dev/null >$(LOG) 2>&1; \
		then rm -f $(LOG); \
		else tail -n 5 $(LOG); fi; \
	fi; \
	$(call SAY,sentences)

# ---- .venv ------------------------------------------------------------------------------

USABLE := $(shell [ -f .venv/.locked ] && { \
	read -r path && read -r python && [ "$$path" = "$(CURDIR)" ] \
	&& { [ -z "$(PYTHON)" ] || [ "$$python" = "$(PYTHON)" ]; } \
	&& .venv/bin/python -c ""; } <.venv/.locked >/dev/null 2>&1 && echo yes)
ifneq ($(USABLE),yes)
.PHONY: .venv/.locked
endif

STOP = stop() { echo "setup: $$*" >&2; exit 1; };
EXPLAIN = explain() { tail -n 15 $(LOG) >&2; stop "$$@"; };

.venv/.locked: requirements.lock
	@$(STOP) $(EXPLAIN) \
	touch $(LOG) 2>/dev/null || stop "cannot write in $(CURDIR); use a checkout of your own."; \
	works() { "$$1" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; }; \
	python="$(PYTHON)"; \
	if [ -n "$$python" ]; then \
		works "$$python" || stop "PYTHON=$$python is not a working Python 3.11 or newer."; \
	else \
		for candidate in python3.13 python3.12 python3.11 python3; do \
			if works $$candidate; then python=$$candidate; break; fi; \
		done; \
		[ -n "$$python" ] || stop "found no Python 3.11 or newer; install one" \
			"(Debian, Ubuntu: apt install python3 python3-venv) or name it with PYTHON=/path/to/python3."; \
	fi; \
	echo "installing into .venv with $$python (a minute or two)"; \
	rm -rf .venv; \
	pip=pip; \
	if ! "$$python" -m venv .venv >$(LOG) 2>&1; then \
		: "Debian ships venv without ensurepip: borrow the pip of that interpreter"; \
		rm -rf .venv; \
		pip=$$("$$python" -c "import pip; print(pip.__path__[0])" 2>/dev/null) \
			|| stop "$$python has neither ensurepip nor pip; install one of them" \
				"(Debian, Ubuntu: apt install python3-venv, or python3-pip)."; \
		"$$python" -m venv --without-pip .venv >>$(LOG) 2>&1 \
			|| explain "$$python cannot create .venv; install its venv module" \
				"(Debian, Ubuntu: apt install python3-venv)."; \
	fi; \
	if [ "$$pip" = pip ]; then set -- -m pip install; else set -- "$$pip" install --ignore-installed; fi; \
	echo "$$pip" >.venv/.pip; \
	$(BIN)/python "$$@" --no-deps --require-hashes -r requirements.lock >>$(LOG) 2>&1 \
		|| explain "pip could not install requirements.lock; the lines above say why" \
			"(often: no connection to a package index)."; \
	rm -f $(LOG); \
	printf "%s\n" "$(CURDIR)" "$$python" >$@

.venv/.ready: .venv/.locked pyproject.toml
	@$(STOP) $(EXPLAIN) \
	pip=$$(cat .venv/.pip); \
	if [ "$$pip" = pip ]; then set -- -m pip install; else set -- "$$pip" install --ignore-installed; fi; \
	$(BIN)/python "$$@" --no-deps --no-build-isolation --no-index -e . >$(LOG) 2>&1 \
		|| explain "pip could not install the project into .venv; the lines above say why."; \
	rm -f $(LOG); \
	touch $@

# ---- requirements.lock ------------------------------------------------------------------

# Pins that still fit pyproject.toml stay; `make lock UPGRADE=1` renews them all.
lock: .venv/.locked ## pin what pyproject.toml asks for (UPGRADE=1: newest versions)
	@$(BIN)/python -m venv build/lock
	@build/lock/bin/python -m pip install -q uv==$(UV_VERSION)
	@build/lock/bin/uv pip compile -q pyproject.toml --extra dev --extra spark --extra service $(if $(UPGRADE),--upgrade) \
		--universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-emit-find-links -o requirements.lock
	@{ echo "# Every package in .venv, with its exact version. Written by \`make lock\`."; \
		cat requirements.lock; } >build/requirements.lock
	@mv build/requirements.lock requirements.lock
	@echo "requirements.lock: $$(grep -c == requirements.lock) packages"
