#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The KUnit suites of the module, each case a test: they run when the module is loaded. Wants a
# kernel with CONFIG_KUNIT, and in FARBLK_KUNIT_KO a module that was built for it with
# CONFIG_FARBLK_KUNIT_TEST=y. FARBLK_SUITES is a pattern of the names of suites that are run.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE
K=/sys/kernel/debug/kunit
FILTER=/sys/module/kunit/parameters/filter_glob
declare -A RESULT

# results: a line of KTAP for each case, which is named SUITE.CASE.
results() { awk '/^    # Subtest: / {suite = $3} /^    (not )?ok / {sub(/^ */, ""); sub(/ok [0-9]+ /, "ok " suite "."); print}' "$K"/farblk_*/results; }

# kunit_case: how the case went that the scenario has its words from.
# shellcheck disable=SC2154
kunit_case() {
	case ${RESULT[$words]} in
	*"# SKIP"*) skip "${RESULT[$words]#*# SKIP }" ;;
	"ok "*) ;;
	*) grep -F "${words#*.}" -A 2 "$K/${words%.*}/results" | sed 's/^/# /'; bad "${RESULT[$words]}" ;;
	esac
}

first_load() { [ -z "$complaint" ] || bad "the kernel complained:"$'\n'"$complaint"; }

# What the suites leave behind is found here.
load_again() {
	must remove_module
	must load_module
	is "results" "$(results)" "$all"
}

# Looking up a result takes nothing and makes no kernel complain: checking that so many times would
# take minutes. And there is nothing to clean: the suites have configfs directories of their own.
clean_all() { :; }
same_baseline() { [ "$name" = kunit_case ] || [ "$(baseline)" = "$1" ]; }
quiet_since() {
	local text
	[ "$name" = kunit_case ] || ! text=$(reports "$1") || { note "FAILED: the kernel complained:"$'\n'"$text"; return 1; }
}

[ -n "${FARBLK_KUNIT_KO:-}" ] || skip "there is no module with KUnit suites (FARBLK_KUNIT_KO)"
mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
[ -d "$K" ] || skip "the kernel has no CONFIG_KUNIT"
FARBLK_KO=$FARBLK_KUNIT_KO
! loaded || must remove_module
trap '! loaded || remove_module; printf "*.*" >$FILTER' EXIT
printf %s "${FARBLK_SUITES:-*.*}" >$FILTER
set_mark kunit
have_rdma && load_module || { echo "Bail out! the module does not load"; exit 1; }
complaint=$(reports kunit)
all=$(results)
scenario first_load "the kernel has nothing to say against any of it"
while read -r line; do
	[[ $line =~ ^(not )?ok\ ([^ ]+) ]] || die "no results"
	RESULT[${BASH_REMATCH[2]}]=$line
	scenario kunit_case "${BASH_REMATCH[2]}"
done <<<"$all"
is_short || scenario load_again "all of that again at the next load, and nothing is left"
run_scenarios
