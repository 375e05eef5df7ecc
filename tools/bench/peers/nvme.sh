# SPDX-License-Identifier: GPL-2.0
# nvme-rdma and nvmet-rdma, both as they come.
# shellcheck shell=bash

nvmet=/sys/kernel/config/nvmet

server_up() {
	modprobe nvmet-rdma || return
	mkdir -p $nvmet/subsystems/bench/namespaces/1 $nvmet/ports/1 || return
	echo 1 >$nvmet/subsystems/bench/attr_allow_any_host
	echo "$BENCH_DISK" >$nvmet/subsystems/bench/namespaces/1/device_path
	echo 1 >$nvmet/subsystems/bench/namespaces/1/enable || return
	echo rdma >$nvmet/ports/1/addr_trtype
	echo ipv4 >$nvmet/ports/1/addr_adrfam
	echo "$ADDR" >$nvmet/ports/1/addr_traddr
	echo 4420 >$nvmet/ports/1/addr_trsvcid
	ln -s $nvmet/subsystems/bench $nvmet/ports/1/subsystems/bench
}

server_down() {
	rm $nvmet/ports/1/subsystems/bench
	rmdir $nvmet/ports/1 $nvmet/subsystems/bench/namespaces/1 $nvmet/subsystems/bench
}

client_up() {
	local name i
	modprobe nvme-rdma || return
	nvme connect -t rdma -a "$1" -s 4420 -n bench ${BENCH_POLL:+--nr-poll-queues="$BENCH_POLL"} \
		-q nqn.2014-08.org.nvmexpress:uuid:6f36d2dc-7f3f-4ed1-8a3c-0a7a3ad5d1c5 -I 6f36d2dc-7f3f-4ed1-8a3c-0a7a3ad5d1c5 >&2 || return
	for ((i = 0; i < 100; i++)); do
		name=$(cd /sys/block && echo nvme[0-9]n1)
		[ ! -b "/dev/$name" ] || { echo "/dev/$name"; return; }
		sleep 0.05
	done
	return 1
}

client_down() { nvme disconnect -n bench >&2; }
