#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Compares the documentation of configfs with the code: abi.py

Each attribute of rust/config has to be in Documentation/ABI/testing/configfs-farblk and in a table of
Documentation/configfs.rst, with the same access, and neither may have an attribute that the code does not have.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABI = ROOT / "Documentation/ABI/testing/configfs-farblk"
RST = ROOT / "Documentation/configfs.rst"
TOP = "/sys/kernel/config/farblk"
# File of rust/config -> its directory below TOP, with "*" for each name that mkdir gives.
DIRECTORIES = {
    "root.rs": "",
    "port.rs": "/ports/*",
    "export.rs": "/exports/*",
    "host.rs": "/exports/*/hosts/*",
    "map.rs": "/maps/*",
    "path.rs": "/maps/*/paths/*",
    "discovery.rs": "/discover/*",
}
FIELDS = ("What", "Date", "KernelVersion", "Contact", "Description")
errors = []


def code():
    """Path -> access ("ro", "rw" or "wo") of each attribute of the code."""
    found = {}
    for path in sorted((ROOT / "rust/config").rglob("*.rs")):
        attributes = re.findall(r'Attribute::(r[ow]|wo|secret|private)\(\s*c"(\w+)"', path.read_text())
        if attributes and path.name not in DIRECTORIES:
            errors.append(f"{path.relative_to(ROOT)}: has attributes; add its directory to tools/abi.py")
            continue
        for access, name in attributes:
            # A secret can be written only, what is private by root alone.
            found[f"{DIRECTORIES[path.name]}/{name}"] = {"secret": "wo", "private": "rw"}.get(access, access)
    for name in DIRECTORIES:
        if not (ROOT / "rust/config" / name).exists():
            errors.append(f"tools/abi.py: there is no rust/config/{name}")
    return found


def abi():
    """The same of the ABI file. Entries of directories have no access."""
    found = {}
    for entry in re.split(r"\n\n(?=What:)", ABI.read_text())[1:]:
        paths = re.findall(r"^What:\t+(\S+)$", entry, re.M)
        missing = [field for field in FIELDS if not re.search(rf"^{field}:", entry, re.M)]
        if missing:
            errors.append(f"{ABI.name}: {paths[0]}: no {', '.join(missing)}")
        access = re.search(r"^Description:\n\t\t\((R[OW]|WO)\)", entry, re.M)
        for path in paths:
            if not path.startswith(TOP):
                errors.append(f"{ABI.name}: {path} is not below {TOP}")
                continue
            is_directory = path == TOP or path.endswith(">")
            if is_directory == bool(access):
                errors.append(f"{ABI.name}: {path}: only files have (RO), (RW) or (WO)")
            elif access:
                short = re.sub(r"<\w+>", "*", path[len(TOP) :])
                if short in found:
                    errors.append(f"{ABI.name}: {path} is there twice")
                found[short] = access[1].lower()
    return found


def rst():
    """The same of the tables of configfs.rst. A heading or a paragraph that names a directory begins it."""
    found, directory = {}, None
    for line in RST.read_text().splitlines():
        top = re.match(r"``farblk/(\S*)``", line)
        below = re.match(r"``(\w+/<name>/)`` below it", line)
        if top:
            directory = "/" + top[1]
        elif below:
            directory = re.match(r"/\w+/[^/]+/", directory)[0] + below[1]
        row = re.match(r"``(\w+)`` +(ro|rw|wo)\b", line)
        if row and directory:
            found[re.sub(r"<\w+>", "*", directory.rstrip("/")) + "/" + row[1]] = row[2]
    return found


wanted = code()
for where, have in ((ABI, abi()), (RST, rst())):
    where = where.relative_to(ROOT)
    for path in sorted(wanted.keys() | have.keys()):
        name = TOP + path
        if path not in have:
            errors.append(f"{where}: {name} is missing ({wanted[path]} in the code)")
        elif path not in wanted:
            errors.append(f"{where}: the code has no {name}")
        elif wanted[path] != have[path]:
            errors.append(f"{where}: {name} is {have[path]}, in the code {wanted[path]}")
if len(wanted) < 50:
    errors.append(f"only {len(wanted)} attributes found in the code")
print("\n".join(errors) or f"{len(wanted)} attributes")
sys.exit(bool(errors))
