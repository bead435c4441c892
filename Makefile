# The verbs of daily work. Each first makes its missing prerequisites; repeated, it does only its own work. `make` alone
# lists them.

PRESET ?= release
ARROW ?=
ARGS ?=
# A compiler needs up to 1.5 GB for a file, so a machine with many cores and little memory gets fewer jobs.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { fit = int($$2 / 1500000) } \
	END { print fit < 1 ? 1 : (fit < cores ? fit : cores) }' /proc/meminfo)

BUILD := $(if $(filter release,$(PRESET)),build,build/$(PRESET))
# setup.sh installs cmake and ninja in .venv if the system's are too old.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHON
# The compilers that presets name; else the one that CXX names, if it is set.
ifneq ($(filter ci,$(PRESET)),)
export CXX := g++
else ifneq ($(filter dev asan tsan,$(PRESET)),)
export CXX := clang++
endif

# Test programs with tests that use a GPU.
GPU_TESTS := mesh_test ops_test optim_test

.DEFAULT_GOAL := help
.PHONY: help setup configure build train wheel docs docs-serve release test test-all mutants faults soak fuzz bench bench-fsdp bench-neighbours bench-published bench-python bench-ops bench-tokenizer bench-build gpu-check gpu-pack gpu-build format format-check tidy clean

help: ## Show this list
	@echo "Lehr trains large language models. From a fresh clone:"
	@echo "  make train    trains a small Qwen3 on real text on this machine's CPU"
	@echo "  make test     builds everything and runs every test"
	@echo "Both install what they need first (Debian 12, Ubuntu 22.04 or newer) and just run when repeated."
	@echo
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables:"
	@echo "  PRESET=$(PRESET)  a preset of CMakePresets.json: release, dev, ci, asan, tsan or cuda; builds in $(BUILD)/"
	@echo "  JOBS=$(JOBS)          files to compile at once"
	@echo "  ARROW=1         also installs Apache Arrow (50 MB), which reads Parquet and Arrow files"
	@echo "  ARGS=           goes to the program or to ctest: make train ARGS=--job.dump_folder=outputs/again"

setup: ## Install system packages and LibTorch (into .venv); ARROW=1 adds Apache Arrow, to read Parquet
	@script/setup.sh $(if $(filter asan tsan,$(PRESET)),sanitizers) $(if $(filter-out 0 OFF off no,$(ARROW)),arrow)

# Again when setup has installed something new, such as Apache Arrow.
configure: setup
	@test $(BUILD)/build.ninja -nt CMakePresets.json -a $(BUILD)/build.ninja -nt .venv/.lehr-setup || \
		{ cmake --preset $(PRESET) && touch $(BUILD)/build.ninja; }

build: configure ## Compile the program, build/lehr
	@cmake --build $(BUILD) -j $(JOBS) --target lehr

train: build ## Train recipe/quickstart.toml; ARGS="--section.key=value ..." changes it
	$(BUILD)/lehr train recipe/quickstart.toml $(ARGS)

wheel: configure ## Pack the program and the Python module as build/wheel/lehr-*.whl (docs/python.md)
	@cmake --build $(BUILD) -j $(JOBS) --target lehr_wheel

docs: setup ## Build the site of docs/ in build/site; a broken link fails (site/mkdocs.yml)
	@script/docs.sh build

docs-serve: setup ## Serve the site at http://127.0.0.1:8000, updated whenever a page is saved
	@script/docs.sh serve $(ARGS)

release: setup ## Make all files of a release in build/release, and publish nothing; ARGS=0.2.0, or ARGS=--rehearse
	@script/release.py $(ARGS)

test: configure ## Compile everything and run the tests; ARGS="-R nn" picks some
	@cmake --build $(BUILD) -j $(JOBS)
	@script/run_tests.sh $(PRESET) $(BUILD) $(ARGS)

test-all: ## Checks too long for make test: sanitizers, every mesh, peers, mutants; ARGS="--share 3/8" runs one share
	@script/test_all.sh $(ARGS)

bench: bench-build ## Time train steps of Lehr, transformers, torchtitan and JAX, into bench/results.md (fetches the peers into .bench)
	@script/bench_setup.sh
	.bench/bin/python bench/compare.py --lehr $(BUILD)/bin/train_step_bench $(ARGS)

bench-fsdp: build bench-build ## Compare two ranks with FSDP2 and DCP, into bench/results_ranks.md (fetches the peers into .bench)
	@script/bench_setup.sh
	.bench/bin/python bench/fsdp.py --build $(BUILD) $(ARGS)

bench-neighbours: bench-build ## Share of the idle machine's speed kept next to busy processes, into bench/results_neighbours.md
	@script/bench_setup.sh
	.bench/bin/python bench/neighbours.py --lehr $(BUILD)/bin/train_step_bench $(ARGS)

bench-published: build ## Compare plans of published runs with what was published, into bench/results_published.md
	python3 bench/published.py --lehr $(BUILD)/lehr $(ARGS)

bench-python: wheel ## Compare training through the Python module with the program, into bench/results_python.md
	.venv/bin/python bench/python_module.py --build $(BUILD) $(ARGS)

bench-ops: bench-build ## Compare each kernel with its plain definition; ARGS="--benchmark_filter=..." picks some
	$(BUILD)/bin/ops_bench $(ARGS)

bench-tokenizer: bench-build ## Compare encoding speed with the tokenizers package
	@script/bench_setup.sh
	.bench/bin/python bench/tokenizer_vs_python.py --bench $(BUILD)/bin/tokenizer_bench \
		test/data/tokenizer/qwen3 recipe/data/tinyshakespeare.txt $(ARGS)

bench-build: configure
	@script/setup.sh libbenchmark-dev
	@cmake -DLEHR_BENCH=ON $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target lehr_benchmarks

format: ## Format all sources by .clang-format
	@script/setup.sh clang-format
	@script/format.sh

format-check: ## Name the sources that .clang-format would change
	@script/setup.sh clang-format
	@script/format.sh --check

tidy: ## Run clang-tidy over the sources that differ from the main branch
	@script/setup.sh clang-tidy
	@$(MAKE) --no-print-directory configure PRESET=dev
	@script/tidy.sh

gpu-check: gpu-build ## Check this machine's GPU in ten minutes (docs/gpu.md); ARGS=--rehearse goes through it on the CPU
	@.venv/bin/python script/gpu_check --build $(BUILD) $(ARGS)

gpu-pack: gpu-build ## Pack gpu-check for another machine that has Python with torch, as build/gpu_pack.tar.xz
	@.venv/bin/python script/gpu_check --build $(BUILD) --pack $(BUILD)/gpu_pack $(ARGS)

gpu-build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target lehr $(GPU_TESTS)

mutants: setup ## Plant bugs one at a time and check that their tests fail; ARGS="--only muon" or "--share 1/8"
	script/mutants.py --jobs $(JOBS) $(ARGS)

faults: build ## Kill, stop, crash and starve real runs, and damage their files; ARGS="--seed 2 --only sleep"
	OMP_WAIT_POLICY=PASSIVE python3 test/program/faults.py $(BUILD)/lehr $(ARGS)

soak: build ## Disturb random runs for a while, alongside one whose memory must not grow; ARGS="--minutes 120 --seed 7"
	OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python3 test/program/soak.py $(BUILD)/lehr $(ARGS)

fuzz: ## Fuzz the parsers of files with libFuzzer; ARGS="--parser json --seconds 60" or "--list"
	@script/setup.sh sanitizers
	JOBS=$(JOBS) python3 test/fuzz/run.py $(ARGS)

clean: ## Remove all build output (build/); keep .venv
	rm -rf build
