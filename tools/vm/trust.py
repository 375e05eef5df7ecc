# SPDX-License-Identifier: GPL-2.0
"""Makes a kernel that knows a key of ours: trust.py VMLINUX KEY CERTIFICATE RESULT

The kernel of the distribution has one certificate built in, that of the key that signed its modules. RESULT is a copy of
VMLINUX that has one of the key in the file KEY in its place, as a host has after "mokutil --import" and a reboot. It is left
in CERTIFICATE, too. Both have the same length, as the kernel has noted that. Modules of the distribution have an unknown
signature then: they load only as long as the kernel does not insist on one.
"""
import re
import subprocess
import sys


def is_certificate(data):
    return subprocess.run(["openssl", "x509", "-inform", "DER", "-noout"], input=data, capture_output=True, check=False).returncode == 0


def certificates(image):
    """The places and lengths of all certificates in it."""
    for match in re.finditer(rb"\x30\x82(..)\x30\x82", image, re.DOTALL):
        length = int.from_bytes(match[1], "big") + 4
        if length < 8192 and is_certificate(image[match.start():match.start() + length]):
            yield match.start(), length


def make(key, length):
    """A certificate of that length; a comment fills it. A signature is sometimes a byte or two longer than another one."""
    comment = 1
    for _ in range(100):
        made = subprocess.run(["openssl", "req", "-new", "-x509", "-key", key, "-days", "3650", "-subj", "/CN=farblk test/",
                               "-addext", "nsComment=" + "x" * comment, "-outform", "DER"], capture_output=True, check=True).stdout
        if len(made) == length:
            return made
        comment = max(1, comment + length - len(made))
    raise SystemExit(f"error: no certificate of {key} has {length} bytes")


def main():
    source, key, certificate, result = sys.argv[1:]
    with open(source, "rb") as file:
        image = file.read()
    found = list(certificates(image))
    if len(found) != 1:
        raise SystemExit(f"error: {source} has {len(found)} certificates built in, not one")
    start, length = found[0]
    made = make(key, length)
    with open(certificate, "wb") as file:
        file.write(made)
    with open(result, "wb") as file:
        file.write(image[:start] + made + image[start + length:])


if __name__ == "__main__":
    main()
