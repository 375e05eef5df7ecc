#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The role's script of tools/vm/kselftest: the server does what the client's tests ask of it (remote
# in selftests/lib.sh), the others run $TESTS with the kernel's own runner.
export PATH=/farblk:$PATH
export FARBLK_HARNESS=/farblk/vm/guest/lib.sh FARBLK_SERVER=$ADDR FARBLK_KO=/farblk/farblk.ko
# A server with another kernel has a module of its own.
[ ! -e "/farblk/$ROLE/farblk.ko" ] || FARBLK_KO=/farblk/$ROLE/farblk.ko
# A debug kernel has two more kinds of the module.
[ ! -e /farblk/farblk-kunit.ko ] || export FARBLK_KUNIT_KO=/farblk/farblk-kunit.ko
[ ! -d /farblk/samples ] || export FARBLK_SAMPLES=/farblk/samples
[ ! -e /farblk/rdma_rxe.ko ] || export FARBLK_RXE=/farblk/rdma_rxe.ko
[ ! -e /farblk/farblk-broken.ko ] || export FARBLK_BROKEN=/farblk/farblk-broken.ko
case $ROLE in
server | second)
	export FARBLK_AGENT=1
	. selftests/lib.sh
	# A server that was off does not begin with the first line.
	for ((n = $(get "$ROLE-first"); ; n++)); do
		got "$ROLE-line-$n" 2>/dev/null || exit 0
		from_line "$LINE"
		out=$(eval "$TEXT" 2>&1)
		rc=$?
		to_line "$out${out:+$'\n'}"
		put "$ROLE-answer-$n" "$rc $LINE"
	done
	;;
client)
	export FARBLK_AGENT=1
	. vm/guest/lib.sh
	for server in server second; do
		put "$server-first" 1
		echo 0 >"/run/agent-$server"
	done
	FARBLK_SERVER=$(address server)
	;;
esac

export BASE_DIR=/farblk
. kselftest/runner.sh
cd selftests || exit
# The runner opens its standard output anew, which the port does not allow: hence the pipe.
{
	ktap_print_header
	ktap_set_plan "$(wc -w <<<"$TESTS")"
	# shellcheck disable=SC2086
	run_many $TESTS
	ktap_finished
} | cat
exit "${PIPESTATUS[0]}"
