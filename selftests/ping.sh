#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Round trips to a server: by the tool, without a login, and against servers that are away, silent,
# older or hostile. Nobody's place is touched. What a stranger may ask of a server is in hostile.sh.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"
# The hostile server's address.
HOSTILE=10.9.0.77

nothing_left() { is "what ping left" "$(ls "$C/ping" "$C/discover" | grep -v ":$" | xargs)" ""; }

# A host alone, with and without exports; an export of RAM, whose only place another map has; one of
# a block device. siw would answer READs of no bytes with some.
round_trips() {
	local reads=300
	needs jq
	[ "$PROVIDER" != siw ] || reads=null
	not_local
	must remote "port_add p $FARBLK_SERVER"
	exits 0 "$FARBLK" ping "$FARBLK_SERVER"
	grep -q '^SEND  100 round trips  min [0-9.]* us  p50 [0-9.]* [um]s  p99 ' /run/stdout || bad "ping: $(cat /run/stdout)"
	[ "$(wc -l </run/stdout)" -ge 2 ] || bad "no histogram: $(cat /run/stdout)"
	exits 3 "$FARBLK" ping "$FARBLK_SERVER/e"
	grep -q F0206 /run/stderr || bad "no export: $(cat /run/stderr)"
	must remote "export_ram e 8M max_clients=1"
	must map m e heartbeat_ms=10000
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 300 -i 1ms
	is "round trips" "$(json '.send.count, .read.count, .complete' | xargs)" "300 $reads true"
	is "SENDs in the histogram" "$(json '[.send.histogram[].count] | add')" 300
	note "$(json '"SEND p50 \(.send.p50_ns) p99 \(.send.p99_ns) READ p50 \(.read.p50_ns) p99 \(.read.p99_ns) ns"')"
	json '.send.min_ns > 0 and .send.min_ns <= .send.p50_ns and .send.p50_ns <= .send.p99_ns and .send.p99_ns <= .send.max_ns and (.read == null or .read.min_ns > 0)' >/dev/null
	is "the state of the map that has the export" "$(show "$C/maps/m/state")" live
	must direct_read "$DEV" /dev/null count=1
	is "maps with a place" "$(remote "cat $C/exports/e/clients $C/exports/e/clients_away" | xargs)" "1 0"
	is "reconnects of the map" "$(show "$C/maps/m/paths/a/reconnects")" 0
	nothing_left
	must unmap m
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/allow_any_host 0 && store $C/exports/e/enable 1"
	exits 3 "$FARBLK" ping "$FARBLK_SERVER/e"
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 1
	exits 0 "$FARBLK" --dry-run ping "$FARBLK_SERVER" -c 3
	is "round trips of what a dry run printed" "$(bash -e /run/stdout | grep -c '^[0-9]*$')" 3
	nothing_left
}

