# SPDX-License-Identifier: GPL-2.0
# The front door. `make -C KDIR M=$PWD modules` builds the module without it; see Documentation/building.rst.

.PHONY: help demo samples check lint check-all check-hca check-siw check-core check-arm64 check-smp check-storm check-modversions check-boot check-upstream upstream debug-kernel modules tool doc install deb clippy fmt fmtcheck hosttest kselftest bench setup clean

help:
	@echo 'make demo       two hosts in guests: one exports RAM, the other mounts it'
	@echo 'make check      formatting, lints, host tests, kselftests; ends with "N passed, N failed"'
	@echo 'make lint       what make check does first, in half a minute: to be run before each commit'
	@echo 'make check-all  the same, with every kselftest on both kernels, packages, and one round of reboots'
	@echo 'make check-storm  1000 faults under I/O, on both kernels (hours)'
	@echo 'make check-hca  kselftests on an HCA without a wire, also with an IOMMU'
	@echo 'make check-siw  kselftests over iWARP'
	@echo 'make check-core kselftests of the patches of the RDMA core, upstream/core'
	@echo 'make check-arm64  kselftests on an arm64 kernel with pages of 64 KiB, also against the stock one'
	@echo 'make check-smp  kselftests on a debug kernel with two CPUs (slow)'
	@echo 'make check-modversions  the module on a kernel with MODVERSIONS, as Ubuntu builds them'
	@echo 'make check-boot   ten rounds of reboots of two guests with systemd (hours)'
	@echo 'make upstream   build/upstream/patches: the series for the kernel; check-upstream builds each step'
	@echo 'make modules    rust/farblk.ko for the stock kernel (KERNEL=release for another one)'
	@echo 'make samples    small modules that teach floor 1 (KERNEL=uml|RELEASE)'
	@echo 'make tool       tools/farblk/farblk, the control tool'
	@echo 'make install    both with manual pages, completions and units (PREFIX=/usr/local, DESTDIR=folder)'
	@echo 'make deb        Debian packages of the tool, of the module and of its source, in build/deb'
	@echo 'make doc        build/doc: the pages of Documentation, rustdoc of the module and of the tool'
	@echo 'make bench      latency and IOPS against nvme-rdma, rnbd, nvme-tcp and nbd, in one run'
	@echo 'make fmt, clippy, hosttest, kselftest (KERNEL=stock|uml|debug), setup, debug-kernel, clean'
	@echo 'All of them run as root and set up what they need; see Documentation/building.rst.'

setup:
	@tools/setup/kernel.sh >/dev/null
	@tools/setup/guest.sh >/dev/null

demo: setup modules tool
	@tools/vm/demo

# The kernels that find bugs: User Mode Linux for check, QEMU for check-smp.
debug-kernel: setup
	@tools/setup/guest.sh uml >/dev/null
	@tools/setup/guest.sh debug >/dev/null

check: setup
	@tools/setup/guest.sh uml >/dev/null
	@tools/setup/verifpal.sh >/dev/null
	@tools/check

lint: setup
	@tools/check lint

check-all: setup
	@tools/setup/guest.sh uml >/dev/null
	@tools/setup/verifpal.sh >/dev/null
	@tools/setup/guest.sh arm64 >/dev/null
	@tools/check all

# Those in which more than one CPU matters; all take half a day. The server is dead after disconnect.sh.
SMP_TESTS ?= load.sh configfs.sh races.sh kunit.sh broken.sh faults.sh integrity.sh onesided.sh verify.sh resize.sh many.sh disconnect.sh
check-smp: setup tool
	@tools/setup/guest.sh debug >/dev/null
	@KERNEL=debug tools/build modules kunit broken
	@KERNEL=debug KSELFTEST_ENV="FARBLK_SHORT=1 FARBLK_FAULTS_SECONDS=30 FARBLK_KINDS=block $${KSELFTEST_ENV:-}" \
		tools/vm/kselftest $(SMP_TESTS)

