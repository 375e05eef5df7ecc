#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Makes functions of the examples in the documentation of floor 1: examples.py MODULE

The tests of rustdoc see the public items of a crate that others can link to. farblk is a module, and the items of
floor 1 are pub(crate), so its examples are compiled as a part of the crate: "tools/build examples" compiles it with
--cfg=farblk_examples. MODULE is a copy of the source, in which this writes

- for each file FILE.rs with examples, FILE_examples_generated.rs, in which each code is in the line and column in
  which FILE.rs has it, so that the compiler's messages are right but for that name;
- rust/examples_generated.rs, with a module for each of these. farblk_main.rs includes it.

A block is compiled as rustdoc would: lines that begin with "# " are hidden, and are code; the block is the body of a
function. If it ends with "(())", the function returns a Result.

The fence of an example has no attribute. rustdoc compiles blocks only if it is called with --test, so that there is
nothing to keep it from; "ignore" and the like would put a warning sign beside the example, and take it from rustdoc's
check of its syntax. A block that is no Rust has "text".
"""
import re
import sys
from pathlib import Path

FLOOR = ("base", "block", "rdma")
DOC = re.compile(r"^( *)(//[/!]) ?(.*)$")
HIDDEN = re.compile(r"^( *)#(?: |$)(.*)$")
ESCAPED = re.compile(r"^( *)##")
# The crate denies unsafe code, but a block could allow it.
FORBIDDEN = re.compile(r"\bunsafe\b|unsafe_code|\bbindings::")
ALLOWED = 'dead_code, unused_variables, reason = "an example shows, and nobody calls it"'


class Bad(Exception):
    """What is wrong with a block."""


def code(line):
    """A line of a block as it is compiled, in the same columns."""
    if hidden := HIDDEN.match(line):
        return f"{hidden[1]}  {hidden[2]}".rstrip()
    return ESCAPED.sub(r"\1#", line)


def body(lines, start, name):
    """The lines of the block that begins in line `start`, up to its end."""
    out = []
    for number, line in enumerate(lines[start:], start + 1):
        doc = DOC.match(line)
        if not doc:
            break
        if doc[3].strip() == "```":
            text = "\n".join(out)
            if FORBIDDEN.search(text):
                raise Bad(f"{name}:{start}: an example is safe code, and names no bindings")
            return out
        out.append(f"{doc[1]}    {code(doc[3])}".rstrip())
    raise Bad(f"{name}:{start}: a code block has no end")


def examples(text, name):
    """The text of the generated file; None if there are no examples."""
    lines = text.splitlines()
    out, found, compiled, number, section = [], False, False, 0, ""
    while number < len(lines):
        doc = DOC.match(lines[number])
        number += 1
        out.append("")
        if not doc or doc[3].startswith("# "):
            if section == "# Examples" and not compiled:
                raise Bad(f"{name}:{number}: the section \"# Examples\" above has no example that is compiled")
            section, compiled = doc[3] if doc else "", False
        if not doc:
            continue
        if not doc[3].startswith("```"):
            if doc[3].lstrip().startswith(("```", "~~~")):
                raise Bad(f"{name}:{number}: a fence is \"```\" and begins in the first column")
            continue
        language = doc[3].removeprefix("```").strip()
        if language not in ("", "text"):
            raise Bad(f"{name}:{number}: the fence of an example has no attribute, others have \"text\"")
        block = body(lines, number, name)
        if not language:
            if section != "# Examples":
                raise Bad(f"{name}:{number}: an example is in the section \"# Examples\"")
            found = compiled = True
            result = " -> core::result::Result<(), impl core::fmt::Debug>"
            returns = result if "".join(block).rstrip().endswith("(())") else ""
            out[-1] = f"fn example_{number}(){returns} {{"
        out += [""] * (len(block) + 1) if language else block + ["}"]
        number += len(block) + 1
    return "\n".join(out) + "\n" if found else None


def write(path, text):
    """Writes a file, unless it has this text: then it stays as old as it is."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    root = Path(sys.argv[1]) / "rust"
    bad, modules, count = 0, [], 0
    for path in sorted(path for floor in FLOOR for path in (*root.glob(f"{floor}.rs"), *root.glob(f"{floor}/**/*.rs"))):
        if path.name.endswith("_generated.rs"):
            continue
        name = path.relative_to(root)
        try:
            text = examples(path.read_text(), f"rust/{name}")
        except Bad as what:
            print(what)
            bad = 1
            continue
        if text:
            made = path.with_name(f"{path.stem}_examples_generated.rs")
            write(made, text)
            count += len(re.findall(r"^fn example_", text, re.M))
            of = "_".join(name.with_suffix("").parts)
            modules.append(f'#[allow({ALLOWED})]\nmod {of} {{\n    include!("{made.relative_to(root)}");\n}}\n')
    write(root / "examples_generated.rs", "".join(modules))
    print(f"{count} examples in {len(modules)} files")
    return bad


if __name__ == "__main__":
    sys.exit(main())
