#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Writes farblk as a series of patches for a kernel tree: tools/upstream/series.py KERNEL-TREE FOLDER

--copies prints the table of the files of rust that are copies of what is in the kernel crate with the
patches of upstream/rust; --copies PAGE fails if the page has another one, and --copies --write PAGE
puts it there.

The patches of upstream/core, upstream/rust and upstream/rxe come first, then the steps of
upstream/steps, each of which builds. A file of upstream/tree takes the place of that of rust with
its name, and of the folder of that: it is what is left of it on top of the patches of
upstream/rust. The patches are signed off by git's user, if there is one. Documentation/upstream.rst
says what is in them, and how they are tested.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import pages

HERE = pathlib.Path(__file__).resolve().parent.parent.parent
DRIVER = "drivers/block/farblk"
PAGES = "Documentation/admin-guide/blockdev/farblk"
# The pages of the driver. The others are of the tool, and of this project's build, tests and
# packages.
OF_THE_DRIVER = ("configfs", "protocol", "rdma", "security", "server", "sessions")
# Files of floors 0 and 1 that only samples use, or files that are not in the series; what must
# not compile; and helpers that the kernel crate has with the patches of upstream/rust.
LEFT_OUT = {"base/file.rs", "base/param.rs", "rdma/misuse.rs", "helpers/block.c", "helpers/kernel.c"}
# The steps of RDMA, with their modules: each needs those before it only.
RDMA = (
    ("03-devices", ["client", "device", "dma", "pd", "quirks", "remnant"]),
    ("04-completions", ["cq"]),
    ("05-requests", ["mr", "wc", "wr"]),
    ("06-connections", ["ah", "cm", "qp", "srq"]),
    ("07-request-layer", ["request", "kunit"]),
)


def git(tree, *arguments, **options):
    return subprocess.run(["git", "-C", tree, *arguments], check=True, text=True, **options)


def text_of(file):
    """Returns the text of a file of upstream, without the line that says its licence."""
    return re.sub(r"\A(?:\W*SPDX-License-Identifier: .*\n)+", "", file.read_text())


def user():
    """Returns the options for a commit: signed off if git has a user, else by nobody."""
    said = [
        subprocess.run(["git", "config", f"user.{key}"], text=True, capture_output=True).stdout.strip()
        for key in ("name", "email")
    ]
    # It may be the user of this repository only, which the one of the series does not know.
    if all(said):
        return ["-c", f"user.name={said[0]}", "-c", f"user.email={said[1]}"], ["--signoff"]
    return ["-c", "user.name=The farblk developers", "-c", "user.email=farblk@example.org"], []


def without_item(text, start):
    """Returns the text without the item of Rust that begins at start: up to its `;` or `}`."""
    depth, at = 0, start
    while True:
        match = re.compile(r"[{}();]|,\n").search(text, at)
        at = match.end()
        if match.group() in "{(":
            depth += 1
        elif match.group() in "})":
            depth -= 1
            if depth == 0 and match.group() == "}":
                break
        elif depth == 0:
            break
    return text[:start].rstrip(" ") + text[at:].removeprefix("\n")


def for_the_tree(text):
    """Returns a Rust file without what is there for other kernels, samples, misuse and examples."""
    gone = re.compile(r"^ *#\[cfg\((?:kernel_\d_\d+|farblk_samples|farblk_misuse|farblk_examples)\)\]\n", re.M)
    while match := gone.search(text):
        # Its documentation goes, too.
        head = re.search(r"(?:^ *///.*\n)*\Z", text[: match.start()], re.M).start()
        text = without_item(text[:head] + text[match.end() :], head)
    text = re.sub(r"^ *#\[cfg\(not\(kernel_\d_\d+\)\)\]\n", "", text, flags=re.M)
    text = re.sub(r"\n\n+( *}\n|\n)", r"\n\1", re.sub(r"\n{3,}", "\n\n", text))
    return re.sub(
        r'^( *)include!\("(bindings/.*?)"\);',
        rf'\1include!(concat!(\n\1    env!("OBJTREE"),\n\1    "/{DRIVER}/\2"\n\1));',
        text,
        flags=re.M,
    )