# RDMA and atomic operations, each way in which they can be measured. The module that measures them
# checks what they do to the server's memory. The export, and the map that has it, are as before.
ALL_OPS=send,read,write,cas,faa
operations() {
	local options before wanted='[300,300,300,300,300]' missing='[]'
	needs jq
	not_local
	# With iWARP there are no atomic operations.
	[ "$PROVIDER" != siw ] || wanted='[300,300,300,null,null]' missing='["cas","faa"]'
	must serve e 8M max_clients=1
	must map m e heartbeat_ms=10000
	random /run/data 1
	must direct_write /run/data "$DEV"
	before=$(of_server)
	for options in "" "--size 4080 --depth 8" "--polled" "--size 2K --depth 32 --polled"; do
		# shellcheck disable=SC2086
		exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 300 -i 1ms --op $ALL_OPS $options
		is "round trips with '$options'" "$(json '[.send, .read, .write, .cas, .faa] | map(.count?)' | tr -d ' \n')" "$wanted"
		is "what is not available" "$(json .unavailable | tr -d ' \n')" "$missing"
		is "complete" "$(json .complete)" true
		note "$(json '"READ p50 \(.read.p50_ns) WRITE p50 \(.write.p50_ns) CAS p50 \(.cas.p50_ns?) ns, READs/s \(.read.iops)"')"
	done
	# A SEND is a message of the control connection, which has not that depth.
	is "size and depth" "$(json '.read.size, .write.depth, .send.size, .send.depth, .polled' | xargs)" "2048 32 2048 4 true"
	json '.read.iops > 0 and .write.iops > 0 and .send.iops > 0 and .read.min_ns > 0' >/dev/null
	exits 0 "$FARBLK" ping "$FARBLK_SERVER/e" -c 10 --op write,faa --depth 2
	grep -q '^WRITE  10 round trips .*  depth 2  [0-9]*/s$' /run/stdout || bad "ping: $(cat /run/stdout)"
	grep -q '^FAA  ' /run/stdout || bad "ping: $(cat /run/stdout)"
	for options in "4096 --depth 8" "61440 --depth 32 --polled"; do
		# shellcheck disable=SC2086
		exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 300 --op read,write --size $options
		is "size and round trips" "$(json '.read.size, .write.size, .read.count, .write.count' | xargs)" "${options%% *} ${options%% *} 300 300"
	done
	exits 2 "$FARBLK" ping "$FARBLK_SERVER/e" -c 5 --op send,read --size 60K
	grep -q "F0101.*a SEND is one message" <(tr -d '\n' </run/stderr) || bad "a size of SEND: $(cat /run/stderr)"
	grep -q "hint: farblk ping .*/e --op read,write --size 61440" /run/stderr || bad "a size of SEND: $(cat /run/stderr)"
	wait_for 30 as_before || bad "the server had $before, and has $(of_server)"
	is "the state of the map that has the export" "$(show "$C/maps/m/state")" live
	is "reconnects of the map" "$(show "$C/maps/m/paths/a/reconnects")" 0
	must direct_read "$DEV" /run/back bs=1M count=1
	must cmp /run/data /run/back
	is "maps with a place" "$(remote "cat $C/exports/e/clients $C/exports/e/clients_away" | xargs)" "1 0"
	must unmap m
	nothing_left
}

# Messages of any size, which the server's module sends back. They need no export.
messages() {
	local size options
	needs jq
	not_local
	must remote "port_add p $FARBLK_SERVER"
	for size in 8 9 64 1000 4080; do
		for options in "" "--depth 4" "--depth 32 --polled"; do
			# shellcheck disable=SC2086
			exits 0 "$FARBLK" -j ping "$FARBLK_SERVER" -c 300 -i 1ms --op send --size $size $options
			is "SENDs of $size bytes '$options'" "$(json '.send.count, .send.size, .complete' | xargs)" "300 $size true"
		done
		note "$(json '"SEND of \(.send.size) bytes p50 \(.send.p50_ns) ns, \(.send.iops)/s"')"
	done
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 3 --size 1K
	grep -q '^SEND  3 round trips ' /run/stdout || bad "ping: $(cat /run/stdout)"
	exits 2 "$FARBLK" ping "$FARBLK_SERVER" -c 3 --size 4081
	nothing_left
}

# What the server has now, which is to be the same in the end.
of_server() { remote "rdma resource show mr | wc -l; rdma resource show qp | wc -l"; }
as_before() { [ "$(of_server)" = "$before" ]; }

