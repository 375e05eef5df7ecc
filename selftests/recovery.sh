# SPDX-License-Identifier: GPL-2.0
# What the tests share in which connections break and come back; after lib.sh. The server offers
# export e, of KIND, on each network; the client has map m of it, with path a over network 0 and b
# over network 1.
# shellcheck shell=bash
KIND=${KIND:-block}
# MiB of the export, and those that stamp uses.
SIZE=16
USED=4
# FARBLK_PAUSE_MS is for how long each of stamp's jobs rests after an I/O. Default of
# no_path_timeout_ms, and how long after a fault I/O may take to begin again. Slow machines take
# FARBLK_PATIENCE times as long.
NO_PATH=60
AGAIN=${FARBLK_AGAIN_SECONDS:-20}
# Of the export: it outlives the server.
declare -A UUID=([server]=5f6c1a52-7a0b-4d5b-9a55-0d3c6f1e2a01 [second]=5f6c1a52-7a0b-4d5b-9a55-0d3c6f1e2a02)

# offer NETWORK...: the server listens there and exports e. offer_again: the same after it has
# forgotten all of it.
offer() {
	local n
	OFFER=:
	for n; do OFFER+=" && port_add p$n $(address "$SERVER" "$n")"; done
	case $KIND in
	ram) OFFER+=" && export_ram e ${SIZE}M uuid=${UUID[$SERVER]}" ;;
	# What was acknowledged is on the disk.
	block) OFFER+=" && store /sys/class/block/\${DISK##*/}/queue/write_cache 'write through' && export_block e \$DISK uuid=${UUID[$SERVER]}" ;;
	esac
	must remote "$OFFER"
}
offer_again() { must remote "$OFFER"; }

# start NETWORK... [-- ATTRIBUTE=VALUE...]: offers, maps with a path for each network, and lets
# stamp work.
start() {
	local networks=() n
	agent_only
	while [ $# != 0 ] && [ "$1" != -- ]; do networks+=("$1"); shift; done
	[ $# = 0 ] || shift
	offer "${networks[@]}"
	must mkdir "$C/maps/m"
	must settings "$C/maps/m" export=e ${FARBLK_PATIENCE:+no_path_timeout_ms=$((NO_PATH * 1000 * FARBLK_PATIENCE))} "$@"
	for n in "${networks[@]}"; do must path_add m "$(path_name "$n")" "$(address "$SERVER" "$n")"; done
	must map_on m
	all_live_in "$AGAIN"
	stamp_on --size $USED --pause "${FARBLK_PAUSE_MS:-0}" --hang $(((NO_PATH + 5) * ${FARBLK_PATIENCE:-1}))
	trap 'touch /run/stamp.stop; net pass' EXIT
	sleep 1
}
path_name() { [ "$1" = 0 ] && echo a || echo b; }
# map_of, path_of: an attribute.
map_of() { show "$C/maps/m/$1"; }
path_of() { show "$C/maps/m/paths/$1/$2"; }

# states: of the map and its paths, in words.
states() {
	local p
	printf 'map %s %s' "$(map_of state)" "$(map_of last_error)"
	for p in "$C"/maps/m/paths/*/; do p=$(basename "$p"); printf '; %s %s %s next %s' "$p" "$(path_of "$p" state)" "$(path_of "$p" last_error)" "$(path_of "$p" next_try_ms)"; done
}
map_is() { [ "$(map_of state)" = "$1" ]; }
path_is() { [ "$(path_of "$1" state)" = "$2" ]; }
all_live() {
	local p
	map_is live || return
	for p in "$C"/maps/m/paths/*/; do [ "$(show "$p/enable")" = 0 ] || [ "$(show "$p/state")" = live ] || return; done
}
all_live_in() { wait_for "$1" all_live || die "not live after $1 s: $(states)"; }

# resumes SECONDS: a read that begins now is done by then.
resumes() {
	local begin pid
	begin=$(now_ms)
	direct_read "$DEV" /dev/null bs=4k count=1 &
	pid=$!
	wait_for "$1" ended $pid || { counters_of_both; die "no I/O after $1 s: $(states)"; }
	wait $pid || bad "the read failed: $(states)"
	note "I/O after $(($(now_ms) - begin)) ms"
}
# counters_of_both: what both hosts have counted, for who has to find out what hangs.
counters_of_both() {
	local look="grep -r . $D 2>/dev/null | head -n 200"
	note "$(eval "$look")"
	note "server: $(remote "$look")"
}

# finish: stamp saw no error and nothing that must not be; all is live; the map goes.
finish() {
	# A path that nobody waits for is tried again after 10 s at most.
	all_live_in $((AGAIN * 3))
	stamp_off $((NO_PATH + 10))
	[ "$(stamped read_errors)$(stamped write_errors)" = 00 ] || bad "I/O errors: $(stamped last_error)"
	must unmap m
}

# reconnects: of all paths.
reconnects() { cat "$C"/maps/m/paths/*/reconnects | awk '{sum += $1} END {print sum}'; }

# survives FAULT UNDO: lines of shell, with a while between them; the second makes I/O possible
# again.
survives() {
	local before
	before=$(reconnects)
	eval "$1"
	sleep "${WHILE:-3}"
	note "meanwhile: $(states)"
	eval "$2"
	resumes "$AGAIN"
	sleep 1
	all_live_in $((AGAIN * 3))
	[ "$(reconnects)" -gt "$before" ] || bad "no path was lost"
	finish
}

# forgets NETWORKS FAULT UNDO: contents on a disk survive that, contents in memory do not.
forgets() {
	# shellcheck disable=SC2086
	start $1
	shift
	if [ "$KIND" = block ]; then
		survives "$1" "$2"
	else
		eval "$1"
		sleep 1
		eval "$2"
		wait_for "$AGAIN" map_is stale || die "not stale: $(states)"
		note "$(states)"
		wait_for 20 dead_read || bad "a stale map reads"
		# What is there now is nobody's.
		touch /run/stamp.stop
		wait_for 30 stamp_ended || die "stamp does not end"
		unharmed
		[ "$(stamped read_errors)" != 0 ] || bad "no read failed"
		must unmap m
		# The new contents are there for who wants them.
		must map m e
		must cmp -n $((SIZE << 20)) "$DEV" /dev/zero
		must unmap m
	fi
}
dead_read() {
	local got
	got=$(errno_of direct_read "$DEV" /dev/null bs=4k count=1)
	[[ $got =~ ^(EIO|ENOLINK|ESTALE)$ ]]
}

# heal: rxe devices that cannot connect any more.
heal() { must rxe_heal; must remote rxe_heal; }
# uml: the guests are programs.
uml() { grep -q "User Mode Linux" /proc/cpuinfo; }
