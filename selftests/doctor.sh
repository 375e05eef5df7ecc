#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# farblk doctor: each fault is made, named, and cured by the command that is printed. The module is
# installed in this guest, which is thrown away, as modprobe has to find it.
. "$(dirname "$0")/lib.sh"
FARBLK=${FARBLK_TOOL:-farblk}
export NO_COLOR=1

# lacks WHY: ends the test like skip. Guests of our own have all that a fault needs, so a test that
# is not run there has failed. kernel_lacks WHY: so it has if it is the kernel that lacks something,
# but for those that tools/setup builds: they check no signatures, and have no nf_tables and no
# large MTU.
lacks() { [ -z "${FARBLK_AGENT:-}" ] || die "not tested: $*"; skip "$@"; }
kernel_lacks() { ! grep -q ' kasan_report$' /proc/kallsyms || skip "$@"; lacks "$@"; }
command -v jq >/dev/null || lacks "there is no jq"

RELEASE=$(uname -r)
INSTALLED=/lib/modules/$RELEASE/updates/farblk.ko

# doctor [SERVER]: its findings, in /run/stdout; RC is its exit code.
doctor() {
	RC=0
	"$FARBLK" -j doctor "$@" >/run/stdout 2>/run/stderr || RC=$?
	jq -e '.schema == "farblk.doctor/1"' </run/stdout >/dev/null || die "doctor: $(cat /run/stdout /run/stderr)"
	is "the exit code and .exit" "$RC" "$(jq .exit </run/stdout)"
	local line
	while IFS= read -r line; do
		bash -n -c "$line" || bad "not a line of shell: $line"
	done < <(jq -r '.checks[].hints[]' </run/stdout)
}
# finding CHECK FILTER: of the worst finding of that check.
finding() { jq -r --arg name "$1" '[.checks[] | select(.name == $name and (.level == "fail" or .level == "warn"))] | sort_by(.level)[0] | '"$2" </run/stdout; }

# names CHECK LEVEL WORDS [SERVER]: doctor has such a finding.
names() {
	doctor "${@:4}"
	is "the level of $1" "$(finding "$1" .level)" "$2"
	[[ $(finding "$1" .text) == *"$3"* ]] || die "doctor does not say '$3': $(jq -c '.checks[]' </run/stdout)"
	[ "$RC" = "$([ "$2" = fail ] && echo 11 || echo 10)" ] || [ "$RC" = 11 ] || bad "exit code $RC for a $2"
}
# cure CHECK: runs what doctor has printed, where it says.
cure() {
	local line where
	line=$(finding "$1" '.hints | map(select(startswith("#") | not))[0]')
	where=$(finding "$1" .place)
	note "cure of $1 ($where): $line"
	case $where in
	here) bash -c "$line" >/dev/null ;;
	server) remote "$line" >/dev/null ;;
	*) false ;;
	esac || die "the cure of $1 fails with $?"
}
# content CHECK [SERVER]: there is nothing to say of it any more.
content() {
	doctor "${@:2}"
	is "what is left of $1" "$(finding "$1" .text)" null
}
# is_cured CHECK LEVEL WORDS [SERVER]: the whole way.
is_cured() {
	names "$@"
	cure "$1"
	content "$1" "${@:4}"
}

install_module() {
	[ -e "$INSTALLED" ] || { mkdir -p "${INSTALLED%/*}" && cp "$FARBLK_KO" "$INSTALLED" && depmod "$RELEASE"; }
}

all_is_well() {
	local text
	doctor
	is "the exit code" "$RC" 0
	text=$(jq -r '.checks[] | select(.level != "ok")' </run/stdout)
	is "findings that are not ok" "$text" ""
	for text in module version rdma link gid mtu firewall; do
		jq -e --arg name $text 'any(.checks[]; .name == $name)' </run/stdout >/dev/null || bad "there is no check $text"
	done
}

no_rdma_device() {
	local netdev
	netdev=$(rxe_netdev)
	at_exit "[ -e /sys/class/infiniband/rxe0 ] || rxe_add $netdev; wait_for 20 rxe_has_ipv4 rxe0"
	must rdma link delete rxe0
	is_cured rdma fail "no RDMA device"
	is "what rxe0 lies on" "$(rxe_netdev)" "$netdev"
}

link_down() {
	local netdev
	netdev=$(rxe_netdev)
	at_exit "ip link set $netdev up; rxe_heal"
	must ip link set "$netdev" down
	is_cured link fail "its interface $netdev is switched off"
}

module_missing() {
	must install_module
	at_exit "loaded || load_module"
	must remove_module
	is_cured module fail "not loaded"
	loaded || bad "the cure did not load the module"
	# Not even installed, as far as depmod has told.
	must remove_module
	at_exit "mv /run/modules.dep ${INSTALLED%/updates/*}/modules.dep"
	cp "${INSTALLED%/updates/*}/modules.dep" /run/modules.dep
	sed -i '/farblk/d' "${INSTALLED%/updates/*}/modules.dep"
	names module fail "the modules of kernel $RELEASE have no farblk"
}

