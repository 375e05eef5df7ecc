#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves that the net has no holes: a module that is broken on purpose must fail a test, with the
# right report in its output. FARBLK_BROKEN is the module with all patches of the folder broken; its
# parameter tells which is in effect. "Expect:" of a patch is the report as an extended regular
# expression. One host, on a kernel with KASAN and lockdep. It reports what others take for a
# failure.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE

# The test that they must fail: all there is, once.
everything() {
	must port_add p "$FARBLK_SERVER"
	must export_ram e 8M
	must map m e
	must direct_write /dev/zero "$DEV" bs=4k count=1
	must direct_read "$DEV" /run/back bs=4k count=1
	must unmap m
}
if [ -n "${FARBLK_INNER:-}" ]; then
	FARBLK_ONLY="" scenario everything "the test that a broken module must fail"
	run_scenarios
	exit
fi

needs_broken
[ -e /proc/lockdep_stats ] && grep -q ' kasan_report$' /proc/kallsyms || skip "this kernel has no KASAN or no lockdep"

# shellcheck source=/dev/null
. "${KTAP_HELPERS:-$HERE/../kselftest/ktap_helpers.sh}" || exit 4

# inner [PARAMETER]: the test with that module, its output in INNER; ends as it does.
inner() { INNER=$(FARBLK_INNER=1 FARBLK_KO=$FARBLK_BROKEN FARBLK_PARAMETERS=${1:-} bash "$0" 2>&1); }

# caught NAME
caught() {
	local wanted
	wanted=$(header "$1" Expect)
	[ -n "$wanted" ] || { note "FAILED: the patch expects nothing"; return 1; }
	! inner "$(broken "$1")" && grep -m 1 -E "^# .*($wanted)" <<<"$INNER" && return
	note "FAILED: not caught, no '$wanted':"$'\n'"$INNER"
	return 1
}

# By "Order:", as some reports are the last that lockdep or anybody makes. Those without are for the
# test that they name.
names=$(for f in "$HERE"/broken/*.patch; do n=$(basename "$f" .patch) && echo "$(header "$n" Order | cut -c 1) $n"; done | sort | sed -n 's/^[0-9] //p')
ktap_print_header
ktap_set_plan $(($(wc -w <<<"$names") + 1))
# Else the others prove nothing.
if inner; then
	ktap_test_pass "the module passes as long as no patch is in effect"
else
	note "FAILED: $INNER"
	ktap_test_fail "the module passes as long as no patch is in effect"
fi
for name in $names; do
	if caught "$name"; then ktap_test_pass "$name is caught"; else ktap_test_fail "$name is caught"; fi
done
ktap_finished
