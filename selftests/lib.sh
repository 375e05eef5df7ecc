# SPDX-License-Identifier: GPL-2.0
# What the tests share. They use the configfs files themselves, not the tool.
# Long: a test loads one file, and so does the server that runs a line for it.
#
# A test is written from the client's side. What the server does is a line of shell for remote: in
# two guests of tools/vm (FARBLK_HARNESS is the guests' library, FARBLK_AGENT is set) it goes over
# the control stream; FARBLK_REMOTE="ssh root@HOST" reaches a real machine that has this folder in
# the same place; with neither, this host is its own server. FARBLK_SERVER is the server's address
# (default: the first one of a local RDMA device; a host without any gets rxe0 over a dummy device).
#
# PROVIDER is the kind of rxe0, the RDMA device that tests make: rxe (default), siw or testhca.
#
# FARBLK_LOCAL=1 leaves farblk out, and the other host: the disk that a map of a block export gives
# is the exported device itself. What passes so and fails on farblk is farblk's fault.
# shellcheck shell=bash disable=SC2034
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
C=/sys/kernel/config/farblk
D=/sys/kernel/debug/farblk
# Lines of NAME NUMBER. io_completions counts the completions of I/O that the server reaped.
COUNTERS=$D/server/counters
PROVIDER=${PROVIDER:-rxe}
CASES=()
# shellcheck source=selftests/backing.sh
. "$HERE/backing.sh"
is_local() { [ -n "${FARBLK_LOCAL:-}" ]; }
! is_local || unset FARBLK_AGENT FARBLK_REMOTE
# shellcheck source=tools/vm/guest/lib.sh
[ -z "${FARBLK_HARNESS:-}" ] || . "$FARBLK_HARNESS"

# --- results --------------------------------------------------------------------------------------

# note WORDS: for the log. bad WORDS: notes a failure, the test goes on. die WORDS: ends the test.
# wrong WORDS: as bad, for what no busy machine excuses: wrong data, a leak, harm that a hostile
# peer does. tools/vm/kselftest runs no scenario again that said so.
note() { printf '# %s\n' "${*//$'\n'/$'\n# '}"; }
bad() { note "FAILED: $*"; BAD=1; }
die() { bad "$*"; exit 1; }
wrong() { note "WRONG: $*"; : >"$WRONG"; BAD=1; }
WRONG=/run/farblk-wrong
# must COMMAND...: ends the test if COMMAND fails. One that compares or checks data has found them
# wrong then.
must() {
	local rc=0
	"$@" || rc=$?
	[ $rc != 0 ] || return 0
	case "$*" in cmp\ * | fsck.* | xfs_repair\ * | sha256sum\ * | fio\ *\ --verify=*) wrong "exit code $rc of: $*"; exit 1 ;; esac
	die "exit code $rc of: $*"
}
# is WHAT VALUE WANTED. same_data WHAT VALUE WANTED: the same of data, of their checksum, or of what
# a hostile peer is counted for: wrong if they differ.
is() { [ "$2" = "$3" ] || bad "$1 is '$2', not '$3'"; }
same_data() { [ "$2" = "$3" ] || wrong "$1 is '$2', not '$3'"; }
# fio_worked: fio, whose report is /run/fio.out, had no error. It gives EILSEQ (84) for data that it
# has found to be wrong.
fio_worked() {
	! grep -q 'err= 0' /run/fio.out || return 0
	local say=bad
	! grep -qE 'verify: bad|verify failed|err= ?84' /run/fio.out || say=wrong
	$say "fio: $(grep -m 3 -E 'err|verify|fio:' /run/fio.out)"
}
# skip WHY: ends the test, neither passed nor failed.
skip() { note "skipped: $*"; exit 4; }
# agent_only: ends a test that turns machines off, or breaks their network: the harness of the
# guests does that.
agent_only() { [ -n "${FARBLK_AGENT:-}" ] || skip "only in the guests of tools/vm"; }
# not_local: ends a test that is about farblk alone. needs TOOL...: ends it where this host has no
# such program.
not_local() { ! is_local || skip "a local disk has no such thing"; }
needs() { local t; for t; do command -v "$t" >/dev/null || skip "there is no $t"; done; }
# needs_module NAME...: ends the test where the server's kernel has not got it; who makes a device
# loads it, with its parameters. needs_own_module: the same of this host's kernel, and loads it.
needs_module() { local m; for m; do remote "has_module $m" || skip "the server's kernel has no $m"; done; }
needs_own_module() { local m; for m; do modprobe -q "$m" || skip "the kernel has no $m"; done; }
# needs_user_rdma: ends the test where user space cannot use the RDMA device.
needs_user_rdma() { [ "$PROVIDER" != testhca ] || skip "$PROVIDER has no users in user space"; needs_own_module ib_uverbs rdma_ucm; }
has_module() { modprobe --dry-run --quiet "$1"; }

