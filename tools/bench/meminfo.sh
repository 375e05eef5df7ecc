# SPDX-License-Identifier: GPL-2.0
# What the guests' scripts that measure memory share.
# shellcheck shell=bash

# memory: what the kernel holds, without the page cache and the memory of processes, in all and by
# kind; pages that a CPU keeps to hand out next are free. What was freed but is still kept goes
# first, and the least of three counts.
memory() {
	local n cache
	for ((n = 0; n < 3; n++)); do
		sync
		sleep 0.5
		echo 3 >/proc/sys/vm/drop_caches
		for cache in /sys/kernel/slab/*; do
			[ -L "$cache" ] || echo 1 >"$cache/shrink"
		done
		# What the CPUs have counted for themselves.
		echo 1 >/proc/sys/vm/stat_refresh
		awk '
			FILENAME == "/proc/meminfo" {kib[$1] = $2}
			$1 == "count:" {free += $2 * 4}
			END {
				used = kib["MemTotal:"] - kib["MemFree:"] - free - kib["Buffers:"] - kib["Cached:"] - kib["AnonPages:"]
				printf "{\"all\": %d, \"slab\": %d, \"vmalloc\": %d, \"stacks\": %d, \"pagetables\": %d, \"percpu\": %d}\n", used, kib["Slab:"], kib["VmallocUsed:"],
					kib["KernelStack:"], kib["PageTables:"], kib["Percpu:"]
			}' /proc/meminfo /proc/zoneinfo
	done | sort -t : -k 2 -n | head -n 1
}
