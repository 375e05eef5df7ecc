#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Renders README.rst, Documentation and Documentation/ABI as HTML: doc.py LINUX OUT

LINUX is the source of the kernel, whose own program reads the ABI files. Any warning fails, and so does the name of
a file of this project that does not exist.
"""
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from docutils.core import publish_string
from docutils.parsers.rst import roles
from docutils.utils import SystemMessage

ROOT = Path(__file__).resolve().parent.parent
# What is named as ``DIRECTORY/...`` is a file of the project, or a pattern of some. A word in
# capitals stands for a part of the name.
DIRECTORIES = "Documentation|include|rust|samples|selftests|tools"
MADE_BY_BUILD = {"rust/farblk.ko", "tools/farblk/farblk"}


def html(text, name):
    """A page as HTML. Raises SystemMessage at the first warning."""
    settings = {"report_level": 2, "halt_level": 2, "embed_stylesheet": True, "traceback": False}
    return publish_string(text, source_path=str(name), writer_name="html5", settings_overrides=settings)


def missing(text, folder):
    """The files that a page names, and that do not exist."""
    for name in re.findall(rf"``((?:{DIRECTORIES})/[^\s`<>]*|[\w/-]+\.rst)``", text):
        pattern = re.sub(r"\b[A-Z]+\b", "*", name.rstrip("/"))
        if name not in MADE_BY_BUILD and not any(list(place.glob(pattern)) for place in (ROOT, folder)):
            yield name


def abi(linux):
    """The ABI files as one page, made by the kernel's program."""
    command = [sys.executable, "-B", linux / "tools/docs/get_abi.py", "-D", ROOT / "Documentation/ABI"]
    done = subprocess.run([*command, "rest"], capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        sys.exit(f"Documentation/ABI:\n{done.stderr}")
    # The roles of Sphinx, which the kernel uses.
    for role in ("ref", "doc"):
        roles.register_generic_role(role, nodes.literal)
    return done.stdout


def main():
    linux, out = Path(sys.argv[1]), Path(sys.argv[2])
    pages = [ROOT / "README.rst", *sorted((ROOT / "Documentation").glob("*.rst"))]
    texts = {page.relative_to(ROOT): page.read_text() for page in pages}
    bad = 0
    for name, text in texts.items():
        for file in missing(text, (ROOT / name).parent):
            print(f"{name}: there is no {file}")
            bad = 1
    texts[Path("Documentation/ABI.rst")] = abi(linux)
    for name, text in texts.items():
        page = out / name.with_suffix(".html")
        page.parent.mkdir(parents=True, exist_ok=True)
        try:
            page.write_bytes(html(text, name))
        except SystemMessage as message:
            print(message)
            bad = 1
    print(f"{len(texts)} pages in {out}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