# at_exit LINE: runs a line of shell when the scenario ends, however it does. What was given last
# runs first.
at_exit() { AT_EXIT="$1; ${AT_EXIT:-}"; trap 'eval "$AT_EXIT"' EXIT; }

# scenario FUNCTION WORDS: a test of this file; FARBLK_ONLY=FUNCTION,... picks some.
scenario() { [[ ,${FARBLK_ONLY:-$1}, != *",$1,"* ]] || CASES+=("$*"); }
# both FUNCTION WORDS: the same with KIND=ram and KIND=block, or those of FARBLK_KINDS.
both() {
	local kind
	for kind in ${FARBLK_KINDS:-ram block}; do
		eval "$1_$kind() { KIND=$kind; $1; }"
		scenario "$1_$kind" "$2, $kind"
	done
}

# run_scenarios: runs each in a subshell from a clean state, and wants that state back after it and
# no complaint of a kernel. The last one unloads the module. After each comes a line "scenario TEST
# FUNCTION RESULT SECONDS": the result is passed, skipped, known, failed, or wrong if that is not to
# be tried again.
run_scenarios() {
	local item name words rc result before start up marks=0 mark
	# shellcheck source=/dev/null
	. "${KTAP_HELPERS:-$HERE/../kselftest/ktap_helpers.sh}" || exit 4
	ktap_print_header
	if [ "$(id -u)" != 0 ] || ! have_rdma; then
		ktap_skip_all "this needs root and an RDMA device (or rdma_rxe)"
		exit "$KSFT_SKIP"
	fi
	tolerate on
	is_local || CASES+=("unload the module goes, nothing of it stays, and lockdep still watched")
	ktap_set_plan "${#CASES[@]}"
	set_mark "$$-0"
	is_local || loaded || load_module || { echo "Bail out! the module does not load"; exit 1; }
	remote 'is_local || loaded || load_module' || { echo "Bail out! the server's module does not load"; exit 1; }
	clean_all
	before=$(baseline)
	for item in "${CASES[@]}"; do
		name=${item%% *} words=${item#* }
		rc=0
		rm -f "$WRONG"
		read -r start _ </proc/uptime
		(BAD=0; declare -F "$name" >/dev/null || die "there is no $name"; "$name"; exit "$BAD") || rc=$?
		clean_all || { rc=1; : >"$WRONG"; }
		if [ "$rc" != 4 ] && ! wait_for 30 same_baseline "$before"; then
			wrong "left behind: $(baseline | tr "\n" " "), before: ${before//$'\n'/ }"
			rc=1
		fi
		# First the new mark, so that nothing is missed between two scenarios.
		mark=$$-$marks marks=$((marks + 1))
		set_mark "$$-$marks"
		quiet_since "$mark" || { rc=1; : >"$WRONG"; }
		read -r up _ </proc/uptime
		case $rc in
		0) result=passed ;; 2) result=known ;; 4) result=skipped ;;
		*) result=failed; [ ! -e "$WRONG" ] || result=wrong ;;
		esac
		note "scenario ${0##*/} $name $result $((${up%.*} - ${start%.*}))"
		case $rc in
		0) ktap_test_pass "$words" ;; 2) ktap_test_xfail "$words" ;;
		4) ktap_test_skip "$words" ;;
		*) ktap_test_fail "$words" ;;
		esac
	done
	tolerate off
	ktap_finished
}

# --- the two hosts --------------------------------------------------------------------------------

# have_rdma: finds or makes an RDMA device, and sets FARBLK_SERVER if nobody did.
have_rdma() {
	[ -n "${FARBLK_SERVER:-}" ] && return
	if ! ls /sys/class/infiniband/* >/dev/null 2>&1; then
		ip link add dummy0 type dummy && ip link set dummy0 mtu 4300 && ip addr add 10.9.0.1/24 dev dummy0 && ip link set dummy0 up &&
			{ case $PROVIDER in rxe) modprobe rdma_rxe ;; siw) modprobe siw ;; esac; } && rxe_add dummy0 || return
	fi
	FARBLK_SERVER=$(ip -4 -o addr show dev "$(rdma link show | sed -n '1s/.* netdev \([^ ]*\).*/\1/p')" | awk '{sub("/.*", "", $4); print $4; exit}')
	export FARBLK_SERVER
	[ -n "$FARBLK_SERVER" ]
}

