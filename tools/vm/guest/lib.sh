# SPDX-License-Identifier: GPL-2.0
# What a role's script may use in a guest: . /farblk/vm/guest/lib.sh Its environment: ROLE, ROLES
# (all, with commas), NUMBER (1, 2, ...), NETWORKS (how many), DISK (that of --disk); results go to
# /farblk/out.
# shellcheck shell=bash

export ADDR=10.9.0.$NUMBER

# address ROLE [NETWORK]: the address of that role.
address() {
	local n=0 role
	for role in ${ROLES//,/ }; do
		n=$((n + 1))
		[ "$role" != "$1" ] || echo "10.9.${2:-0}.$n"
	done
}

# request LINE: puts a request to the host (tools/vm/harness.py lists them), ANSWER is its answer. A
# fork is what takes long in a guest: what a test asks for hundreds of times needs none.
request() {
	printf '%s\n' "$1" >&9
	IFS= read -r ANSWER <&9 || return 1
	case $ANSWER in
	ok*) ANSWER=${ANSWER#ok} ANSWER=${ANSWER# } ;;
	*) echo "$1: ${ANSWER#fail }" >&2; return 1 ;;
	esac
}
# ask LINE: the same, and prints the answer.
ask() { local ANSWER; request "$1" && printf '%s\n' "$ANSWER"; }

# barrier NAME: waits until every role is here.
barrier() { ask "barrier $1" >/dev/null || exit 1; }
# put KEY VALUE, get KEY: a line for the others; get waits for it, and got KEY leaves it in LINE. A
# serial line of User Mode Linux that was too fast for its reader once stays silent, so a long one
# comes in parts.
put() { local ANSWER; request "put $1 $2"; }
get() { local LINE; got "$1" && printf '%s\n' "$LINE"; }
got() {
	local ANSWER length=2048
	LINE=
	while request "get $1 ${#LINE} $length" || return; do
		LINE+=$ANSWER
		[ ${#ANSWER} = $length ] || break
	done
}
# to_line TEXT: LINE is TEXT as one line of ASCII. from_line LINE: TEXT is what that was made of.
to_line() {
	local LC_ALL=C
	if [[ $1 == *[!\ -~$'\n\r\t']* ]]; then
		LINE="=$(printf '%s' "$1" | base64 -w 0)"
	else
		LINE=+${1//\%/%25}
		LINE=${LINE//$'\n'/%0A} LINE=${LINE//$'\r'/%0D} LINE=${LINE//$'\t'/%09}
	fi
}
from_line() {
	case $1 in
	=*) TEXT=$(base64 -d <<<"${1#=}"; echo .) TEXT=${TEXT%.} ;;
	*)
		TEXT=${1#+}
		TEXT=${TEXT//\\/\\\\}
		printf -v TEXT %b "${TEXT//\%/\\x}"
		;;
	esac
}
# power ROLE off|on|stop|cont: what happens to machines. net FAULT[=VALUE] [NETWORK [FROM TO]]: and
# to packets.
power() { ask "power $1 $2" >/dev/null; }
net() { local answer; answer=$(ask "net $*") && { [ -z "$answer" ] || echo "$answer"; }; }

# load FILE.ko [PARAMETER=VALUE]...: inserts a module after those it depends on.
load() {
	local depends
	depends=$(modinfo -F depends "$1" | tr , ' ')
	# shellcheck disable=SC2086
	{ [ -z "$depends" ] || modprobe -a $depends; } && insmod "$@"
}

# core_up: with FARBLK_CORE=patched the RDMA core that "tools/build ibcore" made, before anything
# takes the kernel's own.
core_up() {
	local m
	[ "${FARBLK_CORE:-}" = patched ] || return 0
	for m in ib_core ib_cm iw_cm rdma_cm; do load "/farblk/ibcore/$m.ko" || return; done
}

# provider_up: the module that makes RDMA devices: PROVIDER=rxe, siw, or testhca with the parameters
# TESTHCA. A guest without PCI has no functions for it.
provider_up() {
	case ${PROVIDER:-rxe} in
	rxe) if [ -e /farblk/rdma_rxe.ko ]; then load /farblk/rdma_rxe.ko; else modprobe rdma_rxe; fi ;;
	siw) if [ -e /farblk/siw.ko ]; then load /farblk/siw.ko; else modprobe siw; fi ;;
	# shellcheck disable=SC2086
	*) load "/farblk/$PROVIDER.ko" faux=1 ${TESTHCA:-} ;;
	esac
}
# rxe_up: RDMA devices on this guest's network devices (dummies when it is alone), with its
# addresses usable. They are rxe0, rxe1, ... whatever provides them.
rxe_up() {
	local n
	provider_up || return
	for ((n = 0; n < NETWORKS; n++)); do rxe_up_on "$n" "$NET$n" || return; done
}
rxe_up_on() {
	local mapped i
	if [ "$NET" = dummy ]; then
		ip link add "$2" type dummy && ip link set "$2" mtu 4300
	fi
	ip addr add "10.9.$1.$NUMBER/24" dev "$2" && ip link set "$2" up && rdma link add "rxe$1" type "${PROVIDER:-rxe}" netdev "$2" || return
	# The GID of iWARP has no IP address.
	[ "${PROVIDER:-rxe}" != siw ] || return 0
	mapped=$(printf '0000:0000:0000:0000:0000:ffff:0a09:%02x%02x' "$1" "$NUMBER")
	for ((i = 0; i < 100; i++)); do
		cat "/sys/class/infiniband/rxe$1/ports/1/gids/"* 2>/dev/null | grep -qx "$mapped" && return
		sleep 0.05
	done
	return 1
}
