# `make help` explains the targets.
PRESET ?= release
PREFIX ?= /usr/local
# A compiler on torch headers takes up to 2 GB.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { n = int($$2 / 2000000) + 0; if (n < 1) n = 1; print n < cores ? n : cores }' /proc/meminfo)
export LIBTORCH CUDA

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup models build test quickstart bench peers test-peers format clean install

help:  ## this list
	@echo 'roformer: start with `make quickstart`. Targets:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'
	@echo 'Settings: PRESET=release|dev|asan  LIBTORCH=/path  CUDA=1  JOBS=n  PREFIX=/path (install)'

setup:  ## install what is missing: Debian packages (as root), LibTorch and a text, both below build/
	@cmake/setup.sh

models:  ## fetch a small published BERT and jieba's dictionary into build/models (100 MB)
	@cmake/setup.sh models

build:  ## set up and build; the program is build/roformer
	@cmake/setup.sh build
	@cmake --preset $(PRESET) -DROFORMER_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF) > build/configure.log || \
	  { cat build/configure.log; exit 1; }
	@cmake --build build/$(PRESET) --parallel $(JOBS)
	@ln -sfn $(PRESET)/roformer build/roformer

test: build  ## set up, build and run all tests
	@ctest --test-dir build/$(PRESET) --parallel $(JOBS) --output-on-failure

quickstart: setup build  ## set up, build, train BERT and RoFormer on English text, draw their curves (~10 min)
	@build/roformer ablate configs/quickstart.yaml
	@echo 'The picture:'; ls runs/quickstart/*.png

peers:  ## install the Python packages that the benchmark and test-peers compare with
	@cmake/setup.sh build
	@tests/peers/setup.sh

bench: build peers  ## measure speed, side by side with the Python packages
	@cmake --build build/$(PRESET) --target bench_program
	@build/peers/bin/python tests/bench/bench.py build/$(PRESET)

test-peers: build peers  ## check results against the Python packages
	@cmake --build build/$(PRESET) --target bench_program
	@tests/peers/run.sh build/$(PRESET)

format:  ## clang-format the sources
	@command -v clang-format > /dev/null || { echo 'sudo apt-get install clang-format'; exit 2; }
	@find roformer apps tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | xargs clang-format -i

clean:  ## remove what was built; what was downloaded stays
	@find build -mindepth 1 -maxdepth 1 ! -name third_party ! -name data ! -name models ! -name peers -exec rm -rf {} + 2> /dev/null || true

install: build  ## install program, libraries, headers and CMake package below PREFIX
	@cmake --install build/$(PRESET) --prefix $(PREFIX) > build/install.log || { cat build/install.log; exit 1; }
	@echo 'installed below $(PREFIX)'
