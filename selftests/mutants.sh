#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves that the hostile peers notice a module that does not check what keys and protection are
# for. The patches of the folder broken with "Test: mutants.sh" leave out one check each. "Peer:" is
# the program and its group, "Case:" the words of the case that has to fail. On one host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE
# Short tests leave cases out.
unset FARBLK_SHORT

# start: what the clients in user space want to have there.
start() {
	local name
	not_local
	needs python3
	needs_user_rdma
	needs_module null_blk
	needs_broken
	KEY=$(new_key) OTHER=$(new_key)
	export KEY OTHER
	reload_server "FARBLK_KO=$FARBLK_BROKEN load_module ${1:-}"
	for name in "seal allow_any_host=0 protection=seal" "crc32c allow_any_host=0 protection=crc32c" "none allow_any_host=0" "open protection=crc32c" \
		"e allow_any_host=0" "o allow_any_host=0"; do
		back "null_disk fb${name%% *} 32 blocksize=512"
		# shellcheck disable=SC2086
		must serve_block ${name%% *} "$BACK" max_clients=1024 ${name#* }
	done
	for name in seal crc32c none e; do must admit $name hostile "$KEY"; done
	for name in none o; do must admit $name other "$OTHER"; done
	must server_address 10.9.0.77
	must server_address 10.9.0.78
	at_exit 'ip addr del 10.9.0.77/24 dev "$(rxe_netdev)"; ip addr del 10.9.0.78/24 dev "$(rxe_netdev)"'
}

# peer NAME: the case of that patch; ends as it does, and OUT is what it says.
peer() {
	local program group rc
	read -r program group <<<"$(header "$1" Peer)"
	# A hostile server has two addresses of its own.
	# shellcheck disable=SC2046
	OUT=$(FARBLK_CASE=$(header "$1" Case) python3 "$HERE/$program" \
		$([[ $program == hostile_server* ]] && echo 10.9.0.77 10.9.0.78 || echo "$FARBLK_SERVER") "$group" 2>&1)
	rc=$?
	note "$1: $OUT"
	[ $rc != 4 ] || skip "user space has no RDMA"
	return $rc
}

# Else the others prove nothing.
whole() {
	local name
	start
	for name in $MUTANTS; do
		peer "$name" || bad "$name: the peer ends with $?"
		grep -q ": ok (" <<<"$OUT" || bad "$name: no case was done"
	done
}

# caught NAME: its case fails, and says so.
caught() {
	local rc=0
	start "$(broken "$1")"
	peer "$1" || rc=$?
	is "how the peer of $1 ends" $rc 1
	grep -q "^FAILED: .*$(header "$1" Case)" <<<"$OUT" || bad "$1 is not caught"
}

MUTANTS=$(grep -lx "Test: mutants.sh" "$HERE"/broken/*.patch | sed 's|.*/||; s|\.patch$||')
scenario whole "the peers have nothing to say as long as no patch is in effect"
for name in $MUTANTS; do
	eval "mutant_${name//-/_}() { caught $name; }"
	scenario "mutant_${name//-/_}" "$name is caught"
done
run_scenarios
