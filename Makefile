# Two commands do everything, set-up included:  make demo,  make test.
# PYTHON: an interpreter of version 3.11 or later.  PORT_BASE: first of the demo's ports.

PYTHON ?= python3
PORT_BASE ?= 18800
KEEP ?=
FUZZ_SECONDS ?= 300
PREFIX ?= /opt/ullage
DESTDIR ?=
EXTRAS ?= sidecar,router,aggregator
LAB ?= --workload mooncake-like --workload azure-like --workload chat --load 0.5,0.7 \
	--policy ullage --policy ullage_weighted --policy least_in_flight --policy dynamo --policy llm_d \
	--policy omniscient --requests 600 --report .build/lab

BIN := .venv/bin
PYTEST := $(BIN)/pytest --dist loadgroup
SOURCES := $(shell find sidecar router shared deploy/tune -name '*.py' -o -path '*/page/*.*') pyproject.toml README.md LICENSE
VLLM := .venv-vllm
MODEL := .build/tiny-model
WHEEL := .build/wheel/stamp

export ULLAGE_VLLM_VENV := $(abspath $(VLLM))
export ULLAGE_TINY_MODEL := $(abspath $(MODEL))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: bench-aggregate bench-ask bench-decide bench-fresh bench-live bench-proxy bench-push bench-record bench-sidecar bench-speeds bench-told bench-vllm check clean conformance demo deploy-test docs env env-tune env-vllm fuzz help install lab lint long observability soak system test uninstall versions

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

demo: env env-vllm ## two real vLLM servers, a sidecar, a router, real requests (KEEP=1 leaves it up)
	PYTHONPATH=deploy $(BIN)/python -m demo --venv $(VLLM) --model $(MODEL) \
		--port-base $(PORT_BASE) $(if $(KEEP),--keep)

test: lint env-tune system ## every test but the long ones (20 minutes)
	@rm -f .pytest_cache/v/cache/lastfailed; failed=0; \
	run() { $(PYTEST) "$$@" || { code=$$?; [ $$code = 1 ] && failed=1 || exit $$code; }; }; \
	run -m "not vllm and not slow and not long" -n 2; \
	run -m "not vllm and slow and not alone" -n 2; \
	run -m "alone" -n 1; \
	run -m "vllm and not long" -n 2 --durations=20; \
	[ $$failed = 0 ] || $(BIN)/python tests/again.py

lab: env-tune ## routing policies against each other on vLLM's own scheduler, in virtual time (30 minutes)
	$(VLLM)/bin/python -m ullage_tune run $(LAB)

long: env env-vllm ## real vLLM at half speed is told apart; ranks that restart (10 minutes)
	$(PYTEST) tests/end_to_end -m long

check: lint ## the quick tests (2 minutes)
	$(PYTEST) -m "not vllm and not slow and not long" -n 2

observability: env system ## alerts, dashboard and pages, with a real Prometheus (2 minutes)
	$(PYTEST) tests/deploy/test_alerts.py tests/deploy/test_dashboard.py tests/deploy/test_observability.py \
		tests/router/test_page.py tests/router/test_status_page.py -n 2

lint: env ## style, types, and the walls between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports > .build/walls.log || { cat .build/walls.log; exit 1; }

docs: env ## write the README's tables, Grafana's dashboard and example configurations anew from the code
	$(BIN)/python tests/docs/tables.py --write README.md
	PYTHONPATH=deploy $(BIN)/python -m grafana --write deploy/grafana/ullage.json
	PYTHONPATH=deploy $(BIN)/python -m install.examples --write deploy/systemd/etc

bench-aggregate: env ## what 32 to 1,000 sidecars cost a router, directly and through aggregators (4 minutes)
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_aggregate.py

bench-ask: env ## what it costs to find what a request asks for, by its body's size
	$(BIN)/python tests/bench/bench_ask.py

bench-decide: env ## what a decision costs at 8 to 1,000 replicas, and remembering a million keys
	$(BIN)/python tests/bench/bench_decide.py

bench-told: env ## what the access log and traces cost a request
	$(BIN)/python tests/bench/bench_told.py

bench-fresh: env env-vllm ## what a fresh server's first requests pay, with warm-up and without
	PYTHONPATH=deploy $(BIN)/python tests/bench/bench_fresh.py --venv $(VLLM) --model $(MODEL)

bench-live: env env-vllm system ## our router and other people's before the same live twins, over HTTP (30 minutes)
	PYTHONPATH=tests:deploy $(BIN)/python -m bench.live.contest --venv $(VLLM) --model $(MODEL) \
		--workload $(or $(WORKLOAD),mooncake-like) --rate $(or $(RATE),2.0)