HCA_TESTS ?= testhca.sh integrity.sh verify.sh flush.sh errors.sh stats.sh budget.sh disconnect.sh
check-hca: setup modules tool
	@tools/build testhca
	@PROVIDER=testhca tools/vm/kselftest $(HCA_TESTS)
	@tools/setup/guest.sh uml >/dev/null
	@KERNEL=uml tools/build modules kunit broken samples testhca
	@PROVIDER=testhca KERNEL=uml tools/vm/kselftest testhca.sh kunit.sh samples.sh
	@PROVIDER=testhca KSELFTEST_ARGS="--iommu --smp 2" tools/vm/kselftest testhca.sh integrity.sh verify.sh
	@PROVIDER=testhca KSELFTEST_ARGS="--append swiotlb=force" tools/vm/kselftest testhca.sh
	@tools/vm/planted

SIW_TESTS ?= load.sh integrity.sh reconnect.sh multipath.sh ghost.sh hostile.sh
check-siw: setup modules tool
	@tools/build siw
	@PROVIDER=siw KSELFTEST_ENV="FARBLK_SHORT=1 FARBLK_KINDS=block FARBLK_GHOSTS=5 $${KSELFTEST_ENV:-}" \
		tools/vm/kselftest $(SIW_TESTS)

# CORE_FAULTS is how many times all paths are lost while the host swaps.
CORE_FAULTS ?= 10
check-core: setup modules tool
	@tools/build ibcore
	@FARBLK_CORE=patched KSELFTEST_ENV="FARBLK_ONLY=addresses,all_lost FARBLK_SWAP_FAULTS=$(CORE_FAULTS) $${KSELFTEST_ENV:-}" \
		tools/vm/kselftest core.sh swap.sh
	@CORE_FAULTS=$(CORE_FAULTS) tools/vm/unmended

# Programs of arm64 are emulated, as its kernel is.
ARM64_TESTS ?= load.sh integrity.sh verify.sh kunit.sh
check-arm64: setup modules
	@tools/setup/guest.sh arm64 >/dev/null
	@KERNEL=arm64 tools/build modules kunit testhca
	@KERNEL=arm64 tools/vm/kselftest $(ARM64_TESTS)
	@PROVIDER=testhca KERNEL=arm64 KSELFTEST_ENV=FARBLK_ONLY=plain,few_pages,small_pages tools/vm/kselftest testhca.sh
	@KERNEL=arm64 SERVER_KERNEL=stock tools/vm/kselftest integrity.sh
	@SERVER_KERNEL=arm64 tools/vm/kselftest integrity.sh

# FARBLK_SEED=N draws the faults of another run again.
check-storm: setup modules tool
	@tools/setup/guest.sh uml >/dev/null
	@KERNEL=uml tools/build modules broken
	@for kernel in stock uml; do \
		KERNEL=$$kernel KSELFTEST_SECONDS=20000 KSELFTEST_ENV="FARBLK_FAULTS=1000 FARBLK_GHOSTS=500 FARBLK_SEED=$(FARBLK_SEED)" \
			tools/vm/kselftest storm.sh ghost.sh || exit 1; \
	done

check-modversions: setup
	@tools/vm/modversions

check-boot: setup modules tool
	@tools/vm/boot --rounds 10

upstream: setup
	@tools/upstream/checkpatch build/upstream

check-upstream: setup
	@tools/setup/guest.sh uml >/dev/null
	@tools/upstream/check

samples: setup
	@tools/build samples

doc: setup modules
	@tools/build doc

install: modules tool
	@tools/build install

deb: setup tool
	@tools/package/deb

modules tool clippy fmt fmtcheck hosttest clean:
	@tools/build $@

kselftest: setup modules tool
	@case "$(KERNEL)" in uml | debug) tools/build kunit broken samples ;; esac
	@tools/vm/kselftest

bench: setup modules tool
	@tools/bench/run