# rxe_netdev [DEVICE]: what rxe0 or another one lies on. rxe_add NETDEV [DEVICE]: makes it, ready
# for use: with the address, but over iWARP, whose GID has none.
rxe_netdev() { rdma link show "${1:-rxe0}/1" | sed -n 's/.* netdev \([^ ]*\).*/\1/p'; }
rxe_add() { rdma link add "${2:-rxe0}" type "$PROVIDER" netdev "$1" && wait_for 20 rxe_has_ipv4 "${2:-rxe0}"; }
rxe_has_ipv4() { [ "$PROVIDER" = siw ] || grep -qs '^0000:0000:0000:0000:0000:ffff:' "/sys/class/infiniband/$1/ports/1/gids/"*; }
# server_address ADDRESS: of rxe0, for a server in user space.
server_address() {
	local mapped
	ip addr replace "$1/24" dev "$(rxe_netdev)" || return
	# shellcheck disable=SC2046
	mapped=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${1//./ }) && { [ "$PROVIDER" = siw ] || wait_for 20 grep -qsx "$mapped" /sys/class/infiniband/rxe0/ports/1/gids/*; }
}

# rxe_heal: the GSI queue pair of an rxe device stays in error once it had to send while the link
# was down, and nobody can connect then. Exports of RAM keep the regions that clients had.
rxe_is_bare() { ! rdma resource show qp link "$1/1" | grep -qv 'type GSI' && { has_ram || [ -z "$(rdma resource show mr dev "$1")" ]; }; }
has_ram() { local e; for e in "$C"/exports/*/; do [ "$(cat "$e/enable" "$e/kind" 2>/dev/null)" != $'1\nram' ] || return 0; done; false; }
rxe_heal() {
	local rxe dev p
	for rxe in $(rdma resource show qp | sed -n 's|^link \([^/]*\)/.* type GSI state ERR.*|\1|p'); do
		note "$rxe is made anew: its GSI queue pair is in error"
		# Nobody could tell afterwards what was left on it.
		wait_for 30 rxe_is_bare "$rxe" || bad "$rxe still has $(rdma resource show qp link "$rxe/1" | grep -v 'type GSI'; rdma resource show mr dev "$rxe")"
		dev=$(rxe_netdev "$rxe")
		for p in "$C"/ports/*/; do [ ! -d "$p" ] || store "$p/enable" 0; done
		rdma link delete "$rxe"
		rxe_add "$dev" "$rxe" || return
		for p in "$C"/ports/*/; do [ ! -d "$p" ] || store "$p/enable" 1; done
	done
}

two_hosts() { [ -n "${FARBLK_AGENT:-}${FARBLK_REMOTE:-}" ]; }
# has_server: there is another host, and it was not turned off.
has_server() { two_hosts && [ ! -e /run/server-is-off ]; }

# remote LINE: runs a line of shell, with this library, on the server; its output and exit code are
# LINE's. SERVER=second is the second server, in guests that have one.
SERVER=${SERVER:-server}
remote() {
	if [ -n "${FARBLK_AGENT:-}" ]; then
		local n LINE TEXT
		read -r n <"/run/agent-$SERVER"
		echo $((n += 1)) >"/run/agent-$SERVER"
		to_line "$1"
		put "$SERVER-line-$n" "$LINE" && got "$SERVER-answer-$n" || return 125
		from_line "${LINE#* }"
		printf '%s' "$TEXT"
		return "${LINE%% *}"
	elif [ -n "${FARBLK_REMOTE:-}" ]; then
		printf '%s\n' ". '$HERE/lib.sh'" "export FARBLK_SERVER='$FARBLK_SERVER'" "$1" | $FARBLK_REMOTE bash
	else
		(eval "$1")
	fi
}

# server_off: the server dies at once. server_on: it boots, with the module but with nothing
# exported.
server_off() { power "$SERVER" off && { [ "$SERVER" != server ] || touch /run/server-is-off; }; }
server_on() {
	ask "put $SERVER-first $(($(cat "/run/agent-$SERVER") + 1))" >/dev/null && power "$SERVER" on || return
	[ "$SERVER" != server ] || rm -f /run/server-is-off
	remote "[ -z '${TOLERATE:-}' ] || tolerant on; load_module"
}

# server_link up|down [DEVICE]: of the server. What is sent to it gets lost: in the harness it would
# hold up who sends.
server_link() {
	local rxe=${2:-rxe0}
	[ "$1" = up ] || [ -z "${FARBLK_AGENT:-}" ] || net cut "${rxe#rxe}" "$ROLE" "$SERVER"
	remote "ip link set \$(rxe_netdev $rxe) $1" || return
	[ "$1" = down ] || [ -z "${FARBLK_AGENT:-}" ] || net pass "${rxe#rxe}" "$ROLE" "$SERVER"
}

# --- the module -----------------------------------------------------------------------------------

loaded() { [ -d /sys/module/farblk ]; }

mounted() { [[ $(</proc/mounts) == *" $1 "* ]]; }

# load_module [PARAMETER=VALUE]...: the .ko of FARBLK_KO, also with FARBLK_PARAMETERS, else the
# installed one. NO_HOST_ID=1 leaves the random host_id.
load_module() {
	local siw=
	[ "$PROVIDER" != siw ] || siw=unsafe_devices=1
	mounted /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mounted /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
	if [ -n "${FARBLK_KO:-}" ]; then
		: "${DEPENDS:=$(modinfo -F depends "$FARBLK_KO")}"
		# shellcheck disable=SC2086
		modprobe -a configfs ${DEPENDS//,/ } && insmod "$FARBLK_KO" ${FARBLK_PARAMETERS:-} $siw "$@"
	else
		modprobe farblk $siw "$@"
	fi && { [ -n "${NO_HOST_ID:-}" ] || store "$C/host_id" "$(lasting_id)"; }
}
# reload_server LINE: the server has the module as LINE loads it, until the scenario ends.
reload_server() {
	at_exit "clean_all; must remote '! loaded || remove_module; load_module'"
	must remote "remove_module && $1"
}
# header NAME WORD: what broken/NAME.patch says after "WORD: ".
header() { sed -n "s/^$2: //p" "$HERE/broken/$1.patch"; }
# needs_broken: ends the test without the module of FARBLK_BROKEN. broken NAME: the parameter that
# puts that patch in effect in it.
needs_broken() { [ -e "${FARBLK_BROKEN:-}" ] || skip "FARBLK_BROKEN is no broken module"; }
broken() { sed -n '/^+.*crate::broken(\([0-9]*\)).*/ {s//broken=\1/p; q}' "$HERE/broken/$1.patch"; }
# lasting_id: this host's, whenever it boots.
lasting_id() { uname -n | md5sum | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-4\3-8\4-\5/'; }

# --- configfs -------------------------------------------------------------------------------------

# A debug kernel takes a tenth of a second for a fork: what runs hundreds of times is bash alone
# ("$(<FILE)" does not fork).
show() { local text; text=$(<"$1") && printf '%s\n' "$text"; }
store() { printf '%s\n' "$2" >"$1"; }
# store_bytes FILE FORMAT: what printf makes of FORMAT, as it is, in one write (of bash's own printf
# a line, 4096 bytes at most).
# shellcheck disable=SC2059
store_bytes() { if [[ $2 == *'\n'?* ]]; then printf "$2" | dd of="$1" bs=8192 iflag=fullblock status=none; else printf "$2" >"$1"; fi; }

# outcome COMMAND...: GOT is then OK, or the name of the error that COMMAND's last line ends with.
# errno_of COMMAND...: prints it.
declare -A ERRNO_NAMES
outcome() {
	GOT=OK
	"$@" >/dev/null 2>/run/farblk-stderr && return
	GOT=$(</run/farblk-stderr)
	GOT=_${GOT##*: }
	[ -n "${ERRNO_NAMES[$GOT]:-}" ] || ERRNO_NAMES[$GOT]=$(errno_name "${GOT#_}")
	GOT=${ERRNO_NAMES[$GOT]}
}
errno_of() { local GOT; outcome "$@"; echo "$GOT"; }
# ends WHAT ERRNO COMMAND...: COMMAND's outcome is ERRNO, or OK.
ends() { outcome "${@:3}"; is "$1" "$GOT" "$2"; }

errno_name() {
	local text=$1
	case $text in
	"Invalid argument") echo EINVAL ;;
	"Device or resource busy") echo EBUSY ;;
	"No such file or directory") echo ENOENT ;;
	"Permission denied") echo EACCES ;;
	"Read-only file system") echo EROFS ;;
	"Connection refused") echo ECONNREFUSED ;;
	"Connection reset by peer") echo ECONNRESET ;;
	"Transport endpoint is not connected") echo ENOTCONN ;;
	"No buffer space available") echo ENOBUFS ;;
	"Too many open files in system") echo ENFILE ;;
	"Connection timed out") echo ETIMEDOUT ;;
	"Network is unreachable") echo ENETUNREACH ;;
	"No route to host") echo EHOSTUNREACH ;;
	"Protocol error") echo EPROTO ;;
	"Protocol not supported") echo EPROTONOSUPPORT ;;
	"Protocol wrong type for socket") echo EPROTOTYPE ;;
	"Operation not supported") echo EOPNOTSUPP ;;
	"Operation not permitted") echo EPERM ;;
	"Numerical result out of range") echo ERANGE ;;
	"No such device or address") echo ENXIO ;;
	"No such device") echo ENODEV ;;
	"Stale file handle") echo ESTALE ;;
	"Directory not empty") echo ENOTEMPTY ;;
	"File exists") echo EEXIST ;;
	"Address already in use") echo EADDRINUSE ;;
	"Cannot assign requested address") echo EADDRNOTAVAIL ;;
	"File name too long") echo ENAMETOOLONG ;;
	"Cannot allocate memory") echo ENOMEM ;;
	"Input/output error") echo EIO ;;
	"No space left on device") echo ENOSPC ;;
	"No data available") echo ENODATA ;;
	"Block device required") echo ENOTBLK ;;
	"Remote I/O error") echo EREMOTEIO ;;
	"File too large") echo EFBIG ;;
	"Message too long") echo EMSGSIZE ;;
	"Argument list too long") echo E2BIG ;;
	"Link has been severed") echo ENOLINK ;;
	"Operation canceled") echo ECANCELED ;;
	"Required key not available") echo ENOKEY ;;
	"Key was rejected by service") echo EKEYREJECTED ;;
	*) echo "?($text)" ;;
	esac
}

