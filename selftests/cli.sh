# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What the tests of the farblk tool share; included after lib.sh.
FARBLK=${FARBLK_TOOL:-farblk}
export NO_COLOR=1
command -v "$FARBLK" >/dev/null || { echo "TAP version 13"; echo "1..0 # SKIP there is no $FARBLK: make tool"; exit 4; }

# exits CODE COMMAND...: its exit code; what it printed is in /run/stdout and /run/stderr.
exits() {
	local rc=0
	"${@:2}" >/run/stdout 2>/run/stderr || rc=$?
	[ $rc = "$1" ] || bad "exit code $rc, not $1, of: ${*:2}: $(tail -n 3 /run/stderr)"
}
# here ARGUMENT..., there ARGUMENT...: the tool on the client, on the server; they must work.
here() { exits 0 "$FARBLK" "$@"; }
there() { must remote "$FARBLK $* >/dev/null"; }
# json FILTER: what /run/stdout says, if it is one JSON document that obeys its schema. What it
# prints is the value of a test, so that a document that does not obey fails this.
json() {
	local name
	name=$(jq -er .schema </run/stdout) && "$FARBLK" schema show "$name" >/run/schema ||
		{ bad "no schema of $(cat /run/stdout)"; return; }
	if command -v python3 >/dev/null; then
		python3 "$HERE/schema.py" /run/schema </run/stdout 2>/run/faults || { bad "$name: $(cat /run/faults)"; return; }
	fi
	jq -er "$1" </run/stdout || bad "no '$1' in $(cat /run/stdout)"
}
# list_has FILTER: list -j says so of the first map.
list_has() { "$FARBLK" -j list | jq -e ".maps[0] | $1" >/dev/null; }

# Two ports of the server are two paths. two_paths [OPTION...]: export and map e have both.
two_paths() {
	there port add --addr "$FARBLK_SERVER" first
	there port add --addr "$FARBLK_SERVER:7421" second
	there export create e --ram 16M --allow-any-host
	here map "$FARBLK_SERVER/e" --reconnect-max 1s "$@"
	DEV=$(cat /run/stdout)
	here path add e "$FARBLK_SERVER:7421"
	grep -q "^map e: path 1 added: .*$FARBLK_SERVER:7421, live" /run/stdout || bad "path add: $(cat /run/stdout /run/stderr)"
}
