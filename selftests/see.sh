#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The commands of the farblk tool that show what goes on: stats, top, events, metrics.
. "$(dirname "$0")/lib.sh"
. "$HERE/cli.sh"

MAP_STATS=$D/maps/m/stats
needs_counters() { [ -e "$MAP_STATS" ] || skip "the module has no counters in debugfs"; }
# counted NAME: that counter of the map, in the file itself.
counted() { awk -v name="$1" '$1 == name {print $2}' "$MAP_STATS"; }
# start KIND: DEV is the disk of a map m of an export e.
start() {
	case $1 in
	ram) must serve e 64M; must map m e ;;
	block)
		needs_module null_blk
		disk_of "null_disk fbs 64"
		;;
	esac
}
reads() { dd if="$DEV" of=/dev/null iflag=direct bs=4K "count=$1" status=none; }
writes() { dd if=/dev/zero of="$DEV" oflag=direct conv=notrunc bs=64K "count=$1" status=none; }

# intervals_show "READS WRITES": all intervals together.
intervals_show() { [ "$(jq -s '[.[].objects[0]] | "\(map(.reads) | add) \(map(.writes) | add)"' -r /run/intervals)" = "$1" ]; }

# What stats shows is what was done: since the map was enabled, and in all intervals together.
stats_add_up() {
	local before after pid share began first last
	start "$KIND"
	needs_counters
	here -j stats m
	before=$(json '.objects[0] | [.reads, .writes, .read_bytes, .write_bytes] | map(tostring) | join(" ")')
	rm -f /run/intervals
	began=$(now_ms)
	"$FARBLK" -j stats m 200ms >/run/intervals 2>/run/stderr &
	pid=$!
	wait_for 20 test -s /run/intervals || die "stats prints nothing: $(cat /run/stderr)"
	first=$(now_ms)
	must reads 500
	must writes 70
	last=$(now_ms)
	# An interval that begins after the I/O adds nothing any more.
	sleep 0.5
	wait_for 30 intervals_show "500 70" || bad "reads and writes of all intervals are not 500 and 70: $(cat /run/intervals)"
	kill $pid
	wait $pid
	is "exit code of stats" $? 143
	intervals_show "500 70" || bad "the last intervals show more I/O: $(cat /run/intervals)"
	# The intervals cover all of the time but for the start of the tool, and no more.
	jq -es "map(.interval_s) | add * 1000 | . > $((last - first)) + 200 and . < $(($(now_ms) - began))" /run/intervals >/dev/null ||
		bad "I/O of $((last - first)) ms in intervals: $(jq -c .interval_s /run/intervals)"
	here -j stats m 100ms 3
	is "intervals" "$(wc -l </run/stdout)" 3
	here -j stats m
	after=$(json '.objects[0] | [.reads, .writes, .read_bytes, .write_bytes] | map(tostring) | join(" ")')
	# shellcheck disable=SC2086
	set -- $before $after
	is "reads, writes and bytes" "$(($5 - $1)) $(($6 - $2)) $(($7 - $3)) $(($8 - $4))" "500 70 $((500 * 4096)) $((70 * 65536))"
	is "reads of stats and of the file" "$5" "$(counted reads)"
	share=$([ "$KIND" = ram ] && echo 1 || echo 0)
	jq -es "map(.objects[0].one_sided_share | values) | length > 0 and all(. == $share)" /run/intervals >/dev/null ||
		bad "shares of one-sided I/O are not $share: $(jq -c '.objects[0].one_sided_share' /run/intervals)"
	jq -es 'map(.objects[0].read_latency | select(.count > 0)) | length > 0 and all(.p50_ns > 1000 and .p50_ns <= .p99_ns and .p99_ns <= .p999_ns and .p999_ns < 10000000000)' /run/intervals >/dev/null ||
		bad "latencies: $(jq -c '.objects[0].read_latency' /run/intervals)"
	jq -es 'map(.interval_s) | all(. > 0)' /run/intervals >/dev/null || bad "intervals: $(jq -c .interval_s /run/intervals)"
	here stats m
	note "$(cat /run/stdout)"
	remote "$FARBLK stats e" >/run/stdout || bad "stats on the server"
	note "$(cat /run/stdout)"
	if [ "$KIND" = ram ]; then
		# The server does not see what the HCA does.
		grep -q "export *e *online *- *- *-" /run/stdout || bad "the server knows of I/O: $(cat /run/stdout)"
	else
		remote "$FARBLK -j stats e" >/run/stdout
		is "writes that the server counts" "$(json '.objects[0].writes')" "$6"
	fi
	must unmap m
}

