# Every target sets up what it needs: Debian packages, .venv, the build. Nothing is done twice.
#
#   make          the library, the miniray command, and the Python package in .venv
#   make demo     the matrix example, in Python and in C++: local workers, then two local servers
#   make test     lint, then every test
#   make bench    MiniRay beside its yardsticks, into bench/results/
#   make bench-peers  MiniRay side by side with Ray, Dask, MPI and others, into docs/benchmarks.md (PEERS_OPTIONS)
#   make lint     formatters, linters and type checker
#   make analyze  clang's static analyzer, which takes long
#   make format   let the formatters rewrite the code
#   make sanitize the C++ tests under ASan with UBSan, then under TSan
#   make chaos    a pool over three hosts, two minutes of deaths and cuts (CHAOS_SEED)
#   make fuzz     fuzz the decoders for FUZZ_SECONDS each (default 300)
#   make wheels   a wheel for each CPython 3.10 to 3.13 that is installed, each tested
#   make clean    remove what was built; `make distclean` removes .venv too

PYTHON ?= python3
FUZZ_SECONDS ?= 300
CHAOS_SEED ?= 1
PEERS_OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
# The interpreter of .venv is found by path, so tools that look for "python" find it first.
export PATH := $(CURDIR)/$(BIN):$(PATH)
CLANG := clang++-19
export CTEST_OUTPUT_ON_FAILURE := 1

sources := $(shell find include src python cmake -type f ! -path '*/__pycache__/*') CMakeLists.txt pyproject.toml
cpp := $(shell find include src python tests examples bench -name '*.hpp' -o -name '*.cpp')
headers := $(filter %.hpp,$(cpp))
# Not the tests, whose own failures are found by running them, nor what needs headers that few machines have.
tidy_sources := $(filter-out python/% tests/% %_test.cpp %_fuzz.cpp examples/nccl_allreduce.cpp,$(filter %.cpp,$(cpp)))

.PHONY: all library package demo test test-cpp test-python test-fuzz chaos bench bench-peers lint lint-all analyze format sanitize fuzz wheels clean distclean
all: library package

# --- Set-up -----------------------------------------------------------------------------------------------------------
build/packages.done: tools/debian-packages.txt tools/install_debian_packages.sh
	@mkdir -p build
	@tools/install_debian_packages.sh
	@touch $@

$(VENV)/done: tools/requirements.txt build/packages.done
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Python packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	@touch $@

# --- Build ------------------------------------------------------------------------------------------------------------
library: build/packages.done
	@test -f build/release/build.ninja || cmake -S . -B build/release -G Ninja >/dev/null
	@cmake --build build/release

build/package.done: $(sources) $(VENV)/done
	@echo "Building the Python package"
	@CXX=c++ $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .  # as CMake calls it, for ccache
	@touch $@
package: build/package.done

demo: library package
	@$(BIN)/python examples/matmul.py
	@$(BIN)/python examples/cluster_matmul.py
	@build/release/examples/matmul
	@build/release/examples/cluster_matmul

# --- Tests ------------------------------------------------------------------------------------------------------------
test: lint test-cpp test-python test-fuzz

test-cpp: library
	@ctest --test-dir build/release --output-on-failure -j 2

test-python: library package
	@$(BIN)/python -m pytest -n 4 --dist loadfile  # many of them wait

test-fuzz: build/packages.done
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=5

chaos: library package
	@MINIRAY_CHAOS_TASKS=20000 MINIRAY_CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -s tests/chaos_test.py

sanitize: build/packages.done
	@for kind in address,undefined thread; do \
	    dir=build/sanitize-$${kind%%,*}; \
	    test -f $$dir/build.ninja || cmake -S . -B $$dir -G Ninja -DMINIRAY_SANITIZE=$$kind -DCMAKE_BUILD_TYPE=Debug \
	        -DCMAKE_CXX_FLAGS=-O1 >/dev/null || exit 1; \
	    cmake --build $$dir && ctest --test-dir $$dir --output-on-failure || exit 1; \
	done

fuzz: build/packages.done
	@test -f build/fuzz/build.ninja || cmake -S . -B build/fuzz -G Ninja -DMINIRAY_FUZZ=ON -DMINIRAY_TESTS=OFF \
	    -DCMAKE_CXX_COMPILER=$(CLANG) -DMINIRAY_SANITIZE=address,undefined >/dev/null
	@cmake --build build/fuzz
	@tools/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

bench: library package
	@$(BIN)/python bench/run.py
	@$(BIN)/python bench/cluster_bench.py
	@$(BIN)/python bench/training_bench.py
	@$(BIN)/python bench/pool_bench.py

# The peers have a virtual environment of their own. One that cannot be installed is told so, and the run goes on.
build/peers.done: tools/peers-debian-packages.txt build/package.done bench/peers/install.py $(wildcard bench/peers/*_peer.py)
	@echo "Installing the peers into build/peers-venv"
	@tools/install_debian_packages.sh tools/peers-debian-packages.txt || echo "Going on without them"
	@rm -rf build/peers-wheel
	@CXX=c++ $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w build/peers-wheel .
	@PYTHONPATH=bench $(BIN)/python -m peers.install build/peers-venv build/peers-wheel/*.whl
	@touch $@

bench-peers: library package build/peers.done
	@$(BIN)/python bench/peers_bench.py $(PEERS_OPTIONS)

wheels: $(VENV)/done
	@$(BIN)/python tools/build_wheels.py

# --- Lint -------------------------------------------------------------------------------------------------------------
lint: build/package.done
	@$(MAKE) --no-print-directory -j $$(nproc) lint-all
lint-all: $(tidy_sources:%=build/tidy/%.done) build/format.done build/python-lint.done

build/tidy/%.done: % .clang-tidy $(headers) build/packages.done | build/release/build.ninja
	@echo "clang-tidy $<"
	@mkdir -p $(@D)
	@clang-tidy-19 --quiet -p build/release --extra-arg=-Wno-unknown-warning-option $< 2>/dev/null
	@touch $@
build/release/build.ninja: build/packages.done
	@cmake -S . -B build/release -G Ninja >/dev/null

analyze: library
	@$(MAKE) --no-print-directory -j $$(nproc) $(tidy_sources:%=build/analyze/%.done)
build/analyze/%.done: % $(headers)
	@echo "analyze $<"
	@mkdir -p $(@D)
	@clang-tidy-19 --quiet -p build/release --extra-arg=-Wno-unknown-warning-option \
	    --checks='-*,clang-analyzer-*,-clang-analyzer-optin.core.EnumCastOutOfRange' $< 2>/dev/null
	@touch $@

build/format.done: $(cpp) .clang-format build/packages.done
	@clang-format-19 --dry-run --Werror $(cpp)
	@touch $@

build/python-lint.done: $(shell find python tests examples bench tools -name '*.py') pyproject.toml build/package.done
	@$(BIN)/ruff check --quiet python tests examples bench tools
	@$(BIN)/ruff format --quiet --check python tests examples bench tools
	@$(BIN)/mypy
	@touch $@

format: build/packages.done $(VENV)/done
	@clang-format-19 -i $(cpp)
	@$(BIN)/ruff check --quiet --fix python tests examples bench tools
	@$(BIN)/ruff format --quiet python tests examples bench tools

clean:
	@rm -rf build dist
distclean: clean
	@rm -rf $(VENV)
