#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Memory allocations fail, on one host, which is client and server: all that is tried works or ends
# with a clean error, what was written is there, and once the faults are over a map works.
# FARBLK_KINDS=KIND: exports of that kind only, but where memory fails the kernel.
. "$(dirname "$0")/lib.sh"
TOLERATE=1
unset FARBLK_AGENT FARBLK_REMOTE
FAULTS=/sys/kernel/debug
# Seconds, roughly. More of them leave out fewer allocations; about 10000 leave out none.
BUDGET=${FARBLK_FAULTS_SECONDS:-60}
# What may come of it.
ERRORS='OK|ENOMEM|ENOBUFS|ENFILE|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENOTCONN'
# FARBLK_VERBOSE=1 shows the outcome of each.
VERBOSE=${FARBLK_VERBOSE:-}
[ -d $FAULTS/failslab ] && [ -d $FAULTS/fail_page_alloc ] || skip "this kernel has no fault injection"

# faults NAME=VALUE...: for both kinds of faults.
faults() { settings "$FAULTS/failslab" "$@" && settings "$FAULTS/fail_page_alloc" "$@"; }
faults_off() { faults probability=0; }

# faults_in module|kernel: which allocations may fail: those with the module's text on the stack, or
# all of the kernel's threads and of the task that asks.
faults_in() {
	local p leave_out=__alloc_object
	[ "$1" = module ] || leave_out=cma_ib_req_handler
	# What kmemleak needs for itself is nobody's matter; it has a reserve. In the kernel's
	# threads the reserve does, for one function can be left out, and there it is rdma_cm's:
	# when memory fails in cma_ib_new_conn_id(), which is inlined, it destroys the new id under
	# the lock of the one that listens, a class of lock within itself, and lockdep reports that.
	# shellcheck disable=SC2046
	set -- "$1" $(sort /proc/kallsyms | grep -A 1 -E " $leave_out([[:space:]]|\$)" | cut -d ' ' -f 1)
	must faults probability=0 verbose=0 task-filter=N ignore-gfp-wait=N stacktrace-depth=32 require-start=0 \
		require-end=0xffffffffffffffff "reject-start=0x${2:-0}" "reject-end=0x${3:-0}"
	must store $FAULTS/fail_page_alloc/min-order 0
	TASK=
	if [ "$1" = module ]; then
		# shellcheck disable=SC2046
		set -- $(awk '$4 == "[farblk]" && tolower($2) == "t" {print $1}' /proc/kallsyms | sort | sed -n '1p;$p')
		must faults "require-start=0x$1" "require-end=0x$2"
	else
		TASK=1
		must faults task-filter=Y
		# Children inherit it. Only a kernel thread has no executable.
		for p in /proc/[0-9]*; do readlink "$p/exe" >/dev/null || store "$p/make-it-fail" 1; done 2>/dev/null
	fi
}

# soon COMMAND...: GOT is OK or the error; if COMMAND hangs, that is the end.
soon() {
	GOT=
	read -r -t 60 GOT < <(errno_of "$@") || { faults_off; die "hangs: $*"; }
}
# surely COMMAND...: works, as there are no faults.
surely() { soon "$@"; [ "$GOT" = OK ] || die "$GOT without a fault: $*"$'\n'"$(rdma resource show)"; }

# try REFUSAL COMMAND...: COMMAND, in a task whose allocations may fail; that file knows of its
# error.
try() {
	local text
	soon doomed "${@:2}"
	[[ $GOT =~ ^($ERRORS)$ ]] || bad "$GOT: ${*:2}"
	# The kernel may have failed before it got to the module.
	[ "$GOT" != OK ] && [ -e "$1" ] && [ "$GOT$TASK" != ENOMEM1 ] || return 0
	text=$(show "$1")
	[[ $text == "$GOT "?* ]] || bad "refusal is '$text' after $GOT: ${*:2}"
}
doomed() (
	[ -z "$TASK" ] || store /proc/self/make-it-fail 1
	"$@"
)

# --- allocation after allocation ------------------------------------------------------------------

# walk STEP REFUSAL: function STEP with one failing allocation, the first, the second and so on
# till it has no more. After each, STEP_undo finds whatever STEP has left. All but the end of a map
# need memory of their own.
#
# A fault comes when the kernel's count of allocations is a multiple of interval. It is never set
# back, but stands still once the fault was there. If there was none, it is behind ours by no more
# than the last stride, which catch_up makes good: later steps have fewer allocations than that.
walk() {
	local kind dir k hits misses count seen
	for kind in failslab fail_page_alloc; do
		dir=$FAULTS/$kind hits=0 misses=0 seen=""
		count=$(cat /run/$kind.count 2>/dev/null) || count=0
		for ((k = 1; ; )); do
			must settings $dir interval=$((count + k)) times=1 probability=100
			try "$2" "$1"
			faults_off
			[[ " $seen " == *" $GOT "* ]] || seen+=" $GOT"
			[ -z "$VERBOSE" ] || note "$1 $kind $k: $GOT $([ ! -e "$2" ] || cat "$2")"
			[ "$(show $dir/times)" = 0 ] || [ "$GOT" = OK ] || bad "$GOT without a fault: $1"
			"$1_undo"
			if [ "$(show $dir/times)" = 0 ]; then
				count=$((count + k)) hits=$((hits + 1))
				k=$((k + 1 + k * 40 / BUDGET))
			elif [ $hits != 0 ] || [ $((misses += 1)) = 4 ]; then
				break
			fi
		done
		count=$((count + k - 1))
		[ $kind != failslab ] || catch_up
		echo $count >/run/$kind.count
		note "$1: $hits faults in $kind up to the ${k}th:$seen"
		[ $kind != failslab ] || [ "$1" = unmap_ ] || [[ $seen == *ENOMEM* ]] || bad "$1: no fault that mattered"
	done
}

