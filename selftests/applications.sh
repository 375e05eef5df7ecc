#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What people run: file system tests that check what they read, databases; fsck after each.
. "$(dirname "$0")/lib.sh"

# on_ext4 COMMAND...: in an empty file system on a block export, which is whole after that.
on_ext4() {
	! debug_kernel || skip "too slow for a debug kernel"
	needs_own_module ext4
	needs_module null_blk
	disk_of "null_disk fbn 128 cache_size=8 discard=1"
	must mkfs.ext4 -q "$DEV"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	"$@" >/run/application 2>&1 || bad "exit code $? of $*: $(tail -n 8 /run/application)"
	must umount /run/mnt
	must fsck.ext4 -fn "$DEV" >/run/fsck 2>&1
	must unmap m
}

stress() {
	needs stress-ng
	on_ext4 stress-ng --temp-path /run/mnt --verify --hdd 1 --hdd-bytes 4M --hdd-ops 400 --hdd-opts direct,rd-rnd,wr-rnd,fsync --aio 1 --aio-ops 400 \
		--iomix 1 --iomix-bytes 4M --iomix-ops 400 --revio 1 --revio-bytes 4M --revio-ops 400 --timeout 60
}

dbench() {
	needs dbench
	# The first part of its load: each client in a folder of its own.
	on_ext4 command dbench -c /usr/share/dbench/client.txt -D /run/mnt -t 5 2
}

sqlite() {
	needs sqlite3
	on_ext4 rows
}
rows() {
	local i
	for i in delete wal; do
		echo "PRAGMA journal_mode=$i; PRAGMA synchronous=FULL; CREATE TABLE t$i(n INTEGER PRIMARY KEY, v BLOB);"
		for n in {1..20}; do echo "INSERT INTO t$i VALUES ($n, randomblob($((n * 3000))));"; done
		echo "BEGIN; UPDATE t$i SET v = randomblob(9000) WHERE n % 2; COMMIT; BEGIN; DELETE FROM t$i; ROLLBACK; DELETE FROM t$i WHERE n > 15;"
	done | sqlite3 -bail /run/mnt/db || return
	sync
	echo 3 >/proc/sys/vm/drop_caches
	[ "$(sqlite3 /run/mnt/db 'PRAGMA integrity_check; SELECT count(*) FROM tdelete; SELECT count(*) FROM twal;' | tr '\n' ' ')" = "ok 15 15 " ]
}

postgres() {
	PG=$(echo /usr/lib/postgresql/*/bin)
	[ -x "$PG/postgres" ] || skip "there is no PostgreSQL"
	on_ext4 transactions
}
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
transactions() {
	local pg=(/var/lib/postgresql/*/main) rc=0
	cp -rp "${pg[0]}" /run/mnt/pg || return
	printf '%s\n' "listen_addresses=''" "unix_socket_directories='/run/mnt'" "shared_buffers=16MB" "log_min_messages=warning" \
		"min_wal_size=2MB" "max_wal_size=16MB" >/run/mnt/pg/postgresql.conf
	echo 'local all all trust' >/run/mnt/pg/pg_hba.conf
	chown -R postgres /run/mnt
	as_postgres "$PG/pg_test_fsync" -s 1 -f /run/mnt/fsync || return
	as_postgres "$PG/pg_ctl" -D /run/mnt/pg -l /run/mnt/log -w start || { cat /run/mnt/log; return 1; }
	{
		as_postgres "$PG/pgbench" -h /run/mnt -i -q postgres && as_postgres "$PG/pgbench" -h /run/mnt -c 4 -t 50 postgres &&
			# Killed, as by a crash: what was committed comes back from the log.
			as_postgres "$PG/psql" -h /run/mnt -qAtc 'SELECT count(*), sum(delta) FROM pgbench_history' postgres >/run/committed &&
			as_postgres "$PG/pg_ctl" -D /run/mnt/pg -m immediate stop && echo 3 >/proc/sys/vm/drop_caches &&
			as_postgres "$PG/pg_ctl" -D /run/mnt/pg -l /run/mnt/log -w start &&
			as_postgres "$PG/psql" -h /run/mnt -qAtc 'SELECT count(*), sum(delta) FROM pgbench_history' postgres | cmp - /run/committed
	} || rc=1
	as_postgres "$PG/pg_ctl" -D /run/mnt/pg -m fast stop || rc=1
	as_postgres "$PG/pg_checksums" -c -D /run/mnt/pg >/run/checksums 2>&1 || grep -q "not enabled" /run/checksums || rc=1
	return $rc
}

scenario stress "stress-ng: hdd, aio, iomix and revio, with verification"
scenario dbench "dbench"
scenario sqlite "SQLite, with both kinds of journal"
scenario postgres "PostgreSQL: pg_test_fsync, pgbench, and a crash"
run_scenarios
