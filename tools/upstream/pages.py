# SPDX-License-Identifier: GPL-2.0
"""Pages of this project as pages of the kernel, for tools/upstream/series.py.

A file below rust is named by its place in the kernel. References to what is not in the series, which
are to other pages, to files and to commands of this project, are left out: a parenthesis that holds
nothing else, and else the sentence. That does not work in tables and examples, where they are errors.
"""

import re
import textwrap

WIDTH = 100
LITERAL = re.compile(r"``([^`]+)``")
# A parenthesis of references: a page, a file, a section.
PARENTHESIS = re.compile(r"\s*\((?:see )?((?:``[^`]+``|\*[^*]+\*)(?:(?:,| and) (?:``[^`]+``|\*[^*]+\*))*)\)")
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z`*\"(])|(?<=[.?!]\))\s+(?=[A-Z`*\"(])")
ITEM = re.compile(r"\s*(?:[-*] |\d+\. )?")
TABLE = re.compile(r"^\s*(?:=+ [= ]*=|\+[-=+]+\+)", re.M)
# What no file of the series may name.
OUTSIDE = (
    re.compile(r"(?<![\w/.-])((?:rust|tools|samples|selftests|upstream|build)/[\w./*-]*\w)"),
    re.compile(r"(?<![\w/.-])((?:Documentation/)?[\w/-]*\.rst)\b"),
    re.compile(r"(?<![\w/.-])([\w-]+\.sh)\b"),
    re.compile(r"`(make [a-z][\w-]*)"),
)


class Pages:
    """The pages of the series, with what else is in it."""

    def __init__(self, names, folder, driver, exists):
        """`exists` tells whether the kernel has a file or folder, with the series."""
        self.names, self.folder, self.driver, self.exists = names, folder, driver, exists

    def place(self, name):
        """Returns what the kernel calls a file or page, and None if it is not there."""
        if name.endswith(".rst"):
            stem = name.removeprefix("Documentation/").removesuffix(".rst")
            return f"{stem}.rst" if stem in self.names else None
        if name.startswith("rust/"):
            path = f"{self.driver}/{name.removeprefix('rust/')}"
            return path if self.exists(path) else None
        return None if any(pattern.match(f"`{name}" if name.startswith("make ") else name) for pattern in OUTSIDE) else name

    def is_outside(self, text):
        return any(self.place(name) is None for name in LITERAL.findall(text))

    def item(self, lines):
        """Returns the lines of a paragraph, or of an item of a list, as the kernel has them."""
        text = " ".join(line.strip() for line in lines)
        first = ITEM.match(lines[0]).group()
        rest = re.match(r"\s*", lines[1]).group() if len(lines) > 1 else " " * len(first)
        text = text[len(first.lstrip()) :]
        new = PARENTHESIS.sub(lambda match: "" if self.is_outside(match[1]) else match[0], text)
        new = " ".join(sentence for sentence in SENTENCE.split(new) if not self.is_outside(sentence))
        new = LITERAL.sub(lambda match: f"``{self.place(match[1])}``", new)
        if new == text:
            return lines
        # A literal is one word to the wrapping.
        new = LITERAL.sub(lambda match: match[0].replace(" ", "\0"), new)
        wrapped = textwrap.wrap(new, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
        return [line.replace("\0", " ") for line in wrapped]

    def page(self, text):
        """Returns a page of this project as one of the kernel."""
        blocks, code = [], None
        for block in re.split(r"\n(?:[ \t]*\n)+", text.rstrip("\n")):
            lines = block.split("\n")
            indent = len(lines[0]) - len(lines[0].lstrip())
            # What is indented more than the `::` before it is an example.
            code = code if code is not None and indent > code else None
            if code is None and not TABLE.search(block):
                items = []
                for line in lines:
                    inner = len(line) - len(line.lstrip())
                    begins = ITEM.match(line).group().strip()
                    # A term stands before what is indented below it.
                    if not items or begins or (len(items[-1]) > 1 and inner != deep) or (len(items[-1]) == 1 and inner > deep and not listed):
                        items.append([])
                        listed = bool(begins)
                    items[-1].append(line)
                    deep = inner
                lines = [line for item in items for line in self.item(item)]
            if lines:
                blocks.append("\n".join(lines))
            if code is None and lines and lines[-1].endswith("::"):
                code = indent
        return "\n\n".join(blocks) + "\n"

    def strangers(self, text):
        """Returns what a file of the series names that is not in it."""
        for pattern in OUTSIDE:
            for name in pattern.findall(text):
                known = self.exists(name) or name.removesuffix(".rst") in self.names
                if not known:
                    yield name