# refused "E1|E2" FILE VALUE [REGEX]: the write ends with that error, and the object's refusal
# names the same one and says why (matching REGEX).
refused() {
	local text object=${2%/*}
	outcome store "$2" "$3"
	[[ $GOT =~ ^($1)$ ]] || bad "'$3' into ${2#"$C"/}: $GOT, not $1"
	[ -e "$object/refusal" ] && [ "$GOT" != OK ] || return 0
	text=$(<"$object/refusal")
	[[ $text == "$GOT "?* ]] || bad "refusal of ${object#"$C"/} is '$text' after $GOT"
	[[ $text =~ ${4:-.} ]] || bad "refusal of ${object#"$C"/} is '$text': no '$4' in it"
}

# no_error OBJECT: nothing is wrong with it.
no_error() { is "last_error of $1" "$(show "$C/$1/last_error")" ""; }

port_add() { mkdir "$C/ports/$1" && store "$C/ports/$1/addr" "$2" && store "$C/ports/$1/enable" 1; }

# settings OBJECT [ATTRIBUTE=VALUE]...
settings() {
	local object=$1 item
	shift
	for item; do store "$object/${item%%=*}" "${item#*=}" || return; done
}

# export_ram NAME SIZE [ATTRIBUTE=VALUE]...: for any host, unless told otherwise.
export_ram() {
	local e=$C/exports/$1
	mkdir "$e" && settings "$e" kind=ram "size=$2" allow_any_host=1 "${@:3}" && store "$e/enable" 1
}

# export_block NAME DEVICE [ATTRIBUTE=VALUE]...: the same of a block device.
export_block() {
	local e=$C/exports/$1
	! is_local || { mkdir -p /run/local && echo "$2" >"/run/local/$1"; return; }
	mkdir "$e" && settings "$e" kind=block "device_path=$2" allow_any_host=1 "${@:3}" && store "$e/enable" 1
}

# new_key: the text of a random key. admit EXPORT HOST [KEY]: an entry for a host at an export.
new_key() { python3 -c 'import base64, os, struct, zlib; key = os.urandom(32); print("farblk1:" + base64.b64encode(key + struct.pack("<I", zlib.crc32(key))).decode())'; }
admit() { remote "mkdir -p $C/exports/$1/hosts/$2 && store $C/exports/$1/hosts/$2/key '${3:-}' && store $C/exports/$1/hosts/$2/access rw"; }

# map_make NAME EXPORT [ATTRIBUTE=VALUE]...: a map with one path to the server, not enabled yet.
map_make() {
	local m=$C/maps/$1
	mkdir "$m" && settings "$m" "export=$2" "${@:3}" && path_add "$1" a "$FARBLK_SERVER"
}
# path_add MAP PATH ADDRESS [ATTRIBUTE=VALUE]...: gives a map one more path. path_rm MAP PATH: takes
# it away.
path_add() { mkdir "$C/maps/$1/paths/$2" && settings "$C/maps/$1/paths/$2" "addr=$3" "${@:4}" enable=1; }
path_rm() { store "$C/maps/$1/paths/$2/enable" 0 && rmdir "$C/maps/$1/paths/$2"; }

# map NAME EXPORT [ATTRIBUTE=VALUE]...: DEV is then its device.
map() { if is_local; then DEV=$(</run/local/"$2"); else map_make "$@" && map_on "$1"; fi; }
map_on() {
	store "$C/maps/$1/enable" 1 || { [[ $(show "$C/maps/$1/last_error") == ETIMEDOUT* ]] && note "map $1: timed out, and tried again" && store "$C/maps/$1/enable" 1; } ||
		{ note "map $1: $(show "$C/maps/$1/last_error")"; return 1; }
	DEV=/dev/$(show "$C/maps/$1/device")
	[ -b "$DEV" ]
}

# part NUMBER: that partition of DEV.
part() { case $DEV in *[0-9]) echo "${DEV}p$1" ;; *) echo "$DEV$1" ;; esac; }

# unmap NAME [force], map_rm NAME
unmap() { if ! is_local; then store "$C/maps/$1/enable" "${2:-0}" && map_rm "$1"; fi; }
map_rm() { local p; for p in "$C/maps/$1/paths"/*/; do path_rm "$1" "$(basename "$p")" || return; done; rmdir "$C/maps/$1"; }

# path MAP ATTRIBUTE=VALUE...: changes the map's path.
path() {
	local p=$C/maps/$1/paths/a
	store "$p/enable" 0 && settings "$p" "${@:2}" && store "$p/enable" 1
}

# serve NAME SIZE [ATTRIBUTE=VALUE]...: the server listens and exports; in the other words of the
# tests, "a server".
serve() { remote "port_add p $FARBLK_SERVER && export_ram $*"; }

# clean: removes all objects of this host. clean_all: of both. They fail if what lay under an export
# is still in use when that is disabled.
clean() {
	local o p rc=0
	mounted /run/mnt && umount /run/mnt
	# Here they may lie on maps, below they lie under exports.
	dm_clean
	for o in "$C"/maps/*/; do [ ! -d "$o" ] || { store "$o/enable" force; for p in "$o"/paths/*/; do store "$p/enable" 0; rmdir "$p"; done; rmdir "$o"; }; done
	for o in "$C"/discover/*/; do [ ! -d "$o" ] || rmdir "$o"; done
	for o in "$C"/exports/*/; do [ ! -d "$o" ] || { store "$o/enable" 0 || note "disabling ${o#"$C/"}: $(show "$o/last_error")"; rmdir "$o"/hosts/*/ "$o"; }; done
	for o in "$C"/ports/*/; do [ ! -d "$o" ] || { store "$o/enable" 0; rmdir "$o"; }; done
	dm_clean || { rc=1 && note "FAILED: in use, when all is disabled: $(dm_users)" && wait_for 30 dm_clean; }
	disks_clean
	return $rc
} 2>/dev/null
clean_all() {
	clean; local rc=$?
	# No answer (125, or 255 of ssh) is for the test that has made it so.
	[ -e /run/server-is-off ] || remote clean || [ $? -ge 125 ] || rc=1
	return $rc
}

# --- what may not be left behind ------------------------------------------------------------------

# resources: the RDMA objects of this host, of all devices.
resources() {
	local all line
	all=$(rdma resource show)
	# Contexts come and go with who opens the device.
	while read -r line; do line=" ${line##*: } "; [[ ! $line =~ (.*)\ ctx\ [0-9]+(\ .*) ]] || line=${BASH_REMATCH[1]}${BASH_REMATCH[2]}; printf '%s' "${line# }"; done <<<"$all"
}
server_is_on() { [ -n "${FARBLK_AGENT:-}" ] && [ ! -e /run/server-is-off ]; }
baseline() { echo "here: $(resources)"; ! server_is_on || echo "server: $(remote resources)"; }
# same_baseline BEFORE: nothing more, nothing less; of a server that was turned off there is nothing
# to say.
same_baseline() { if server_is_on; then [ "$(baseline)" = "$1" ]; else [ "$(baseline)" = "$(head -n 1 <<<"$1")" ]; fi; }

# memory: KiB that are available without caches. Pages on the lists of the CPUs are free, too, but
# MemAvailable does not count them, and there may be 50 MiB of them; with them it moves by some 100
# KiB. slab: KiB of the objects in slabs (their pages may be half empty).
memory() { sync; echo 3 >/proc/sys/vm/drop_caches; shrink_slabs; awk '/^KernelPageSize:/ {page = $2} /^MemAvailable:/ {sum += $2} $1 == "count:" {sum += page * $2} END {print sum}' /proc/self/smaps /proc/meminfo /proc/zoneinfo; }
slab() { shrink_slabs; awk 'NR > 2 {sum += $2 * $4} END {print int(sum / 1024)}' /proc/slabinfo; }
# shrink_slabs: frees empty slabs, and what KASAN keeps of freed objects to find uses of them.
shrink_slabs() { local f; for f in /sys/kernel/slab/*/shrink; do echo 1 >"$f"; done; } 2>/dev/null

# --- what the kernel says -------------------------------------------------------------------------

# set_mark WORD: a line in the kernel logs of both hosts.
set_mark() {
	echo "farblk-selftest $1:" >/dev/kmsg
	! has_server || remote "echo 'farblk-selftest $1:' >/dev/kmsg"
}

# log_since WORD: this host's kernel log since that mark.
log_since() { dmesg | awk -v mark="farblk-selftest $1:" '{line[n++] = $0} index($0, mark) {n = 0} END {for (i = 0; i < n; i++) print line[i]}'; }
# logs WORDS, server_logs WORDS: what the module writes to the kernel log since the scenario began
# has these words, soon. The words are an extended regular expression.
logs() { wait_for 10 in_log "$$-$marks" "$1" || bad "the kernel log has no '$1', but: $(log_since "$$-$marks" | grep farblk:)"; }
server_logs() { wait_for 10 remote "in_log '$$-$marks' '$1'" || bad "the server's kernel log has no '$1', but: $(remote "log_since '$$-$marks' | grep farblk:")"; }
in_log() { log_since "$1" | grep -qE "farblk: $2"; }

# reports WORD: this host's first complaint since that mark, and what followed it. The file of the
# same name says what counts.
REPORTS=""
while IFS= read -r LINE; do [[ $LINE == \#* ]] || REPORTS+=${REPORTS:+|}$LINE; done <"$HERE/reports"
reports() {
	local text
	text=$(log_since "$1")
	# As a rule there is none, and that is known without further programs.
	[[ $text =~ $REPORTS ]] || return
	if [ -n "${TOLERATE:-}" ]; then grep -v -E -f <(grep -v '^#' "$HERE/tolerated"); else cat; fi <<<"$text" |
		grep -m 1 -A 59 -E -f <(grep -v '^#' "$HERE/reports")
}

# quiet_since WORD: neither kernel has complained since that mark.
quiet_since() {
	local text rc=0
	text=$(reports "$1") && note "FAILED: the kernel complained:"$'\n'"$text" && rc=1
	has_server && text=$(remote "TOLERATE=${TOLERATE:-} reports $1") && note "FAILED: the server's kernel complained:"$'\n'"$text" && rc=1
	return $rc
}

# tolerate on|off: in a test with TOLERATE=1 what "tolerated" lists is no complaint. tolerant
# on|off: and stops not this kernel.
tolerate() {
	[ -n "${TOLERATE:-}" ] && [ -n "${FARBLK_HARNESS:-}" ] || return 0
	ask "tolerate $1" >/dev/null
	tolerant "$1"
	! has_server || remote "tolerant $1"
}
tolerant() {
	local fatal=0
	[ "$1" = on ] || ! grep -q panic_on_warn=1 /proc/cmdline || fatal=1
	echo $fatal >/proc/sys/kernel/panic_on_warn
}

# unload: the module goes on both hosts; if not, something of it is still in use. Where the kernel
# has kmemleak, it knows of nothing that was left behind; where it has lockdep, that is still on: it
# turns itself off when it has something to say.
unload() {
	local text
	remove_module || { wrong "the module does not go"; exit 1; }
	! has_server || remote remove_module || { wrong "the server's module does not go"; exit 1; }
	if seeks_leaks && kmemleak_is_on; then
		# It does not report younger objects.
		sleep 6
		text=$(leaks) && wrong "not freed:"$'\n'"$text"
		has_server && text=$(remote leaks) && wrong "not freed by the server:"$'\n'"$text"
	fi
	lockdep_is_on || wrong "lockdep is off"
	! has_server || remote lockdep_is_on || wrong "the server's lockdep is off"
}

# remove_module: rmmod sleeps for ever if something of the module is still in use. It must not hold
# up who reads our output.
remove_module() {
	rmmod farblk >/run/rmmod.out 2>&1 3>&- 4>&- &
	wait_for 60 ended $! && ! loaded || { note "rmmod: $(cat /run/rmmod.out)"; return 1; }
}

# seeks_leaks: kmemleak looks through all memory of a host for each pointer. A short run of several
# tests lets it do so after the last two: the very last may have left the server dead.
seeks_leaks() {
	local tests
	read -r -a tests <<<"${TESTS:-}"
	! is_short || [ ${#tests[@]} -le 2 ] || [[ " ${tests[*]: -2} " == *" ${0##*/} "* ]]
}
KMEMLEAK=/sys/kernel/debug/kmemleak
kmemleak_is_on() { [ -e $KMEMLEAK ] && echo scan=off >$KMEMLEAK; } 2>/dev/null
# leaks: what nothing refers to any more; each is told once. An object that has changed waits for
# the second scan.
leaks() {
	kmemleak_is_on && echo scan >$KMEMLEAK && echo scan >$KMEMLEAK || return
	head -n 60 $KMEMLEAK | grep . && echo clear >$KMEMLEAK
}
# debug_kernel: it checks so much that a test moves a few MiB at the most.
debug_kernel() { [ -e $KMEMLEAK ]; }
# is_short: a test that repeats the same thing may do it less often. "make check" wants that;
# "make check-all" does not.
is_short() { [ -n "${FARBLK_SHORT:-}" ]; }
lockdep_is_on() { [ ! -e /proc/lockdep_stats ] || grep -q 'debug_locks: *1$' /proc/lockdep_stats; }