bench-speeds: env ## what it costs the sidecar to learn an engine's speeds
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_speeds.py

fuzz: env ## the data plane against random bytes and misbehaving peers (FUZZ_SECONDS=300)
	-$(BIN)/pip install --quiet --group fuzz
	PYTHONPATH=tests/support $(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

bench-proxy: env system ## CPU, latency, long prompts and memory beside other proxies (12 minutes)
	$(BIN)/python tests/bench/proxy/bench.py

bench-push: env ## how late an engine's step is in a router's table, pushed and polled
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_push.py

soak: env ## the router for ten minutes under churn: it gives back what it takes
	$(BIN)/python tests/bench/proxy/soak.py

bench-record: env-vllm ## what one call of the plugin costs vLLM
	$(VLLM)/bin/python tests/bench/bench_record.py

bench-sidecar: env ## what the sidecar costs its node: CPU, memory, answers, what it misses (3 minutes)
	$(BIN)/python tests/bench/bench_sidecar.py

bench-vllm: env env-vllm ## vLLM's throughput with the plugin and without, by turns (6 minutes)
	PYTHONPATH=deploy $(BIN)/python tests/bench/bench_vllm_throughput.py --venv $(VLLM) \
		--model $(MODEL)

conformance: env system ## who keeps which promise: our router and its peers; writes the README's table
	PYTHONPATH=tests $(BIN)/python -m conformance.table --write README.md

versions: env env-vllm ## the plugin in vLLM 0.11.1 to the newest; writes the README's table (1 GB, 10 minutes)
	PYTHONPATH=tests:tests/support:deploy $(BIN)/python -m versions.run --venv $(VLLM) --model $(MODEL) \
		--write README.md

env-tune: env-vllm $(VLLM)/tune ## the same, with what the lab needs beside it
env: .venv/wheel ## the environment of sidecar, router and tests
env-vllm: $(VLLM)/wheel $(MODEL)/config.json ## the environment of vLLM on the CPU, and its model

system: ## Debian packages that tests and benchmarks need
	@$(PYTHON) tests/system_packages.py

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --group dev
	$(BIN)/pip install --quiet --no-build-isolation ".[sidecar,router,aggregator,tune]"
	@touch $@

$(WHEEL): $(SOURCES) .venv/ready
	@rm -rf .build/wheel && mkdir -p .build/wheel
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .build/wheel .
	@touch $@

.venv/wheel: $(WHEEL)
	$(BIN)/pip install --quiet --no-deps --force-reinstall .build/wheel/*.whl
	@touch $@

$(VLLM)/ready: deploy/vllm_cpu/build_env.py deploy/vllm_cpu/constraints.txt
	$(PYTHON) deploy/vllm_cpu/build_env.py $(VLLM)
	@touch $@

$(VLLM)/wheel: $(WHEEL) $(VLLM)/ready
	$(VLLM)/bin/python -m pip install --quiet --no-deps --force-reinstall .build/wheel/*.whl
	@touch $@

$(VLLM)/tune: pyproject.toml deploy/vllm_cpu/constraints.txt $(VLLM)/wheel
	$(VLLM)/bin/python -m pip install --quiet -c deploy/vllm_cpu/constraints.txt \
		"$$(echo $(CURDIR)/.build/wheel/*.whl)[tune]"
	@touch $@

$(MODEL)/config.json: deploy/vllm_cpu/make_tiny_model.py | $(VLLM)/ready
	$(VLLM)/bin/python deploy/vllm_cpu/make_tiny_model.py $(MODEL)
	@touch $@

install: ## into PREFIX (/opt/ullage), with systemd's units; as root (DESTDIR=FOLDER stands for /)
	@PYTHONPATH=deploy $(PYTHON) -m install install --prefix "$(PREFIX)" --destdir "$(DESTDIR)" --extras "$(EXTRAS)"

uninstall: ## take it away again; /etc/ullage stays
	@PYTHONPATH=deploy $(PYTHON) -m install uninstall --prefix "$(PREFIX)" --destdir "$(DESTDIR)"

deploy-test: env env-vllm system ## units, packages, a booted machine, an upgrade under load, discovery, aggregation (as root, 13 minutes)
	PYTHONPATH=tests:tests/support $(BIN)/python -m units
	$(BIN)/pytest tests/deploy -m "not alone and not vllm" -n 2 --dist loadfile
	$(BIN)/pytest tests/deploy -m vllm -s
	$(BIN)/pytest tests/shared/discovery tests/shared/aggregator tests/router/test_discovery.py \
		tests/router/test_two_aggregators.py -n 2 --dist loadfile
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_aggregate.py

clean: ## remove what was built
	rm -rf .venv .venv-vllm .build dist