no_configfs() {
	at_exit "mounted /sys/kernel/config || mount -t configfs none /sys/kernel/config"
	must umount /sys/kernel/config
	is_cured module fail "configfs is not mounted"
	[ -d "$C" ] || bad "there is no $C"
}

# No software device knows RoCE v1: the file that tells the mode is another one.
wrong_gid_type() {
	local dir=/sys/kernel/config/rdma_cm/rxe0
	at_exit "umount $dir/ports/1/default_roce_mode; rmdir $dir"
	must mkdir "$dir"
	echo "IB/RoCE v1" >/run/mode
	must mount --bind /run/mode "$dir/ports/1/default_roce_mode"
	is_cured gid warn "IB/RoCE v1"
}

# A switch between the two hosts takes packets of 1500 bytes only.
mtu_mismatch() {
	local netdev before
	netdev=$(rxe_netdev)
	before=$(show "/sys/class/net/$netdev/mtu")
	two_hosts || lacks "it needs two hosts"
	[ "$before" -gt 1500 ] || kernel_lacks "the MTU of its network is $before"
	remote "has_module nf_tables" || kernel_lacks "the server's kernel has no nf_tables"
	at_exit "ip link set dev $netdev mtu $before; remote 'nft delete table ip switch'"
	must serve e 8M
	must remote "modprobe nf_tables && nft 'add table ip switch; add chain ip switch small { type filter hook prerouting priority -300; }; add rule ip switch small meta length > 1500 drop'"
	is_cured mtu fail "packets of $before bytes, the MTU of $netdev, do not reach $FARBLK_SERVER" "$FARBLK_SERVER"
	is "the exit code" "$RC" 0
}

roce_dropped() {
	at_exit "nft delete table inet wall; remote 'nft delete table inet wall 2>/dev/null'; :"
	command -v nft >/dev/null || lacks "there is no nft"
	modprobe -q nf_tables || kernel_lacks "the kernel has no nf_tables"
	must serve e 8M
	must nft 'add table inet wall; add chain inet wall input { type filter hook input priority 0; }; add rule inet wall input udp dport 4791 counter drop'
	names firewall fail "in chain input of table inet wall" "$FARBLK_SERVER"
	[[ $(finding server .text) == *"RoCE (UDP port 4791) gets lost"* ]] || bad "of the server: $(jq -c '.checks[]' </run/stdout)"
	cure firewall
	content firewall "$FARBLK_SERVER"
	is "the exit code" "$RC" 0
	# The rule is the server's: there, too, doctor names it.
	must remote "modprobe nf_tables && nft 'add table inet wall; add chain inet wall input { type filter hook input priority 0; policy drop; }; add rule inet wall input udp dport != 4791 accept'"
	names server fail "$FARBLK_SERVER is up, but RoCE (UDP port 4791) gets lost" "$FARBLK_SERVER"
	is "where the cure has to be run" "$(finding server .place)" server
	remote "$FARBLK -j doctor" >/run/stdout
	[[ $(finding firewall .text) == *"the policy of chain input"* ]] || bad "doctor of the server: $(cat /run/stdout)"
	must remote "$(finding firewall '.hints[0]')"
	"$FARBLK" discover "$FARBLK_SERVER" >/dev/null || bad "the server is not reached"
}

# A firewall drops what this host sends, and lets it pass again: rxe of the kernel has failed its
# GSI queue pair by then, and one that is mended has not.
dead_gsi() {
	local dev
	dev=$(rxe_netdev)
	at_exit "tc qdisc del dev $dev clsact 2>/dev/null; rxe_heal; wait_for 20 rxe_has_ipv4 rxe0"
	must serve e 8M
	tc qdisc add dev "$dev" clsact &&
		tc filter add dev "$dev" egress protocol ip flower ip_proto udp dst_port 4791 action drop || kernel_lacks "the kernel has no flower filter"
	"$FARBLK" discover "$FARBLK_SERVER" >/dev/null 2>&1 && bad "the server is reached"
	must tc qdisc del dev "$dev" clsact
	rdma resource show qp | grep -q 'type GSI state ERR' || skip "rxe has not failed its queue pair"
	names rdma fail "the GSI queue pair of rxe0/1 is in error" "$FARBLK_SERVER"
	cure rdma
	wait_for 20 rxe_has_ipv4 rxe0
	content rdma "$FARBLK_SERVER"
	"$FARBLK" discover "$FARBLK_SERVER" >/dev/null || bad "the server is not reached"
}

port_closed() {
	must remote "export_ram e 8M"
	is_cured server fail "nobody listens on $FARBLK_SERVER" "$FARBLK_SERVER"
	is "the exit code" "$RC" 0
}