# Datagrams, which a queue pair of the server sends back. Some may get lost, and each is counted.
datagrams() {
	local options before netdev mtu most
	needs jq
	not_local
	must serve e 8M max_clients=1
	if [ "$PROVIDER" = siw ]; then
		exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 5 --op send-ud,write
		is "what is not available" "$(json '.unavailable, .send_ud, .write.count' | tr -d ' \n')" '["send_ud"]null5'
		return
	fi
	must map m e
	before=$(of_server)
	for options in "" "--size 1K --depth 8" "--polled" "--size 256 --depth 32 --polled"; do
		# shellcheck disable=SC2086
		exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 300 -i 1ms --op send-ud,send $options
		is "datagrams with '$options'" "$(json '.send_ud.count + .lost, .send.count' | xargs)" "300 300"
		is "complete" "$(json '.complete, .unavailable == []' | xargs)" "true true"
		json '.send_ud.count > 200 and .send_ud.min_ns > 0' >/dev/null
		note "$(json '"SEND UD p50 \(.send_ud.p50_ns) SEND p50 \(.send.p50_ns) ns, \(.lost) lost, datagrams/s \(.send_ud.iops)"')"
	done
	is "size and depth" "$(json '.send_ud.size, .send_ud.depth' | xargs)" "256 32"
	exits 0 "$FARBLK" ping "$FARBLK_SERVER/e" -c 10 --op "$ALL_OPS,send-ud" --size 512 --depth 4
	grep -q '^SEND UD  [0-9]* round trips .*  depth 4  [0-9]*/s$' /run/stdout || bad "ping: $(cat /run/stdout)"
	grep -q '^SEND UD  [0-9]* of 10 lost, [0-9]*%$' /run/stdout || bad "ping: $(cat /run/stdout)"
	wait_for 20 as_before || bad "the server had $before, and has $(of_server)"
	exits 2 "$FARBLK" ping "$FARBLK_SERVER/e" --op send-ud --size 4097
	netdev=$(rxe_netdev)
	mtu=$(show "/sys/class/net/$netdev/mtu")
	# Some devices do not take back the MTU that they were made with.
	most=$(ip -j -d link show dev "$netdev" | jq '.[0].max_mtu // 0')
	if [ "$PROVIDER" = rxe ] && { [ "$most" = 0 ] || [ "$mtu" -le "$most" ]; }; then
		at_exit "ip link set dev $netdev mtu $mtu"
		must ip link set dev "$netdev" mtu 1500
		exits 0 "$FARBLK" ping "$FARBLK_SERVER/e" -c 5 --op send-ud --size 1K
		exits 2 "$FARBLK" ping "$FARBLK_SERVER/e" -c 5 --op send-ud --size 2K
		grep -q "F0106.*it has 1024 bytes at most" <(tr -d '\n' </run/stderr) || bad "too long: $(cat /run/stderr)"
		grep -q "hint: farblk ping .* --op send-ud --size 256" /run/stderr || bad "too long: $(cat /run/stderr)"
		must ip link set dev "$netdev" mtu "$mtu"
	fi
	is "the state of the map that has the export" "$(show "$C/maps/m/state")" live
	must unmap m
	nothing_left
}

# Every fourth datagram to the server gets lost, by its packet sequence number, and then all do.
# What is no datagram gets there, and so do those of the connection manager, whose queue pair is 1.
datagrams_lost() {
	local is_one="udp dport 4791 @th,64,8 0x64 @th,104,24 != 1"
	needs jq
	two_hosts || skip "the packets of one host pass no filter"
	[ "$PROVIDER" = rxe ] || skip "packets of $PROVIDER are others"
	remote "has_module nf_tables && command -v nft >/dev/null" || skip "the server's kernel has no nf_tables"
	at_exit "remote 'nft delete table inet lossy 2>/dev/null'; :"
	must serve e 8M
	must remote "modprobe nf_tables && nft 'add table inet lossy; add chain inet lossy input { type filter hook input priority 0; }'"
	must remote "nft 'add rule inet lossy input $is_one @th,152,8 & 3 == 0 drop'"
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 20 -i 1ms --op send-ud,send
	is "datagrams" "$(json '.send_ud.count + .lost, .send.count, .complete' | xargs)" "20 20 true"
	json '.lost >= 5 and .send_ud.count >= 5' >/dev/null
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 100 --op send-ud --depth 32
	is "datagrams" "$(json '.send_ud.count + .lost, .complete' | xargs)" "100 true"
	json '.lost >= 10 and .send_ud.count > 0' >/dev/null
	must remote "nft 'flush chain inet lossy input; add rule inet lossy input $is_one drop'"
	exits 5 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 12 -i 1ms --op send-ud
	is "datagrams" "$(json '.send_ud, .lost' | xargs)" "null 12"
	grep -q "F0205.*no datagram was answered" <(tr -d '\n' </run/stderr) || bad "all are lost: $(cat /run/stderr)"
	# They are the server's answers now.
	must remote "nft 'delete table inet lossy; add table inet lossy; add chain inet lossy output { type filter hook output priority 0; }; add rule inet lossy output $is_one drop'"
	exits 5 "$FARBLK" ping "$FARBLK_SERVER/e" -c 3 -i 1ms --op send-ud
	grep -q '^SEND UD  3 of 3 lost, 100%$' /run/stdout || bad "ping: $(cat /run/stdout)"
	nothing_left
}

