#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads which files of the module import which, and refuses what makes it hard to follow: layout.py [--graph]

- Files of rust/client or rust/server that import each other in a circle of more than two.
- Files of more than 600 lines that do not say at their head why ("Long: ..."): those of the module, of the samples, of the tool and of the tests. Examples in
  the documentation do not count.
- Items of floor 1 that other files see, and that have no documentation: the kernel crate has missing_docs on.
- Types and traits of floor 1 that other files see, without an example, which "tools/build examples" compiles. One that has a use only together with another
  says "See [`OTHER`] for an example.", which has one. Enums that are no more than a list of names need neither.
- Names of RDMA drivers and their devices in the code, but for rust/rdma/quirks.rs, which knows what each of them does.

What a parent module re-exports counts as an import of the file that has it. --graph prints the imports instead.
"""
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
ROOT = TOP / "rust"
# Where no file is long without a reason.
FOLDERS = ("rust", "samples", "tools/farblk/src", "tools/farblk/tests", "tools/hosttest/src", "tools/vm", "selftests")
FLOOR_1 = ("base", "block", "rdma")
LINES_MAX = 600
CIRCLE_MAX = 2
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|super|self)::[^;]+);", re.M)
ITEM = re.compile(r"\s*pub\((?:crate|in crate::\w+)\) (?:unsafe |const |async )*(?:fn|struct|enum|trait|type|const|static) (\w+)")
# Documentation and attributes of a type, and the type.
TYPE = re.compile(r"((?:^ *(?://.*\n|#\[[^\]]*\]\n))*)^pub\(crate\) (?:unsafe )?(struct|enum|union|trait|type) (\w+)(.*)", re.M)
SEE = re.compile(r"^/// See \[`(\w+)`\](?:\(\S+\))? for an example\.$", re.M)
# The body of an enum whose variants have no data. One without variants is no list of names.
NAMES = re.compile(r"^ \{\n(?:    (?://.*|[A-Z]\w*(?: = \S+)?,)\n)+\}\n")
# Those that need no example.
WITHOUT_EXAMPLE = {
    "Slot": "the macro rdma_client makes it",
    "Remnants": "only implementations of DeviceObject use it, all of which are in rdma",
    "SendSlot": "only implementations of Ulp use it, all of which are in rdma",
    "Body": "as SendSlot",
    "Wr": "as SendSlot",
    "RequestState": "nobody can name it but as the Shared of Requests",
    "RequestSlot": "nobody can name it but as the Slot of Requests",
    "Param": "only samples have it, so it is no part of the module that examples are compiled in",
    "Value": "as Param",
    "Text": "as Param",
}
# Those of drivers/infiniband in Linux 7.3, that of the tests, and of two devices, alone or as a
# part of a name.
DRIVERS = "bng_re|bnxt|cxgb4|efa|erdma|hfi1|hns|ionic|irdma|mana|mlx4|mlx5|mthca|ocrdma|pvrdma|qedr|qib|rdmavt|rvt|rxe|siw|testhca|usnic|connectx|e810"
DRIVER = re.compile(rf"(?<![a-z])(?:{DRIVERS})(?![a-z])", re.I)
QUIRKS = ROOT / "rdma/quirks.rs"
INLINE = re.compile(r"\b(crate(?:::\w+)+)")


def module(path):
    """The path of a file in the crate, as a tuple of names."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return () if parts == ("farblk_main",) else parts


def flatten(tree, prefix=()):
    """The paths that a use tree names."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    names = tuple(name for name in head.split("::") if name)
    if not brace:
        return [prefix + names[:-1] + (names[-1].split(" as ")[0],)]
    body, depth, part, paths = rest[: rest.rindex("}")], 0, "", []
    for char in body + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part.strip():
                paths += flatten(part, prefix + names)
            part = ""
        else:
            part += char
    return paths


def absolute(path, of):
    """A path as it is seen from the crate's root."""
    if path[0] == "crate":
        return path[1:]
    here = of if path[0] == "self" else of[:-1]
    path = path[1:]
    while path and path[0] == "super":
        here, path = here[:-1], path[1:]
    return here + path


def read():
    """Module -> (text without comments and tests, paths that it names)."""
    modules = {}
    for path in sorted(ROOT.rglob("*.rs")):
        if "kunit" in path.parts or path.name == "kunit.rs" or "bindings" in path.parts:
            continue
        text = re.sub(r"//.*", "", path.read_text())
        text = text.split("mod tests {")[0]
        of = module(path)
        names = [absolute(p, of) for use in USE.findall(text) for p in flatten(re.sub(r"\s+", " ", use))]
        names += [tuple(p.split("::"))[1:] for p in INLINE.findall(USE.sub("", text))]
        modules[of] = (path, names, dict(exports(text, of)))
    return modules


def exports(text, of):
    """Name -> path of what a module re-exports."""
    for use in re.findall(r"^pub(?:\([^)]*\))? use ([^;]+);", text, re.M):
        for path in flatten(re.sub(r"\s+", " ", use)):
            full = absolute(path, of) if path[0] in ("crate", "self", "super") else of + path
            yield path[-1], full


