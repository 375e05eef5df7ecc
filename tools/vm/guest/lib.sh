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

# ask REQUEST: puts a request to the host (tools/vm/harness.py lists them), prints its answer.
ask() {
	local answer
	printf '%s\n' "$1" >&9
	IFS= read -r answer <&9 || return 1
	case $answer in
	ok*) printf '%s\n' "${answer#ok}" | sed 's/^ //' ;;
	*) echo "$1: ${answer#fail }" >&2; return 1 ;;
	esac
}

# barrier NAME: waits until every role is here.
barrier() { ask "barrier $1" >/dev/null || exit 1; }
# put KEY VALUE, get KEY: one word for the others; get waits for it. A serial line of User Mode
# Linux that was too fast for its reader once stays silent, so a long word comes in parts.
put() { ask "put $1 $2" >/dev/null; }
get() {
	local part whole= length=2048
	while part=$(ask "get $1 ${#whole} $length") || return; do
		whole+=$part
		[ ${#part} = $length ] || break
	done
	printf '%s\n' "$whole"
}
# power ROLE off|on|stop|cont: what happens to machines. net FAULT[=VALUE] [NETWORK [FROM TO]]: and
# to packets.
power() { ask "power $1 $2" >/dev/null; }
net() { local answer; answer=$(ask "net $*") && { [ -z "$answer" ] || echo "$answer"; }; }

# load FILE.ko [PARAMETER=VALUE]...: inserts a module after those it depends on.
load() { modprobe -a $(modinfo -F depends "$1" | tr , ' ') && insmod "$@"; }

# rxe_up: soft-RoCE on this guest's network devices (dummies when it is alone), with its addresses
# usable.
rxe_up() {
	local n
	modprobe rdma_rxe || return
	for ((n = 0; n < NETWORKS; n++)); do rxe_up_on "$n" "$NET$n" || return; done
}
rxe_up_on() {
	local mapped i
	if [ "$NET" = dummy ]; then
		ip link add "$2" type dummy && ip link set "$2" mtu 4300
	fi
	ip addr add "10.9.$1.$NUMBER/24" dev "$2" && ip link set "$2" up && rdma link add "rxe$1" type rxe netdev "$2" || return
	mapped=$(printf '0000:0000:0000:0000:0000:ffff:0a09:%02x%02x' "$1" "$NUMBER")
	for ((i = 0; i < 100; i++)); do
		cat "/sys/class/infiniband/rxe$1/ports/1/gids/"* 2>/dev/null | grep -qx "$mapped" && return
		sleep 0.05
	done
	return 1
}