# check_metrics: what is on stdin is OpenMetrics; prints the number of values.
check_metrics() { python3 "$HERE/openmetrics.py" 2>/run/openmetrics || { bad "$(cat /run/openmetrics)"; echo 0; }; }
metrics() {
	local n last name missing
	needs python3
	start block
	needs_counters
	must reads 100
	"$FARBLK" metrics >/run/metrics 2>/run/stderr || bad "metrics ends with $?"
	is "warnings" "$(cat /run/stderr)" ""
	n=$(check_metrics </run/metrics)
	[ "$n" -gt 100 ] || bad "only $n values: $(cat /run/metrics)"
	# Nothing that the module counts is left out.
	missing=$(awk 'NF == 2 && $2 ~ /^[0-9]+$/ {print $1}' "$MAP_STATS" | while read -r name; do
		grep -qE "^farblk_map_$name(_total)?\{map=\"m\"\} [0-9]" /run/metrics || echo "$name"
	done)
	is "counters that are no metric" "$missing" ""
	for name in read write flush; do
		is "buckets of each $name" "$(grep -c "^farblk_map_latency_seconds_bucket{.*map=\"m\",operation=\"$name\"" /run/metrics)" 32
	done
	grep -qx 'farblk_map_state{map="m",state="live"} 1' /run/metrics || bad "the state: $(grep map_state /run/metrics)"
	is "reads" "$(sed -n 's/^farblk_map_reads_total{map="m"} //p' /run/metrics)" "$(counted reads)"
	is "reads in the histogram" "$(sed -n 's/^farblk_map_latency_seconds_count{map="m",operation="read"} //p' /run/metrics)" "$(counted reads)"
	remote "$FARBLK metrics" >/run/metrics
	n=$(check_metrics </run/metrics)
	[ "$n" -gt 100 ] || bad "only $n values on the server: $(cat /run/metrics)"
	grep -q '^farblk_export_reads_total{export="e"} [1-9]' /run/metrics || bad "the server counts no reads"
	grep -q '^farblk_server_logins_total [1-9]' /run/metrics || bad "the server counts no logins"
	# A reader of the file has all of it at any time.
	mkdir -p /run/textfile
	at_exit "rm -rf /run/textfile"
	(for ((i = 0; i < 20; i++)); do "$FARBLK" -q metrics --file /run/textfile/farblk.prom || exit; done) &
	n=0 last=
	wait_for 30 test -e /run/textfile/farblk.prom || bad "no file"
	while ! ended $!; do
		last=$(tail -n 1 /run/textfile/farblk.prom)
		[ "$last" = "# EOF" ] || bad "the file ends with '$last'"
		n=$((n + 1))
	done
	wait $! || bad "metrics --file ends with $?"
	note "the file was read $n times"
	[ "$n" -gt 5 ] || bad "the file was read only $n times"
	is "files" "$(ls -A /run/textfile)" farblk.prom
	is "mode of the file" "$(stat -c %a /run/textfile/farblk.prom)" 644
	must unmap m
}

top_batch() {
	start ram
	here top -b -n 2 -d 200ms
	is "tables" "$(grep -c '^farblk top ' /run/stdout)" 2
	is "rows of the map" "$(grep -c ' map *m *live ' /run/stdout)" 2
	here -j top -n 1 -d 200ms
	is "JSON" "$(json '.schema, .objects[0].name' | tr '\n' ' ')" "farblk.stats/1 m "
	must unmap m
}