# catch_up: the end of walk. Brings the kernel's count of slab allocations to the one after count,
# which becomes the same.
catch_up() {
	local i
	# With an interval of 1 the kernel does not count.
	count=$((count > 0 ? count + 1 : 2))
	must settings "$dir" interval=$count times=1 probability=100
	for ((i = 0; i < 2000; i++)); do
		mkdir "$C/maps/catch-up" 2>/dev/null
		[ "$(<"$dir/times")" != 0 ] || break
		rmdir "$C/maps/catch-up" 2>/dev/null
	done
	faults_off
	rmdir "$C/maps/catch-up" 2>/dev/null
	[ "$(<"$dir/times")" = 0 ] || die "the kernel's count of allocations is unknown"
}

port() { port_add p "$FARBLK_SERVER"; }
port_undo() { [ ! -d "$C/ports/p" ] || { surely store "$C/ports/p/enable" 0; surely rmdir "$C/ports/p"; }; }
export_() { case $KIND in ram) export_ram e 8M ;; block) export_block e "$BACK" ;; esac; }
export__undo() { [ ! -d "$C/exports/e" ] || { surely store "$C/exports/e/enable" 0; surely rmdir "$C/exports/e"; }; }
map_() { store "$C/maps/m/enable" 1; }
map__undo() { surely store "$C/maps/m/enable" 0; }
unmap_() { store "$C/maps/m/enable" 0; }
unmap__undo() { surely store "$C/maps/m/enable" 1; }

# backing KIND: exports are of that kind from now on.
backing() {
	KIND=$1
	[ "$KIND" = ram ] || back "null_disk fbf 8"
}

each_allocation() {
	backing "$1"
	faults_in module
	walk port "$C/ports/p/refusal"
	surely port
	walk export_ "$C/exports/e/refusal"
	surely export_
	must map_make m e
	# The block layer does not look whether the name of a disk could be allocated, and then
	# misses it.
	ERRORS="$ERRORS|EINVAL" walk map_ "$C/maps/m/refusal"
	surely map_
	walk unmap_ "$C/maps/m/refusal"
}

# orders MIN: allocations of so many pages fail, as an exponent of 2, and of more.
orders() { must settings $FAULTS/fail_page_alloc "min-order=$1" interval=1 times=-1 probability=100; }

# A path with protection has 5 MiB of bounce buffers, in pieces of 256 KiB at least. Where memory
# lacks them, or is in smaller pieces, the map ends with an error. A path that comes back has them.
protected() {
	KIND=block
	back "null_disk fbp 8"
	faults_in module
	surely port
	surely export_block e "$BACK" protection=crc32c max_clients=2
	# The server has what it needs for several maps.
	must map_make w e protection=crc32c
	surely store "$C/maps/w/enable" 1
	must map_make m e protection=crc32c reconnect_max_ms=1000
	for order in 0 6; do
		orders $order
		try "$C/maps/m/refusal" map_
		faults_off
		note "no 2^$order pages: $(show "$C/maps/m/last_error")"
		is "a map where no 2^$order pages are to be had" "$GOT" ENOMEM
		map__undo
	done
	[[ $(show "$C/maps/m/last_error") != *server* ]] || bad "it is not the map that has no memory"
	orders 7
	try "$C/maps/m/refusal" map_
	faults_off
	is "a map where there are pieces of 256 KiB" "$GOT $(show "$C/maps/m/last_error")" "OK "
	[ "$GOT" = OK ] || surely map_
	must store $FAULTS/fail_page_alloc/min-order 0
	DEV=/dev/$(show "$C/maps/m/device")
	must fio --name=protected --filename="$DEV" --direct=1 --ioengine=libaio --iodepth=32 --rw=randwrite --bsrange=4k-256k --size=8m --verify=crc32c \
		--verify_fatal=1 --do_verify=1 --output=/run/fio.out
	surely unmap_
	# Some of them are in the way of the first connection only.
	ERRORS="$ERRORS|EINVAL" walk map_ "$C/maps/m/refusal"
	surely map_
	DEV=/dev/$(show "$C/maps/m/device")
	random /run/data 1
	surely direct_write /run/data "$DEV"
	for rate in 5 25 50; do
		surely store "$C/ports/p/enable" 0
		must faults interval=1 times=-1 probability=$rate
		wait_for 20 store "$C/ports/p/enable" 1
		sleep 3
		note "$rate %: $(grep -h . "$C"/maps/m/{state,last_error} "$C"/maps/m/paths/a/last_error | tr '\n' ' ')"
		faults_off
		wait_for 20 is_listening || bad "the port does not come back: $(show "$C/ports/p/last_error")"
		wait_for 30 is_live || die "the map does not come back: $(grep -h . "$C"/maps/m/{state,last_error})"
		surely direct_read "$DEV" /run/back count=1
		must cmp -n 1M /run/data /run/back
	done
	surely unmap_
	surely store "$C/maps/w/enable" 0
}
is_listening() { [ "$(show "$C/ports/p/state")" = listening ] || store "$C/ports/p/enable" 1; }
is_live() { [ "$(show "$C/maps/m/state")" = live ]; }