# --- counters -------------------------------------------------------------------------------------

# counter FILE NAME [QUEUE]: that counter, by its name in lines of "... queue N ... NAME COUNT ...":
# of that queue, or the sum of all.
counter() {
	awk -v name="$2" -v queue="${3:-}" '
		{this = ""; count = ""}
		{for (i = 1; i < NF; i++) {if ($i == "queue") this = $(i + 1); if ($i == name) count = $(i + 1)}}
		count != "" && (queue == "" || queue == this) {sum += count; found = 1}
		END {if (!found) exit 1; printf "%d\n", sum}' "$1"
}
# queue_file DEVICE FILE: what /sys says there.
queue_file() { show "/sys/class/block/${1##*/}/queue/$2"; }
# io DEVICE WHAT: requests or sectors that it has completed.
io() {
	local -A field=([reads]=1 [read_sectors]=3 [writes]=5 [write_sectors]=7 [discards]=12 [discard_sectors]=14 [flushes]=16)
	awk "{print \$${field[$2]}}" "/sys/class/block/${1##*/}/stat"
}

# --- time and data --------------------------------------------------------------------------------

# wait_for SECONDS COMMAND...: until COMMAND succeeds. On a slow machine everything takes
# FARBLK_PATIENCE times as long.
wait_for() {
	local end=$((SECONDS + $1 * ${FARBLK_PATIENCE:-1}))
	shift
	until "$@" 2>/dev/null; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}

