# Every target installs what it needs: Debian packages, the virtual environment .venv, the build. The library, the tests
# and the Python package share build/release, so nothing is built twice.
#
#   make          builds the library, the miniray command, and the Python package in .venv
#   make demo     verifies programs that a model wrote, on all cores and then on two servers
#   make test     runs every test
#   make check    runs every test, lint, and each fuzzer for 5 s, as CI does
#   make docs     builds a site of the pages in docs/ and a reference of Python and C++, in build/docs/site
#   make bench    compares MiniRay with yardsticks, and writes bench/results/
#   make bench-peers  compares MiniRay with Ray, Dask, MPI and others, and writes docs/benchmarks.md (PEERS_OPTIONS)
#   make lint     runs formatters, linters and the type checker
#   make analyze  runs clang's static analyzer, which takes long
#   make format   lets the formatters rewrite the code
#   make sanitize runs the C++ tests under ASan with UBSan, then under TSan
#   make sanitize-python  runs the tests of what makes Python objects of messages under ASan with UBSan
#   make chaos    runs a pool on three hosts through two minutes of deaths and network cuts (CHAOS_SEED)
#   make fuzz     fuzzes each decoder for FUZZ_SECONDS (default 300)
#   make fuzz-many  runs all fuzzers until they have executed FUZZ_INPUTS inputs together (default 100 million)
#   make corpus   writes the smallest set of the fuzzers' inputs that covers as much to tests/corpus
#   make wheels   builds and tests a wheel for each installed CPython from 3.10 to 3.13
#   make clean    removes what was built; `make distclean` also removes .venv

MAKEFLAGS += --no-builtin-rules  # they would link the units of the unity build as programs
PYTHON ?= python3
FUZZ_SECONDS ?= 300
FUZZ_INPUTS ?= 100000000
CHAOS_SEED ?= 1
PEERS_OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
# Tools that look for "python" on the PATH find the interpreter of .venv first.
export PATH := $(CURDIR)/$(BIN):$(PATH)
CLANG := clang++-19
export CTEST_OUTPUT_ON_FAILURE := 1

sources := $(shell find include src python cmake -type f ! -path '*/__pycache__/*') CMakeLists.txt pyproject.toml
cpp := $(shell find include src python tests examples bench -name '*.hpp' -o -name '*.cpp')
headers := $(filter %.hpp,$(cpp))
# clang-tidy skips tests, whose mistakes show when they run, and sources whose headers few machines have.
skip_tidy := %/nccl_allreduce.cpp $(CURDIR)/python/% $(CURDIR)/tests/% $(CURDIR)/build/release/python/% \
    $(CURDIR)/build/release/tests/% $(CURDIR)/$(VENV)/%

.PHONY: all library package docs demo test test-cpp test-python test-fuzz check chaos bench bench-peers lint lint-all \
    analyze analyze-all format sanitize sanitize-python fuzzers fuzz fuzz-many corpus wheels clean distclean
all: library package

# --- Set-up -----------------------------------------------------------------------------------------------------------
# Building needs few packages. Testing and linting need many, and take a while to install.
build/build-packages.done: tools/debian-build-packages.txt tools/install_debian_packages.sh
	@mkdir -p build
	@tools/install_debian_packages.sh $<
	@touch $@

build/packages.done: tools/debian-packages.txt build/build-packages.done
	@tools/install_debian_packages.sh $<
	@touch $@

$(VENV)/build.done: tools/build-requirements.txt build/build-packages.done
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/done: tools/requirements.txt build/packages.done $(VENV)/build.done
	@echo "Installing Python packages into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# --- Build ------------------------------------------------------------------------------------------------------------
build/release/build.ninja: $(VENV)/build.done
	@cmake -S . -B build/release -G Ninja -DMINIRAY_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null

library: build/release/build.ninja build/packages.done
	@cmake --build build/release

# The extension module is already built; pip only makes a wheel of it.
build/package.done: $(sources) build/release/build.ninja
	@echo "Building the Python package"
	@cmake --build build/release --target _core_stub
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
	    -C build-dir=build/release -C cmake.define.MINIRAY_TESTS=ON -C build.targets=_core_stub .
	@touch $@
package: build/package.done

demo: package
	@$(BIN)/python examples/demo.py

# --- Tests ------------------------------------------------------------------------------------------------------------
test: test-cpp test-python

check: test lint test-fuzz

test-cpp: library
	@ctest --test-dir build/release --output-on-failure -j 2

# CPython's own tests of executors. Without this package, the test that uses them is skipped.
build/test-packages.done: tools/test-debian-packages.txt build/packages.done
	@tools/install_debian_packages.sh tools/test-debian-packages.txt || echo "Going on without them"
	@touch $@

test-python: library package $(VENV)/done build/test-packages.done
	@$(BIN)/python -m pytest -n 4 --dist loadfile --nothing-is-missing  # four at a time: many tests wait

test-fuzz: build/packages.done
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=5

chaos: library package $(VENV)/done
	@MINIRAY_CHAOS_TASKS=20000 MINIRAY_CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -s tests/chaos_test.py

