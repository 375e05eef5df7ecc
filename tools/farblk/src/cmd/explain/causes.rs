// SPDX-License-Identifier: GPL-2.0
//! Why each error happens, and how it looks. The remedies are in the table of error.rs.

/// A row: the code, the cause, an example.
type Row = (&'static str, &'static str, &'static str);

const CAUSES: &[Row] = &[
    (
        "F0101",
        "An option, an argument or a value is missing, unknown or not allowed. The message names the word.",
        "farblk map 10.0.0.1\nfarblk map 10.0.0.1/vol1  # names the export, too",
    ),
    (
        "F0102",
        "There is no map, port, export or path of that name on this host.",
        "farblk unmap vol\nfarblk list  # shows the names",
    ),
    (
        "F0103",
        "The command would make an object that exists already with other settings. The lines below the message list the differences. Nothing was changed.",
        "farblk map 10.0.0.1/vol1 --depth 64  # while vol1 is mapped with another depth",
    ),
    (
        "F0104",
        "Another process enables, disables or uses the object just now, or a setting was written while the object is enabled.",
        "farblk map 10.0.0.1/vol1 --wait 10s  # tries again",
    ),
    (
        "F0105",
        "This host does not allow the operation: the files in /sys/kernel/config belong to root.",
        "sudo farblk list",
    ),
    (
        "F0106",
        "The kernel refused a value. refusal of the object says which values it takes; Documentation/configfs.rst lists them.",
        "farblk export create x --ram 4G --block-size 4096",
    ),
    (
        "F0107",
        "The disk or device is mounted, is swap space, is part of another device, is open in a process, or is exported already. The lines below the message name its users.",
        "umount /data\nfarblk unmap vol1",
    ),
    (
        "F0108",
        "The kernel has not enough memory. A RAM export needs its whole size at once, and leaves ram_reserve available.",
        "grep MemAvailable /proc/meminfo\nfarblk export create scratch --ram 2G",
    ),
    (
        "F0109",
        "A file or device of this host could not be read or written. The message has the reason of the kernel.",
        "dmesg  # shows the errors of a disk",
    ),
    (
        "F0110",
        "The kernel has made the disk, but no node of it appeared in /dev within five seconds. devtmpfs or udev makes the nodes. The map stays.",
        "findmnt /dev\nfarblk unmap vol1",
    ),
    (
        "F0111",
        "The path that shall be exported does not exist, or its device was removed.",
        "lsblk --paths",
    ),
    (
        "F0112",
        "The path names a file or folder, and --device takes a block device.",
        "farblk export create vol1 --file /srv/vol1",
    ),
    (
        "F0113",
        "The device, or the file below a loop device, can only be read, and the export would let clients write, or ping --write was to write to it.",
        "farblk export create vol1 --device /dev/sr0 --read-only",
    ),
    (
        "F0201",
        "The name service of this host gives no IP address for the name.",
        "getent hosts node-a\nfarblk map 10.0.0.1/vol1",
    ),
    (
        "F0202",
        "This host has no route to the address, the route leads over an interface without an RDMA device, or the other host answers no request for its hardware address.",
        "ip route get 10.0.0.1\nrdma link  # is the interface of the route among them?",
    ),
    (
        "F0203",
        "The RDMA device of the server answered that nothing listens at this address and port: the module is not loaded there, no port was added, or the port has another number.",
        "farblk port add --addr 10.0.0.1  # on the server",
    ),
    (
        "F0204",
        "The export has no entry for the name of this host (host_name in /sys/kernel/config/farblk), or its entry demands another host_id. Exports admit nobody by default.",
        "farblk export allow vol1 node-b  # on the server",
    ),
    (
        "F0205",
        "A request was sent, and nothing came back in time: the server is down, or a firewall or switch drops the packets. RoCE v2 uses UDP port 4791.",
        "farblk doctor 10.0.0.1",
    ),
    (
        "F0206",
        "The server has no export of that name, or none that this host may see.",
        "farblk discover 10.0.0.1",
    ),
    (
        "F0207",
        "The export, or the entry of this host, allows reading only, and the map wants to write.",
        "farblk map 10.0.0.1/vol1 --ro",
    ),
    (
        "F0208",
        "The modules of the two hosts speak different versions of the protocol. The message has the versions of both.",
        "farblk version  # on both hosts",
    ),
    (
        "F0209",
        "The export has as many maps as max_clients allows. With the default of 1 one host at a time may use it.",
        "farblk export show vol1  # on the server",
    ),
    (
        "F0210",
        "The export exists on the server, but it is disabled, its device is gone, or it is not offered on this port.",
        "farblk export enable vol1  # on the server",
    ),
    (
        "F0211",
        "What answered is no farblk server, or its messages break the protocol. Please report it if both hosts run the same release.",
        "farblk version  # on both hosts\nfarblk report",
    ),
    (
        "F0212",
        "The connection was lost, or the server ended the session: the port or export was disabled, the host was removed from the export, or the network failed.",
        "farblk list  # the map connects again by itself",
    ),
    (
        "F0213",
        "The address belongs to no RDMA device, or the device was removed. An interface of Ethernet needs an adapter for RoCE, or the software device rxe.",
        "rdma link\nrdma link add rxe0 type rxe netdev eth0",
    ),
    (
        "F0214",
        "The address of the port, or the source address of the path, is not one of this host.",
        "ip -brief address",
    ),
    (
        "F0215",
        "Another port of this host has the address and port number already, or another program that uses RDMA.",
        "farblk port list\nfarblk port add --addr 10.0.0.1:7421",
    ),
    (
        "F0216",
        "The map exists, and none of its paths is up. The kernel goes on trying; I/O waits as long as --no-path-timeout says.",
        "farblk list\nfarblk doctor 10.0.0.1",
    ),
    (
        "F0217",
        "The export is kept for a host that had it and lost its connection, until its lease runs out: it may still have data to write.",
        "farblk map 10.0.0.1/vol1 --wait 5m",
    ),
    (
        "F0218",
        "The server has a newer connection of the same map and path. After a short loss that is normal. If it repeats, two hosts show one host_id.",
        "cat /sys/kernel/config/farblk/host_id  # on both hosts",
    ),
    (
        "F0219",
        "The entry of this host on the server has a key, and the map has none. The server admits only a host that proves that it has that key. An export or map with the protection seal needs one, too.",
        "farblk map 10.0.0.1/vol1 --key-file /etc/farblk/keys/vol1.key",
    ),
    (
        "F0220",
        "The server did not take the proof of this host. It does not say why, as that would help somebody who guesses: the export has no entry for this host, the entry demands another host_id, or it has another key. Key ids, which tell no key, are compared on both hosts.",
        "farblk show vol1  # the id of the key of the map\nfarblk export show vol1  # on the server: those of its hosts",
    ),
    (
        "F0221",
        "The map has a key, and what answers at the address could not prove that it has the same one: the server has another key for this host or none, or it is not the server. This host has told it nothing, and exchanged no data with it.",
        "farblk export key vol1 node-b --key-file /etc/farblk/keys/node-b.key  # on the server",
    ),
    (
        "F0222",
        "The server has as many connections without a login as it takes, or this host asked for too many at once. A connection that is not logged in gives way to others after a second, so that trying again helps; a map does so by itself.",
        "farblk list\nfarblk metrics  # on the server: farblk_server_sent_away",
    ),
    (
        "F0223",
        "The export and the map say different things about the protection of commands and data on their way: none, crc32c or seal. The message has both. The server does not let a map choose, so that nobody gets less than the export's administrator wants.",
        "farblk export show vol1  # on the server\nfarblk map 10.0.0.1/vol1 --protection crc32c",
    ),
    (
        "F0224",
        "The block device behind the export was removed, or has no room, as a loop device whose file was cut to nothing. Maps wait for it as for a lost path, and try again by themselves. An export whose device was removed has to be enabled again when the device is back.",
        "farblk list\nfarblk export show vol1  # on the server",
    ),
    (
        "F0301",
        "The export is another one than before under the same name, or the RAM export was made anew and its contents are gone. The disk fails all I/O, so that nobody takes other data for the old.",
        "umount /scratch\nfarblk remap scratch",
    ),
    (
        "F0302",
        "The server gave the export to another map while this one was away, or does not admit this host any more. The other host may have written to it.",
        "umount /data\nfarblk remap vol1\nfsck /dev/farblk/by-name/vol1",
    ),
    (
        "F0401",
        "The module is installed for this kernel, but not loaded. With Secure Boot the kernel may \
         have rejected it, if it does not know the key of the signature.",
        "modprobe farblk",
    ),
    (
        "F0402",
        "The tool asked for a file in /sys/kernel/config/farblk that the loaded module does not have: the module is older than the tool, or was built without this feature.",
        "farblk version",
    ),
    (
        "F0403",
        "The module answered something that the tool cannot read: they are of different releases.",
        "farblk version",
    ),
    (
        "F0404",
        "A file is exported through a loop device, which losetup sets up with an option that older versions lack.",
        "losetup --version",
    ),
    (
        "F0405",
        "No farblk.ko is installed for the running kernel. With DKMS, the build may have failed: farblk doctor repeats what was missing.",
        "farblk doctor",
    ),
    (
        "F0406",
        "The module is loaded, but /sys/kernel/config is no mounted configfs.",
        "mount -t configfs none /sys/kernel/config",
    ),
    (
        "F0407",
        "With Secure Boot, or the kernel parameter module.sig_enforce, the kernel loads only modules with a signature by a key that it knows. farblk.ko has none.",
        "mokutil --sb-state\nfarblk doctor",
    ),
    (
        "F0501",
        "A file that says what this host shall have after a reboot cannot be read: it is no valid TOML, or has a setting that is not known or not allowed. The message names the file and the line. Nothing of it was used.",
        "farblk config check",
    ),
    (
        "F0502",
        "A file with a key does not exist, has no whole key, or gives others than its owner access to it: then somebody else may have the key. The files belong to root and have the mode 600. A key is made by the tool, from 256 random bits; a passphrase is none.",
        "farblk key new /etc/farblk/keys/vol1.key\nchmod 600 /etc/farblk/keys/vol1.key",
    ),
];

/// The remedies of codes whose hint depends on the command.
const CURES: &[(&str, &str)] = &[
    ("F0102", "farblk list\nfarblk export list\nfarblk port list"),
    ("F0103", "# remove the object first, or choose another name"),
    ("F0104", "# try again"),
    ("F0106", "# give a value that the message allows"),
    ("F0109", "dmesg"),
];

/// The words of messages that are not those of the table: the kernel's own.
const WORDS: &[(&str, &[&str])] = &[
    ("F0202", &["no route", "no host answers"]),
    ("F0203", &["nobody listens"]),
    ("F0204", &["does not admit", "not admitted"]),
    ("F0206", &["no export of that name", "no such export"]),
    ("F0208", &["no protocol version in common"]),
    ("F0211", &["is no farblk server"]),
    ("F0213", &["the rdma device was removed", "no rdma device"]),
    ("F0214", &["no interface of this host has the address"]),
    ("F0215", &["another rdma listener"]),
    ("F0217", &["away for"]),
    ("F0219", &["protection=seal needs a key"]),
    ("F0220", &["the key is wrong"]),
    ("F0223", &["the export has protection="]),
];

const EXAMPLES: &[(&str, &str)] = &[
    (
        "module",
        "FAIL  module   the farblk kernel module is not loaded: ...\n        fix: modprobe farblk",
    ),
    (
        "version",
        "warn  version  the tool is 0.2.0, the module that is loaded 0.1.0\n        fix: modprobe -r farblk && modprobe farblk",
    ),
    (
        "name",
        "echo node-b > /sys/kernel/config/farblk/host_name\nfarblk config save",
    ),
    (
        "fstab",
        "/dev/farblk/by-name/vol1  /data  ext4  _netdev,nofail  0  2",
    ),
    (
        "key",
        "FAIL  key  /etc/farblk/keys/vol1.key has the mode 0644: others than its owner have access to the key\n        fix: chmod 600 /etc/farblk/keys/vol1.key",
    ),
    (
        "rdma",
        "FAIL  rdma  this host has no RDMA device\n        fix: rdma link add rxe0 type rxe netdev eth0",
    ),
    (
        "link",
        "FAIL  link  rxe0/1 is DOWN: its interface eth0 is switched off\n        fix: ip link set dev eth0 up",
    ),
    ("gid", "ok    gid   10.0.0.2 has a RoCE v2 GID on mlx5_0/1"),
    (
        "mtu",
        "ip link set dev eth0 mtu 9000  # on both hosts, and on the switch between them",
    ),
    (
        "route",
        "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
    ),
    (
        "firewall",
        "nft insert rule inet filter input udp dport 4791 accept",
    ),
    ("port", "farblk port list"),
    ("export", "farblk export list"),
    ("map", "farblk list"),
    ("server", "farblk doctor 10.0.0.1"),
    (
        "admission",
        "farblk doctor 10.0.0.1/vol1\nfarblk export allow vol1 node-b  # on the server",
    ),
];

/// The cause of a code, and an example.
pub fn of(code: &str) -> (&'static str, &'static str) {
    let row = CAUSES.iter().find(|(name, ..)| *name == code);
    row.map_or(("", ""), |(_, cause, example)| (cause, example))
}

/// The remedies of a code that has none in the table of errors.
pub fn cure(code: &str) -> &'static str {
    let row = CURES.iter().find(|(name, _)| *name == code);
    row.map_or("", |(_, cure)| cure)
}

/// Words of messages that mean the code.
pub fn words(code: &str) -> &'static [&'static str] {
    let row = WORDS.iter().find(|(name, _)| *name == code);
    row.map_or(&[], |(_, words)| words)
}

/// The example of a check.
pub fn of_check(name: &str) -> &'static str {
    let row = EXAMPLES.iter().find(|(have, _)| *have == name);
    row.map_or("", |(_, example)| example)
}