not_admitted() {
	must serve e 8M allow_any_host=0
	is_cured admission fail "does not admit" "$FARBLK_SERVER/e"
	is "the exit code" "$RC" 0
}

version_mismatch() {
	must install_module
	must serve e 8M
	must remove_module
	must modprobe farblk protocol_version=1
	is_cured version fail "client 1 to 1" "$FARBLK_SERVER"
	is "the exit code" "$RC" 0
	must store "$C/host_id" "$(lasting_id)"
}

fstab_without_netdev() {
	cp /etc/fstab /run/fstab
	at_exit "cp /run/fstab /etc/fstab"
	echo "/dev/farblk/by-name/x /x ext4 noatime 0 2" >>/etc/fstab
	is_cured fstab fail "(/x) lacks _netdev and nofail"
	is "the line" "$(tail -n 1 /etc/fstab)" "/dev/farblk/by-name/x /x ext4 noatime,_netdev,nofail 0 2"
}

# The archive says what there is, and not who; without a journal the kernel log is that of dmesg.
report() {
	local dir=/run/report file id
	rm -rf "$dir" && mkdir -p "$dir/own"
	id=$(show "$C/host_id")
	must serve e 8M allow_any_host=0
	must map_make m e
	store "$C/maps/m/enable" 1 2>/dev/null && bad "the map is admitted"
	must "$FARBLK" explain "$(show "$C/maps/m/last_error")" >/run/stdout
	grep -q "^F0204: " /run/stdout || bad "explain: $(cat /run/stdout)"
	must "$FARBLK" report --file "$dir/report.tar.gz" >/run/stdout
	must tar -x -z -C "$dir" -f "$dir/report.tar.gz"
	for file in README configfs.txt debugfs.txt devices.txt system.txt list.json doctor.json kernel.txt network.txt; do
		[ -s "$dir/farblk-report/$file" ] || bad "there is no $file"
		grep -q "^$file " /run/stdout || bad "$file is not named: $(cat /run/stdout)"
	done
	grep -q rxe0 "$dir/farblk-report/kernel.txt" || bad "kernel.txt: $(head -n 3 "$dir/farblk-report/kernel.txt")"
	grep -q "/maps/m/paths/a/addr = ip-" "$dir/farblk-report/configfs.txt" || bad "the path: $(grep maps/m "$dir/farblk-report/configfs.txt")"
	for file in "$id" "${id//-/}" "$FARBLK_SERVER" "$(uname -n)" "$(cat /etc/machine-id)" "$(cat "/sys/class/net/$(rxe_netdev)/address")"; do
		! grep -rwiF "$file" "$dir/farblk-report" >/run/found || bad "$file is in $(head -n 2 /run/found)"
	done
	# Anybody may write one.
	chmod 777 "$dir/own"
	must setpriv --reuid=65534 --clear-groups "$FARBLK" report --file "$dir/own/report.tar.gz" >/run/stdout
	grep -q "^debugfs.txt .*incomplete" /run/stdout || bad "of nobody: $(cat /run/stdout)"
	must map_rm m
}

# The kernel takes signed modules only, from here on until it boots anew. No key in this guest is
# known to it, so the signature is made up, and the module stays out: "tools/vm/packages --only
# signed" runs the cure, on a kernel that knows a key.
unsigned() {
	local sign
	must install_module
	[ -w /sys/module/module/parameters/sig_enforce ] || kernel_lacks "the kernel does not check signatures"
	must remove_module
	must store /sys/module/module/parameters/sig_enforce Y
	names module fail "signed modules only"
	sign=$(finding module '.hints[0]')
	[[ $sign == */sign-file\ *" $INSTALLED" ]] || bad "the cure is '$sign'"
	echo "~Module signature appended~" >>"$INSTALLED"
	doctor
	[[ $(finding module .text) != *"signed modules only"* ]] || bad "a signed module is unsigned"
	is "the first hint" "$(finding module '.hints[0]')" "modprobe farblk"
	[[ $(finding module '.hints[1]') == "mokutil --import KEY.der  # or, "* ]] || bad "the other hint is '$(finding module '.hints[1]')'"
}

scenario all_is_well "all is well: 0"
scenario no_rdma_device "no RDMA device"
is_short || scenario link_down "the link is down"
scenario module_missing "the module is not loaded, or not installed"
is_short || scenario no_configfs "configfs is not mounted"
is_short || scenario wrong_gid_type "the wrong GID type"
scenario port_closed "nobody listens"
scenario not_admitted "the host is not admitted"
is_short || scenario version_mismatch "no protocol version in common"
is_short || scenario fstab_without_netdev "fstab without _netdev"
is_short || scenario mtu_mismatch "a hop takes smaller packets only"
is_short || scenario dead_gsi "a packet could not be sent, and nobody can connect any more"
is_short || scenario roce_dropped "UDP port 4791 is dropped, here or by the server"
scenario report "report and explain: all that helps, and no secrets"
is_short || scenario unsigned "the module is not signed"
run_scenarios