sanitize: build/packages.done
	@for kind in address,undefined thread; do \
	    dir=build/sanitize-$${kind%%,*}; \
	    test -f $$dir/build.ninja || cmake -S . -B $$dir -G Ninja -DMINIRAY_SANITIZE=$$kind -DCMAKE_BUILD_TYPE=Debug \
	        -DCMAKE_CXX_FLAGS=-O1 >/dev/null || exit 1; \
	    cmake --build $$dir && ctest --test-dir $$dir --output-on-failure || exit 1; \
	done

sanitize-python: build/packages.done $(VENV)/done
	@test -f build/sanitize-python/build.ninja || cmake -S . -B build/sanitize-python -G Ninja -DMINIRAY_PYTHON=ON \
	    -DMINIRAY_TESTS=OFF -DMINIRAY_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1 \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	@cmake --build build/sanitize-python --target _core
	@tools/sanitize_python.sh build/sanitize-python $(BIN)/python

fuzzers: build/packages.done
	@test -f build/fuzz/build.ninja || cmake -S . -B build/fuzz -G Ninja -DMINIRAY_FUZZ=ON -DMINIRAY_TESTS=OFF \
	    -DCMAKE_CXX_COMPILER=$(CLANG) -DMINIRAY_SANITIZE=address,undefined >/dev/null
	@cmake --build build/fuzz

fuzz: fuzzers
	@$(PYTHON) tools/run_fuzzers.py build/fuzz --seconds $(FUZZ_SECONDS)

fuzz-many: fuzzers
	@$(PYTHON) tools/run_fuzzers.py build/fuzz --inputs $(FUZZ_INPUTS)

corpus: fuzzers
	@$(PYTHON) tools/corpus.py merge build/fuzz

# --- Documentation ----------------------------------------------------------------------------------------------------
# The tools for the site are installed when it is first built. Warnings are errors.
build/docs-tools.done: tools/docs-debian-packages.txt tools/docs-requirements.txt $(VENV)/build.done
	@tools/install_debian_packages.sh tools/docs-debian-packages.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/docs-requirements.txt
	@touch $@

docs: build/docs-tools.done package
	@rm -rf build/docs && mkdir -p build/docs
	@doxygen docs/site/Doxyfile
	@$(BIN)/python -m sphinx -q -W --keep-going -j auto -c docs/site -d build/docs/doctrees docs build/docs/site
	@echo "The site is in build/docs/site/index.html"

bench: library package $(VENV)/done
	@$(BIN)/python bench/run.py
	@$(BIN)/python bench/sealed_bench.py
	@$(BIN)/python bench/cluster_bench.py
	@$(BIN)/python bench/training_bench.py
	@$(BIN)/python bench/pool_bench.py
	@$(BIN)/python bench/image_filter_bench.py

# The peers have a virtual environment of their own. If a peer cannot be installed, a message says so, and the others
# are measured.
build/peers.done: tools/peers-debian-packages.txt build/package.done bench/peers/install.py $(wildcard bench/peers/*_peer.py)
	@echo "Installing the peers into build/peers-venv"
	@tools/install_debian_packages.sh tools/peers-debian-packages.txt || echo "Going on without them"
	@rm -rf build/peers-wheel
	@CXX=c++ $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w build/peers-wheel .
	@PYTHONPATH=bench $(BIN)/python -m peers.install build/peers-venv build/peers-wheel/*.whl
	@touch $@

# The programs of other C++ libraries are built only after these were installed, so cmake looks for them again.
bench-peers: package build/peers.done
	@cmake -S . -B build/release >/dev/null && cmake --build build/release
	@$(BIN)/python bench/peers_bench.py $(PEERS_OPTIONS)

wheels: $(VENV)/done
	@$(BIN)/python tools/build_wheels.py

# --- Lint -------------------------------------------------------------------------------------------------------------
# clang-tidy reads the units of the unity build, which takes a sixth of the time.
units = $(filter-out $(skip_tidy),$(shell sed -n 's/^ *"file": "\(.*\)".*/\1/p' build/release/compile_commands.json 2>/dev/null))
done_of = $(patsubst $(CURDIR)/%,build/$(1)/%.done,$(units))
sources_of = $(shell sed -n 's/^\#include "\(.*\)".*/\1/p' $(1))
tidy := clang-tidy-19 --quiet -p build/release --extra-arg=-Wno-unknown-warning-option
.SECONDEXPANSION:

lint: build/packages.done build/package.done
	@$(MAKE) --no-print-directory -j $$(nproc) lint-all
lint-all: $$(call done_of,tidy) build/format.done build/python-lint.done

build/tidy/%.done: % .clang-tidy $(headers) $$(call sources_of,$$*)
	@echo "clang-tidy $<"
	@mkdir -p $(@D)
	@$(tidy) $< 2>/dev/null
	@touch $@

analyze: build/packages.done build/package.done
	@$(MAKE) --no-print-directory -j $$(nproc) analyze-all
analyze-all: $$(call done_of,analyze)
build/analyze/%.done: % $(headers) $$(call sources_of,$$*)
	@echo "analyze $<"
	@mkdir -p $(@D)
	@$(tidy) --checks='-*,clang-analyzer-*,-clang-analyzer-optin.core.EnumCastOutOfRange' $< 2>/dev/null
	@touch $@

build/format.done: $(cpp) .clang-format build/packages.done
	@clang-format-19 --dry-run --Werror $(cpp)
	@touch $@

build/python-lint.done: $(shell find python tests examples bench tools -name '*.py') pyproject.toml build/package.done $(VENV)/done
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