# Any kind of export admits a host, for reading or writing; whom it does not admit gets no memory.
admitted() {
	local host
	needs jq
	not_local
	needs_module null_blk
	host=$(show "$C/host_name")
	back "null_disk fbp 8 blocksize=512"
	must serve_block e "$BACK" allow_any_host=0
	exits 6 "$FARBLK" ping "$FARBLK_SERVER/e" -c 1 --op write
	grep -q F0204 /run/stderr || bad "not admitted: $(cat /run/stderr)"
	exits 6 "$FARBLK" ping "$FARBLK_SERVER/e" -c 1 --op send-ud
	must remote "mkdir $C/exports/e/hosts/$host && store $C/exports/e/hosts/$host/access ro"
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER/e" -c 5 --op write,read --size 512
	is "round trips" "$(json '.write.count, .read.count' | xargs)" "5 5"
	exits 3 "$FARBLK" ping "$FARBLK_SERVER/nothing" -c 1 --op write
	must remote "store $C/exports/e/enable 0"
	exits 5 "$FARBLK" ping "$FARBLK_SERVER/e" -c 1 --op write
	# READs of no bytes need nobody to admit this host.
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER" -c 5 --op read
	is "round trips" "$(json '.read.count, (.send == null)' | xargs)" "$([ "$PROVIDER" = siw ] && echo null || echo 5) true"
	nothing_left
}

# A connection that uses the version before has no such memory.
older() {
	not_local
	two_hosts || skip "the server would be older, too"
	must serve e 8M
	at_exit 'clean_all; ! loaded || remove_module; must load_module'
	must remove_module
	must load_module protocol_version=8
	exits 0 "$FARBLK" ping "$FARBLK_SERVER/e" -c 3
	exits 7 "$FARBLK" ping "$FARBLK_SERVER/e" -c 3 --op write
	grep -q "F0208.*the server is older" <(tr -d '\n' </run/stderr) || bad "an older server: $(cat /run/stderr)"
	exits 7 "$FARBLK" ping "$FARBLK_SERVER" -c 3 --op send --size 9
	grep -q "F0208.*the server is older" <(tr -d '\n' </run/stderr) || bad "an older server: $(cat /run/stderr)"
	exits 7 "$FARBLK" ping "$FARBLK_SERVER/e" -c 3 --op send-ud
	grep -q "F0208.*the server is older" <(tr -d '\n' </run/stderr) || bad "an older server: $(cat /run/stderr)"
	must map m e
	must unmap m
	nothing_left
}

# The map of one that lost its paths is away: ping neither takes its place nor ends its lease.
map_that_is_away() {
	not_local
	needs jq
	must serve e 8M max_clients=1
	must map m e heartbeat_ms=500 no_path_timeout_ms=-1
	must remote "store $C/ports/p/enable 0"
	wait_for 30 is_reconnecting || die "the map is $(show "$C/maps/m/state")"
	must remote "port_add q $FARBLK_SERVER:7421"
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER:7421/e" -c 5
	is "round trips" "$(json '.send.count, .read.count' | xargs)" "5 5"
	is "maps that are away" "$(remote "cat $C/exports/e/clients $C/exports/e/clients_away" | xargs)" "0 1"
	must remote "store $C/ports/p/enable 1"
	wait_for 20 is_live || bad "the map does not come back: $(show "$C/maps/m/last_error")"
	must direct_read "$DEV" /dev/null count=1
	must unmap m
}
is_reconnecting() { [ "$(show "$C/maps/m/state")" = reconnecting ]; }
is_live() { [ "$(show "$C/maps/m/state")" = live ]; }

# A closed port; an address that nobody has; a wrong source; a port that goes away meanwhile.
not_there() {
	not_local
	needs jq
	within 6 exits 5 "$FARBLK" ping "$FARBLK_SERVER"
	grep -q "F0203.*nobody listens on" <(tr -d '\n' </run/stderr) || bad "a closed port: $(cat /run/stderr)"
	within 6 exits 5 "$FARBLK" ping 203.0.113.1
	exits 1 "$FARBLK" ping "$FARBLK_SERVER" --source 192.0.2.1
	grep -q F0214 /run/stderr || bad "a wrong source: $(cat /run/stderr)"
	must remote "port_add p $FARBLK_SERVER"
	"$FARBLK" -j ping "$FARBLK_SERVER" -c 1000 -i 20ms >/run/stdout 2>/run/stderr &
	local pid=$! rc=0
	wait_for 20 made_one || die "ping does not begin: $(cat /run/stderr)"
	must remote "store $C/ports/p/enable 0"
	wait_for 30 ended $pid || die "ping goes on without its server"
	wait $pid || rc=$?
	is "exit code" $rc 5
	is "complete" "$(jq .complete </run/stdout)" false
	json '.send.count > 10' >/dev/null
	nothing_left
}