# --- more and more --------------------------------------------------------------------------------

# move INPUT OUTPUT: 64 blocks from - or to -, the other being the disk, by a dd whose allocations
# may fail. It may end with an error; GOT is which, and BLOCKS how far it got. Only when it is under
# way, at the fifo, the faults begin for it.
move() {
	soon doomed_dd "$@"
	# null_blk has no space when it has no memory.
	[[ $GOT =~ ^(OK|EIO|ENOLINK|ENOMEM)$ || $GOT = ENOSPC && $KIND = block ]] || bad "$GOT: dd $*"
	BLOCKS=$(sed -n 's/+. records out//p' /run/dd.out)
	BLOCKS=${BLOCKS:-0}
}
doomed_dd() {
	local pid rc=0
	rm -f /run/fifo && mkfifo /run/fifo
	if [ "$1" = - ]; then set -- "$@" if=/run/fifo iflag=fullblock "of=$2" oflag=direct; else set -- "$@" "if=$1" iflag=direct of=/run/fifo; fi
	dd "${@:3}" bs=16k count=64 conv=notrunc 2>/run/dd.out &
	pid=$!
	# It waits for the other end of the pipe.
	wait_for 30 dd_sleeps $pid
	[ -z "$TASK" ] || store /proc/$pid/make-it-fail 1
	if [ "$1" = - ]; then cat /run/data >/run/fifo; else cat /run/fifo >/run/back; fi 2>/dev/null
	wait $pid || rc=$?
	[ $rc = 0 ] || sed '/records/d; /bytes/d' /run/dd.out >&2
	return $rc
}
dd_sleeps() { [[ $(<"/proc/$1/stat") == *"(dd) S "* ]]; }
# holds COUNT: so many blocks of /run/back are what was written.
holds() { cmp -n $(($1 * 16384)) /run/data /run/back || wrong "acknowledged data is not there"; }

rising() {
	local rate written rates="1 5 25"
	! is_short || rates="5 25"
	backing "$2"
	faults_in "$1"
	surely port
	surely export_
	# With faults for ever a path that was lost hardly comes up again.
	must map_make m e no_path_timeout_ms=5000
	for rate in $rates; do
		random /run/data 1
		must faults interval=1 times=-1 probability=$rate
		try "$C/maps/m/refusal" map_
		note "$rate %: map: $GOT $(show "$C/maps/m/last_error")"
		if [ "$GOT" != OK ]; then
			faults_off
			surely map_
			must faults probability=$rate
		fi
		DEV=/dev/$(show "$C/maps/m/device")
		move - "$DEV"
		written=$BLOCKS
		note "$rate %: wrote $written blocks: $GOT"
		move "$DEV" -
		note "$rate %: read $BLOCKS blocks: $GOT"
		holds $((BLOCKS < written ? BLOCKS : written))
		try "$C/maps/m/refusal" unmap_
		note "$rate %: unmap: $GOT"
		faults_off
		surely unmap_
		must rxe_heal
		surely map_
		DEV=/dev/$(show "$C/maps/m/device")
		surely direct_read "$DEV" /run/back count=1
		holds "$written"
		surely unmap_
	done
}
each_allocation_ram() { each_allocation ram; }
each_allocation_block() { each_allocation block; }
rising_in_module_ram() { rising module ram; }
rising_in_module_block() { rising module block; }
rising_in_kernel_ram() {
	local leaks=""
	kmemleak_is_on && leaks=1
	rising kernel ram
	[ -z "$leaks" ] || kmemleak_is_on || bad "kmemleak gave up, as its reserve was too small"
}

trap faults_off EXIT
for kind in ${FARBLK_KINDS:-ram block}; do
	scenario each_allocation_$kind "each allocation of the module fails once, $kind"
	scenario rising_in_module_$kind "more and more allocations of the module fail, $kind"
done
scenario protected "memory for the bounce buffers of a map with protection fails"
# Not with a block export: rxe warns (rxe_comp.c) when it has no memory in the middle of a message,
# and there are more of them.
scenario rising_in_kernel_ram "more and more allocations of the kernel fail, ram"
run_scenarios
