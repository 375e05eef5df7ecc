# SPDX-License-Identifier: GPL-2.0
# nvme-rdma and nvmet-rdma, both as they come.
# shellcheck shell=bash

nvmet=/sys/kernel/config/nvmet
transport=rdma port=4420

server_up() {
	modprobe nvmet-$transport || return
	mkdir -p $nvmet/subsystems/$transport/namespaces/1 $nvmet/ports/$port || return
	echo 1 >$nvmet/subsystems/$transport/attr_allow_any_host
	echo "$BENCH_DISK" >$nvmet/subsystems/$transport/namespaces/1/device_path
	echo 1 >$nvmet/subsystems/$transport/namespaces/1/enable || return
	echo $transport >$nvmet/ports/$port/addr_trtype
	echo ipv4 >$nvmet/ports/$port/addr_adrfam
	echo "$ADDR" >$nvmet/ports/$port/addr_traddr
	echo $port >$nvmet/ports/$port/addr_trsvcid
	ln -s $nvmet/subsystems/$transport $nvmet/ports/$port/subsystems/$transport
}

server_down() {
	rm $nvmet/ports/$port/subsystems/$transport
	rmdir $nvmet/ports/$port $nvmet/subsystems/$transport/namespaces/1 $nvmet/subsystems/$transport
}

client_up() {
	local of name i
	modprobe nvme-$transport || return
	nvme connect -t $transport -a "$1" -s $port -n $transport ${BENCH_POLL:+--nr-poll-queues="$BENCH_POLL"} \
		-q nqn.2014-08.org.nvmexpress:uuid:6f36d2dc-7f3f-4ed1-8a3c-0a7a3ad5d1c5 -I 6f36d2dc-7f3f-4ed1-8a3c-0a7a3ad5d1c5 >&2 || return
	for ((i = 0; i < 100; i++)); do
		of=$(grep -lx $transport /sys/class/nvme-subsystem/*/subsysnqn)
		name=$(cd "${of%/*}" && echo nvme[0-9]n1)
		[ ! -b "/dev/$name" ] || { echo "/dev/$name"; return; }
		sleep 0.05
	done
	return 1
}

client_down() { nvme disconnect -n $transport >&2; }