# interrupted SIGNAL INTERVAL [OPTION...]: it sums up, and leaves nothing behind.
interrupted() {
	"$FARBLK" -j ping "$FARBLK_SERVER" -c 100000 -i "$2" "${@:3}" >/run/stdout 2>/run/stderr &
	local pid=$! rc=0
	wait_for 20 made_one || die "ping does not begin: $(cat /run/stderr)"
	sleep 2
	kill -s "$1" $pid
	within 8 wait_for 10 ended $pid || die "ping does not end by SIG$1"
	wait $pid || rc=$?
	is "exit code by SIG$1" $rc 0
	is "complete" "$(jq .complete </run/stdout)" false
	json '.send.count > 0 and .send.count < 100000' >/dev/null
	nothing_left
}
# made_one: a ping has measured something.
made_one() { grep -qs . "$C"/ping/*/send_ns; }
signals() {
	not_local
	needs jq
	must remote "port_add p $FARBLK_SERVER"
	# A shell gives its background no SIGINT.
	trap - INT
	set -m
	interrupted INT 10ms
	interrupted TERM 1s
	interrupted INT 1ms --op send,read --depth 4 --polled
	# What a killed one has left goes with the next.
	"$FARBLK" ping "$FARBLK_SERVER" -c 100000 >/dev/null 2>&1 &
	wait_for 20 made_one
	kill -KILL $!
	wait $! 2>/dev/null
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 1
	set +m
	nothing_left
}

# A server that is off, and one that is cut off, end it in time.
server_away() {
	agent_only
	must remote "port_add p $FARBLK_SERVER"
	server_link down
	within 9 exits 5 "$FARBLK" ping "$FARBLK_SERVER"
	server_link up
	rxe_heal
	remote rxe_heal
	wait_for 30 "$FARBLK" ping "$FARBLK_SERVER" -c 1 >/dev/null 2>&1 || bad "the server is not there again"
	nothing_left
}

# Servers that answer with garbage, too much, too late or not at all. hostile_ping PROGRAM GROUP
hostile_ping() {
	local rc mapped
	unset FARBLK_AGENT FARBLK_REMOTE
	not_local
	needs python3
	needs_user_rdma
	ip addr replace "$HOSTILE/24" dev "$(rxe_netdev)" || die "no address for the hostile server"
	# shellcheck disable=SC2046
	mapped=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${HOSTILE//./ })
	wait_for 20 grep -qsx "$mapped" /sys/class/infiniband/rxe0/ports/1/gids/*
	python3 "$HERE/$1" "$HOSTILE" "$HOSTILE" "$2" 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	ip addr del "$HOSTILE/24" dev "$(rxe_netdev)"
	[ "$rc" != 4 ] || skip "user space has no RDMA"
	[ "$rc" = 0 ] || bad "$1 $2 ends with $rc"
	nothing_left
}
hostile_answers() { hostile_ping hostile_server.py ping; }
hostile_datagrams() { hostile_ping hostile_server_echo.py echo; }

scenario round_trips "SEND without a login, READ of an export of RAM whose only place is taken"
scenario operations "RDMA and atomic operations of any size and depth, with interrupts and polled"
scenario messages "messages of any size and depth come back, without an export"
scenario datagrams "datagrams of any size and depth come back, or are counted"
scenario datagrams_lost "datagrams that get lost are counted, and nothing waits for them"
scenario admitted "memory of the server for those whom an export admits, and for nobody else"
scenario older "a version without memory to measure with"
scenario map_that_is_away "a map that is away keeps its place, and comes back"
scenario not_there "a closed port, no host, a wrong source, and a port that goes away"
scenario signals "a signal ends it with what was measured, and nothing is left"
scenario server_away "a server that is cut off is given up in time"
is_short || scenario hostile_answers "garbage, silence and slowness end it with a reason"
is_short || scenario hostile_datagrams "answers that are none, and datagrams without end, end it with a reason, or do not count"
run_scenarios