class Series:
    """A repository of those files of the kernel that the series changes."""

    def __init__(self, kernel, folder):
        self.kernel, self.folder, self.tree = kernel, folder, folder / "tree"
        shutil.rmtree(folder, ignore_errors=True)
        self.tree.mkdir(parents=True)
        git(self.tree, "init", "-q")
        self.who, self.sign = user()
        self.fixes = sorted(HERE.glob("upstream/*/*.patch"))
        changed = {"drivers/block/Kconfig", "drivers/block/Makefile", "MAINTAINERS"}
        changed.add("Documentation/admin-guide/blockdev/index.rst")
        for fix in self.fixes:
            changed.update(re.findall(r"^--- a/(\S+)", fix.read_text(), re.M))
        for path in changed:
            # A patch may change what one before it has added.
            if (kernel / path).exists():
                self.put(path, (kernel / path).read_text())
        self.commit("the kernel", [])
        git(self.tree, "tag", "base")

    def put(self, path, text):
        path = self.tree / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, path, before, text):
        """Puts the text before the first line of the file that begins so."""
        old = (self.tree / path).read_text()
        at = re.search(rf"^{re.escape(before)}", old, re.M).start()
        self.put(path, old[:at] + text + old[at:])

    def commit(self, message, sign):
        git(self.tree, "add", "-A")
        git(self.tree, *self.who, "commit", "-q", *sign, "-F", "-", input=message)

    def apply(self, fix):
        git(self.tree, *self.who, "am", "-q", *self.sign, input=text_of(fix))

    def step(self, name):
        self.commit(text_of(HERE / "upstream/steps" / name), self.sign)

    def rust(self, *names):
        """Takes these files and folders of rust."""
        for name in names:
            top = HERE / "rust" / name
            for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if not file.exists():
                    continue
                path = file.relative_to(HERE / "rust")
                if not file.is_file() or str(path) in LEFT_OUT or "_generated" in file.name:
                    continue
                # It, and the folders that it is in.
                thin = [HERE / "upstream/tree" / each for each in (path, *path.parents)]
                if thin[0].exists():
                    self.put(f"{DRIVER}/{path}", thin[0].read_text())
                elif any(each.with_suffix(".rs").exists() for each in thin[1:-1]):
                    continue
                elif file.suffix == ".rs":
                    self.put(f"{DRIVER}/{path}", for_the_tree(file.read_text()))
                elif file.suffix in {"", ".c", ".h", ".bindgen"} and not file.name.startswith("."):
                    gone = [each.rpartition("/")[2] for each in LEFT_OUT if each.startswith(f"{path.parent}/")]
                    text = re.sub(rf'^#include "(?:{"|".join(map(re.escape, gone))})"\n', "", file.read_text(), flags=re.M)
                    self.put(f"{DRIVER}/{path}", text)

    def floors(self, modules):
        """Writes the main file of a module that has floors 0 and 1 only, or a part of them."""
        lines = "mod bindings;\n"
        for module in modules:
            if module == "kunit":
                lines += "#[cfg(CONFIG_FARBLK_KUNIT_TEST)]\n"
            else:
                lines += '#[allow(dead_code, unused_imports, unused_macros, reason = "the driver uses it")]\n'
            # As the driver has them: what is pure has items that are pub.
            lines += ("pub " if module in ("proto", "session") else "") + f"mod {module};\n"
        text = (HERE / "upstream/floors.rs").read_text().replace("@MODULES@\n", lines + "\n")
        if "base" not in modules:
            text = text.replace("    _release: base::workqueue::ReleaseQueue,\n", "")
            text = text.replace("    _code: base::users::CodeUsers,\n", "")
            text = text.replace("struct Farblk {\n}", "struct Farblk;")
            text = re.sub(r"        let code.*?\)\)?\n    }\n", "        Ok(Self)\n    }\n", text, flags=re.S)
            text = text.replace(", which does nothing yet but run its tests", ", which does nothing yet")
        self.put(f"{DRIVER}/farblk_main.rs", text)

    def documentation(self):
        self.pages = pages.Pages(OF_THE_DRIVER, PAGES, DRIVER, lambda path: any((top / path).exists() for top in (self.tree, self.kernel)))
        for name in OF_THE_DRIVER:
            self.put(f"{PAGES}/{name}.rst", self.pages.page((HERE / f"Documentation/{name}.rst").read_text()))
        title = "farblk: block devices of other hosts over RDMA"
        text = f".. SPDX-License-Identifier: GPL-2.0\n\n{'=' * len(title)}\n{title}\n{'=' * len(title)}\n\n"
        text += "The tool ``farblk`` that the pages name, and the tests, are in the project of the driver, not in\nthe kernel.\n\n"
        text += ".. toctree::\n   :maxdepth: 1\n\n" + "".join(f"   {name}\n" for name in OF_THE_DRIVER)
        self.put(f"{PAGES}/index.rst", text)
        for abi in sorted((HERE / "Documentation/ABI/testing").glob("*")):
            text = re.sub(r"\bDocumentation/([\w-]+\.rst)", rf"{PAGES}/\1", abi.read_text())
            self.put(f"Documentation/ABI/testing/{abi.name}", text)
        index = "Documentation/admin-guide/blockdev/index.rst"
        self.put(index, (self.tree / index).read_text().rstrip("\n") + "\n   farblk/index\n")

    def refuse_strangers(self):
        """Ends if a file names what is in this project only."""
        bad = []
        for top in (DRIVER, PAGES, "Documentation/ABI/testing", "include"):
            for file in sorted(path for path in (self.tree / top).rglob("*") if path.is_file()):
                bad += [f"{file.relative_to(self.tree)}: names {name}, which is not in the series" for name in self.pages.strangers(file.read_text())]
        if bad:
            sys.exit("\n".join(bad))

    def refuse_copies(self):
        """Ends if a file is there whose place the kernel crate takes."""
        for file in sorted((self.tree / DRIVER).rglob("*.rs")):
            if "// UPSTREAM:" in file.read_text():
                sys.exit(f"{file.relative_to(self.tree)}: the kernel crate has it, but upstream/tree has no file for it")

    def write(self):
        for fix in self.fixes:
            self.apply(fix)
        for name in ("Kconfig", "Makefile"):
            self.put(f"{DRIVER}/{name}", (HERE / "upstream/farblk" / name).read_text())
        self.change("drivers/block/Kconfig", 'source "drivers/block/rnbd/Kconfig"', f'source "{DRIVER}/Kconfig"\n\n')
        self.change("drivers/block/Makefile", "obj-$(CONFIG_BLK_DEV_RNBD)", "obj-$(CONFIG_BLK_DEV_FARBLK)	+= farblk/\n")
        # Entries are in the order of the alphabet.
        entry = text_of(HERE / "upstream/farblk/maintainers.txt")
        titles = re.findall(r"^([0-9A-Z][^\n]*)\nM:", (self.tree / "MAINTAINERS").read_text(), re.M)
        after = next(title for title in titles if title > entry and title > "F")
        self.change("MAINTAINERS", after, entry)
        self.put("include/trace/events/farblk.h", (HERE / "include/trace/events/farblk.h").read_text())
        self.rust("bindings.rs", "bindings", "helpers")
        self.floors([])
        self.step("01-bindings")
        floors = ["base", "kunit"]
        self.rust("base.rs", "base", "kunit.rs")
        self.floors(floors)
        self.step("02-base")
        floors.append("rdma")
        self.floors(floors)
        parts = []
        for name, more in RDMA:
            parts += more
            self.rust("rdma.rs", *(path for part in more for path in (f"rdma/{part}.rs", f"rdma/{part}")))
            text = (self.tree / DRIVER / "rdma.rs").read_text()
            for module in re.findall(r"^(?:#\[cfg.*\n)?(?:pub\(crate\) )?mod (\w+);\n", text, re.M):
                if module not in parts:
                    text = re.sub(rf"^(?:#\[cfg.*\n)?(?:pub\(crate\) )?mod {module};\n", "", text, flags=re.M)
            self.put(f"{DRIVER}/rdma.rs", text)
            self.step(name)
        floors.append("block")
        self.rust("block.rs", "block")
        self.floors(floors)
        self.step("08-block")
        self.put("include/uapi/linux/farblk.h", (HERE / "include/uapi/linux/farblk.h").read_text())
        for number, pure in (("09", "proto"), ("10", "session")):
            floors.append(pure)
            self.rust(f"{pure}.rs", pure)
            self.floors(floors)
            self.step(f"{number}-{pure}")
        self.rust(*(part for name in ("link", "config", "client", "server", "stats") for part in (f"{name}.rs", name)))
        self.rust("farblk_main.rs")
        self.step("11-driver")
        self.refuse_copies()
        self.documentation()
        self.refuse_strangers()
        self.step("12-documentation")
        out = self.folder / "patches"
        git(self.tree, *self.who, "format-patch", "-q", "--rfc", "--cover-letter", "-o", str(out.resolve()), "base")
        cover = next(out.glob("0000-*.patch"))
        subject, _, body = text_of(HERE / "upstream/cover-letter.txt").partition("\n\n")
        text = cover.read_text().replace("*** SUBJECT HERE ***", subject)
        cover.write_text(text.replace("*** BLURB HERE ***", body.rstrip("\n")))
        return sorted(out.glob("*.patch"))