# On a terminal: the keys do what they say, and the terminal is as it was.
top_terminal() {
	needs python3
	start ram
	cat >/run/top.py <<-'END'
		import os, pty, select, sys, termios, time
		pid, fd = pty.fork()
		if pid == 0:
		    os.environ["TERM"] = "xterm"
		    os.execvp(sys.argv[1], [sys.argv[1], "top", "-d", "200ms"])
		termios.tcsetwinsize(fd, (24, 160))
		before, text, keys = termios.tcgetattr(fd), b"", [b"s", b"h", b"q"]
		end, next_key = time.monotonic() + 60, time.monotonic() + 2
		while time.monotonic() < end:
		    if select.select([fd], [], [], 0.1)[0]:
		        try:
		            data = os.read(fd, 65536)
		        except OSError:
		            break
		        text += data
		    if keys and b"live" in text and time.monotonic() > next_key:
		        os.write(fd, keys.pop(0))
		        next_key = time.monotonic() + 1
		else:
		    os.kill(pid, 9)
		status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
		sys.stdout.buffer.write(text)
		sys.exit(status if termios.tcgetattr(fd)[3] == before[3] else 99)
	END
	python3 /run/top.py "$FARBLK" >/run/stdout 2>/run/stderr || bad "top ends with $?: $(tail -n 3 /run/stderr)"
	for word in "farblk top" "sorted by I/Os" "bytes" "reads of m" "q quit"; do
		grep -aq "$word" /run/stdout || bad "there is no '$word' on the screen"
	done
	must unmap m
}

# events shows that the map loses its server and finds it again, and ends with its reader.
events() {
	local pid
	start ram
	"$FARBLK" -j events >/run/events 2>/run/stderr &
	pid=$!
	at_exit "kill $pid 2>/dev/null"
	wait_for 20 grep -q '"kind":"map".*"from":null,"to":"live"' /run/events || bad "the first state: $(cat /run/events)"
	must remote "store $C/ports/p/enable 0"
	wait_for 30 grep -q '"kind":"map".*"from":"live","to":"reconnecting"' /run/events || bad "nothing is lost: $(cat /run/events)"
	here -j list
	[ "$(json '.maps[0].gives_up_ms')" -le 60000 ] || bad "it gives up later than no_path_timeout_ms"
	here list
	grep -q "I/O waits for a path, and gives up in [0-9]" /run/stdout || bad "list: $(cat /run/stdout)"
	sleep 0.5
	must remote "store $C/ports/p/enable 1"
	wait_for 20 grep -q '"kind":"map".*"from":"reconnecting","to":"live"' /run/events || bad "nothing is back: $(cat /run/events)"
	is "gives_up_ms of a live map" "$(show "$C/maps/m/gives_up_ms")" ""
	is "events that are JSON documents" "$(jq -c 'select(.schema == "farblk.event/1")' /run/events | wc -l)" "$(wc -l </run/events)"
	is "map events" "$(jq -r 'select(.kind == "map") | .to' /run/events | xargs)" "live reconnecting live"
	kill $pid
	is "complaints" "$(cat /run/stderr)" ""
	within 5 bash -c "$FARBLK events | head -n 1" >/run/stdout
	grep -q "Z  .* live$\|Z  .* listening$" /run/stdout || bad "text: $(cat /run/stdout)"
	must unmap m
}

# Without debugfs, or without the right to use it, there is a hint, and the block layer's counts.
no_debugfs() {
	local hint
	start ram
	must reads 30
	at_exit "mounted /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug"
	must umount -l /sys/kernel/debug
	here stats m
	grep -q "debugfs is not mounted" /run/stderr || bad "no warning: $(cat /run/stderr)"
	[ "$(awk '/ map /{print $5}' /run/stdout)" -ge 30 ] || bad "the block layer's reads: $(cat /run/stdout)"
	hint=$(sed -n 's/^ *hint: //p' /run/stderr)
	[ -n "$hint" ] || die "no hint: $(cat /run/stderr)"
	must bash -c "$hint"
	here stats m
	is "warnings after the hint" "$(cat /run/stderr)" "$([ -e "$MAP_STATS" ] || cat /run/stderr)"
	needs setpriv
	exits 0 setpriv --reuid 65534 --clear-groups "$FARBLK" stats m
	grep -q "only root may use" /run/stderr || bad "nobody special is not told: $(cat /run/stderr)"
	grep -q " map *m *live " /run/stdout || bad "nobody special sees nothing: $(cat /run/stdout)"
	must unmap m
}

both stats_add_up "stats shows the I/O that was done"
scenario metrics "metrics are OpenMetrics, and their file is whole at any time"
scenario top_batch "top -b prints tables"
scenario top_terminal "top obeys keys on a terminal"
scenario events "events shows a map that loses its server and finds it again"
scenario no_debugfs "without debugfs there is a hint, and what the block layer knows"
run_scenarios