# ended PID: there is no such process any more.
ended() { ! kill -0 "$1" 2>/dev/null; }

# now_ms: the time, in ms.
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# within SECONDS COMMAND...: COMMAND's exit code, and a failure if it took longer.
within() {
	local start rc=0 ms
	start=$(now_ms)
	"${@:2}" || rc=$?
	ms=$(($(now_ms) - start))
	[ $ms -le $(($1 * 1000 * ${FARBLK_PATIENCE:-1})) ] || bad "${*:2} took $ms ms, more than $1 s"
	return $rc
}

# random FILE MIB: bytes that nobody expects.
random() { head -c "$2M" /dev/urandom >"$1"; }
# direct IN OUT [DD-OPERAND]...: dd past the page cache, on the device's side.
direct_read() { dd if="$1" of="$2" iflag=direct bs=1M status=none "${@:3}"; }
direct_write() { dd if="$1" of="$2" oflag=direct bs=1M conv=notrunc status=none "${@:3}"; }

# --- stamp: see tools/stamp -----------------------------------------------------------------------

# stamp_on [OPTION]...: stamp works on the disk, which it has filled. stamp_off SECONDS: it ends,
# and has nothing to complain of.
stamp_on() {
	needs stamp jq
	rm -f /run/stamp.stop; : >/run/stamp.out
	stamp "$DEV" --until /run/stamp.stop "$@" >/run/stamp.out 2>&1 &
	STAMP=$!
	wait_for 60 grep -q filled /run/stamp.out || die "stamp: $(cat /run/stamp.out)"
}
stamp_off() {
	local rc=0
	touch /run/stamp.stop
	wait_for "$1" stamp_ended || { wrong "stamp does not end: its I/O hangs"; exit 1; }
	wait "$STAMP" || rc=$?
	note "$(tail -n 1 /run/stamp.out)"
	[ $rc = 0 ] || wrong "stamp ends with $rc:"$'\n'"$(cat /run/stamp.out)"
}
stamp_ended() { ended "$STAMP"; }
# unharmed: all that stamp read was right, and no I/O hung. Some may have failed.
unharmed() {
	local fault
	for fault in lost reverted ghost alien torn hung; do same_data "$fault blocks" "$(stamped $fault)" 0; done
}
# stamped WORD: that number of its report.
stamped() { tail -n 1 /run/stamp.out | jq ".$1"; }