def code(text):
    """Returns the number of lines of a Rust file without comments, blank lines and its suite."""
    text = re.split(r"^#\[cfg\(CONFIG_FARBLK_KUNIT_TEST\)\]\n#\[kernel::macros::kunit_tests", text, flags=re.M)[0]
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def copies():
    """Returns the table of the copies, for upstream.rst."""
    patches = {file.name[:4] for file in (HERE / "upstream/rust").glob("*.patch")}
    rows, named = [], set()
    replaced = set((HERE / "upstream/tree").rglob("*.rs"))
    for file in sorted((HERE / "rust").glob("*/*.rs")):
        note = re.search(r"^// UPSTREAM:.*\n(?:// .*\n)*", file.read_text(), re.M)
        if not note:
            continue
        name, numbers = file.relative_to(HERE / "rust"), []
        thin = HERE / "upstream/tree" / name
        for first, last in re.findall(r"\b(\d{4})\b(?:\s(?:// )?to\s(?:// )?(\d{4}))?", note.group()):
            named |= {each for each in patches if first <= each <= (last or first)}
            numbers.append(f"{first} to {last}" if last else first)
            if not {first, last or first} <= patches:
                sys.exit(f"rust/{name}: there is no such patch as {numbers[-1]}")
        texts = [path.read_text() for path in (file, *sorted(file.with_suffix("").rglob("*.rs")))]
        lines = [sum(len(text.splitlines()) for text in texts), sum(map(code, texts)), len(thin.read_text().splitlines()), code(thin.read_text())]
        replaced.discard(thin)
        rows.append((f"``{name}``" + (", folder" if len(texts) > 1 else ""), lines, ", ".join(numbers) or "none"))
    if replaced:
        sys.exit(f"{min(replaced).relative_to(HERE)}: the file of rust whose place it takes has no note that says so")
    if patches - named:
        sys.exit(f"upstream/rust: no note of rust names {' '.join(sorted(patches - named))}")
    rows.append(("all", [sum(lines[at] for _, lines, _ in rows) for at in range(4)], "\\"))
    rows.insert(0, ("copy", ["lines", "code", "left", "code"], "patches"))
    rule = f"{'=' * 28} ====== ====== ====== ====== {'=' * 18}\n"
    text = [f"{name:<28} " + " ".join(f"{each:>6}" for each in lines) + f" {numbers}\n" for name, lines, numbers in rows]
    return "".join([rule, text[0], rule, *text[1:], rule])


def table(arguments):
    """Prints the table of the copies, compares it with that of a page, or puts it there."""
    if not arguments:
        print(copies(), end="")
        return
    page = pathlib.Path(arguments[-1])
    text = page.read_text()
    new = re.sub(r"^=[= ]+=\ncopy .*?\n\n", lambda _: copies() + "\n", text, flags=re.M | re.S)
    if "--write" in arguments:
        page.write_text(new)
    elif new != text or copies() not in text:
        sys.exit(f"{page}: not the table of the copies; put it there: tools/upstream/series.py --copies --write {page}")


def main():
    if sys.argv[1:2] == ["--copies"]:
        table(sys.argv[2:])
        return
    if len(sys.argv) != 3:
        sys.exit("usage: tools/upstream/series.py KERNEL-TREE FOLDER")
    for patch in Series(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])).write():
        print(patch)


main()