def file_of(name, modules, depth=0):
    """The module that a path leads into."""
    for end in range(len(name), -1, -1):
        at = name[:end]
        if at in modules:
            rest = name[end:]
            again = modules[at][2].get(rest[0]) if rest and depth < 5 else None
            return file_of(again + rest[1:], modules, depth + 1) if again else at
    return ()


def circles(graph):
    """Sets of modules that reach each other."""
    index, low, stack, found, count = {}, {}, [], [], [0]

    def visit(node):
        index[node] = low[node] = count[0]
        count[0] += 1
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def undocumented():
    """Items of floor 1 without documentation, as FILE:LINE: NAME."""
    for path in sorted(path for floor in FLOOR_1 for path in ROOT.glob(f"{floor}/**/*.rs")):
        if "kunit" in path.parts or path.name in ("kunit.rs", "misuse.rs"):
            continue
        documented, attribute, macro = False, False, False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = line.strip()
            macro = macro and line != "}" or line.startswith("macro_rules!")
            if (item := ITEM.match(line)) and not documented and not macro:
                yield f"{path.relative_to(TOP)}:{number}: {item[1]} has no documentation"
            # Attributes, which may have several lines, stand between an item and its documentation.
            attribute = text.startswith("#[") or attribute
            if not attribute and not (text.startswith("//") and not text.startswith("///")):
                documented = text.startswith("///")
            if attribute and text.endswith("]"):
                attribute = False


def without_example():
    """Types of floor 1 that need an example and have none, as FILE:LINE: NAME."""
    paths = sorted(path for floor in FLOOR_1 for path in ROOT.glob(f"{floor}/**/*.rs"))
    texts = {path: path.read_text() for path in paths if "kunit" not in path.parts and path.name not in ("kunit.rs", "misuse.rs")}
    types = [(path, text, item) for path, text in texts.items() for item in TYPE.finditer(text)]
    shown = {item[3] for _, _, item in types if "/// # Examples\n" in item[1]}
    for path, text, item in types:
        docs, kind, name, _ = item.groups()
        at = f"{path.relative_to(TOP)}:{text[: item.start(2)].count(chr(10)) + 1}: {name}"
        see = SEE.search(docs)
        if see and see[1] not in shown:
            yield f"{at} says that {see[1]} has an example"
        if kind == "type" or "/// # Examples\n" in docs or see or name in WITHOUT_EXAMPLE or kind == "enum" and NAMES.match(text, item.end(3)):
            continue
        yield f"{at} has no example"
    for name in sorted(set(WITHOUT_EXAMPLE) - {item[3] for _, _, item in types}):
        yield f"tools/layout.py: {name} is not there, and needs no exception"


def drivers():
    """Names of drivers where they do not belong, as FILE:LINE: NAME."""
    for path in sorted(path for folder in ("rust", "samples", "upstream/tree") for path in (TOP / folder).rglob("*")):
        made = "generated" in path.name or path.name.startswith(".")
        if path == QUIRKS or made or not (path.suffix in (".rs", ".c", ".h") or path.name == "Kbuild"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if name := DRIVER.search(line):
                yield f"{path.relative_to(TOP)}:{number}: {name[0]} is a driver's name, and belongs in {QUIRKS.relative_to(TOP)}"


def count(text):
    """The number of lines, without the sections of examples."""
    number, examples, block, before = 0, False, False, ""
    for line in text.splitlines():
        doc = re.match(r" *//[/!] ?(.*)", line)
        said = doc[1] if doc else ""
        if said.startswith("```"):
            block = not block
        elif not doc:
            examples = block = False
        elif not block and said.startswith("# "):
            examples = said == "# Examples"
            # The blank line before it.
            number -= examples and before.strip() in ("///", "//!")
        number += not examples
        before = line
    return number


def main():
    sys.setrecursionlimit(10000)
    modules = read()
    graph = {of: sorted({file_of(n, modules) for n in names} - {of, ()}) for of, (_, names, _) in modules.items()}
    if "--graph" in sys.argv[1:]:
        for of, others in graph.items():
            print("/".join(of) or "main", "->", " ".join("/".join(o) for o in others))
        return 0
    bad = 0
    for side in ("client", "server"):
        inside = {of: [o for o in others if o[:1] == (side,)] for of, others in graph.items() if of[:1] == (side,)}
        for circle in circles(inside):
            if len(circle) > CIRCLE_MAX:
                print(f"rust/{side}: {len(circle)} files import each other: " + " ".join("/".join(of) for of in circle))
                bad = 1
    for line in [*undocumented(), *without_example(), *drivers()]:
        print(line)
        bad = 1
    for path in sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*")):
        if path.suffix not in (".rs", ".py", ".sh") or path.name.endswith("_generated.rs"):
            continue
        text = path.read_text()
        lines = count(text)
        if lines > LINES_MAX and "Long: " not in "".join(text.splitlines(True)[:30]):
            print(f"{path.relative_to(TOP)}: {lines} lines, and no reason at its head")
            bad = 1
    return bad


sys.exit(main())
