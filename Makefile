# Yagura's commands. `make run` and `make test` need nothing but Debian, a Rust toolchain (rustup) and this tree.
#
#   make run [DATA=dir] [ONCE=1]   build, start three storage nodes, import DATA, kill a node while reading, verify
#   make test                      the gate: everything a change must pass (also what CI runs)
#   make test-all                  the gate, all guest tests, the long simulation, ten million entries, the models, the mutants
#   make sim SEEDS=1000            the simulation of the whole store; SEED=n runs that one again
#   make entries [ENTRIES=n]       ten million short entries in one member: what the host's memory grows by; the cache's index of five times as many
#   make model                     the protocol's models, as far as they can be searched in an hour
#   make mutants [ONLY=pattern]    breaks one guarantee at a time; each must turn its named test red
#   make guest                     a real Linux kernel as peer, as initiator and as target: all that there is
#   make fuzz [SECONDS=60]         every fuzz target for that long
#   make bench [ROW=B4]            every row of figures in short form, or one, beside its peers
#   make figures                   what make bench has measured last becomes docs/figures.md
#   make dist                      the binary as it is given away, in target/dist: slower to build, a little faster to run
#   make install [PREFIX=/usr/local]   the binary, the C library with its header, pkg-config's file; DESTDIR is honoured
#   make fio-engine FIO=dir        the I/O engine for fio, in target/fio; FIO: source tree of the fio that loads it, configured
#   make wheel                     the Python package, optimised
#   make tidy | fmt | clean

.DELETE_ON_ERROR:
.NOTPARALLEL:

# What `make run` imports; without it a copy of this tree, free of build products and history.
DATA ?=
# `ONCE=1` ends the run after its summary; otherwise it serves until interrupted.
ONCE ?=
# Where `make run` keeps its pool. Its own directory, so that a second run shows the pool being reopened.
POOL_DIR ?= data
# Fresh simulated runs of `make sim`, or the one to run again.
SEEDS ?= 1000
SEED ?=
# Entries of `make entries`.
ENTRIES ?= 10000000
# Seconds per target of `make fuzz`.
SECONDS ?= 60
ONLY ?=
# Source tree of fio for `make fio-engine`.
FIO ?=
# Where `make install` puts things.
PREFIX ?= /usr/local

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
YAGURA := $(TARGET_DIR)/release/yagura
# What is given away and measured: optimised over all crates at once, which takes minutes more to build.
DIST := $(TARGET_DIR)/dist

.PHONY: help build dist run test test-all sim entries model mutants guest fuzz bench figures install fio-engine wheel tidy fmt clean deps deps-build deps-test deps-bench

help:
	@sed -n 's/^#   //p' Makefile

build: deps-build
	cargo build --release --locked --bin yagura

dist: deps-build
	cargo build --profile dist --locked --bin yagura

run: build
	scripts/run.sh "$(YAGURA)" "$(POOL_DIR)" "$(ONCE)" "$(DATA)"

test: deps-test
	scripts/gate.sh

test-all: test
	MAKE="$(MAKE)" scripts/test-all.sh

sim: deps-build
	$(if $(SEED),SEED=$(SEED),SEEDS=$(SEEDS)) scripts/sim.sh

entries: deps-build
	ENTRIES=$(ENTRIES) cargo test --locked --package kv --test entries -- --nocapture
	ENTRIES=$$(($(ENTRIES) * 5)) cargo test --locked --package cache --test all -- --nocapture entries::

model: deps-build
	scripts/model.sh

mutants: deps-build
	scripts/mutants.sh $(ONLY)

guest: deps-test
	scripts/guest.sh all

bench: deps-bench dist
	scripts/bench.sh "$(DIST)/yagura" "$(TARGET_DIR)/bench" $(ROW)

# What was measured last becomes what is shown.
figures:
	scripts/report.py --short "$(TARGET_DIR)/bench" | sed "s|$(CURDIR)/||g" > docs/figures.md

fuzz: deps-test
	scripts/fuzz.sh $(SECONDS)

# The static library is made only here: it holds all of Rust's, and takes long.
install: dist
	cargo rustc --profile dist --locked --package capi --lib --crate-type cdylib
	cargo rustc --profile dist --locked --package capi --lib --crate-type staticlib
	scripts/install.sh "$(PREFIX)" "$(DIST)/yagura" "$(DIST)"

fio-engine: deps-build
	@test -n "$(FIO)" || { echo "say FIO=…: the source tree of the fio that is to load the engine; docs/programs.md" >&2; exit 2; }
	cargo build --profile dist --locked --package capi --lib
	scripts/fio-engine.sh "$(FIO)" "$(DIST)/libyagura.so" "$(TARGET_DIR)/fio"
	@echo "fio --ioengine=external:$(abspath $(TARGET_DIR))/fio/libyagura_fio.so --device=\"volume HOST:PORT HOST:PORT HOST:PORT\" …"

wheel: deps-build
	scripts/python.sh wheel

# The lint alone, straight through rustc: it needs no dependency, so it answers in seconds.
tidy:
	scripts/tidy.sh

fmt:
	cargo fmt --all

clean:
	cargo clean
	rm -rf data fuzz/target

deps: deps-bench

deps-build:
	@scripts/deps.sh build

deps-test:
	@scripts/deps.sh build test

deps-bench:
	@scripts/deps.sh build test bench
