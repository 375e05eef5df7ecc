#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Says where the instructions of an I/O go; started by tools/bench/breakdown."""
import argparse
import collections
import glob
import json
import os
import re
import subprocess
import sys

import breakdown_calls
from breakdown_calls import Calls

# Each I/O of fio enters one of these once when it starts, and one when it ends.
STARTS, ENDS = {"blkdev_read_iter", "blkdev_write_iter"}, {"blkdev_bio_end_io_async"}
# The module whose lines of source are asked for.
LINES_OF = "farblk"
# Where its Rust source is.
FLOORS = {"base", "block", "client", "config", "farblk_main", "link", "proto", "rdma", "server", "session", "stats"}
# The most that the count may differ from the time that fio measures, in percent.
TOLERANCE = 5


def pattern(text):
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.S).fullmatch


class Stages:
    """The table of stages; its head says what is in it."""

    def __init__(self, path):
        self.titles, self.rules, self.known, self.own = {}, [], {}, set()
        with open(path, encoding="ascii") as f:
            for line in map(str.strip, f):
                if line.startswith("="):
                    sign, name, title = line.split(None, 2)
                    self.titles[name] = title
                    if sign == "=+":
                        self.own.add(name)
                elif line and not line.startswith("#"):
                    try:
                        stage, callers, function = map(str.strip, line.split("|"))
                    except ValueError:
                        raise SystemExit(f"error: {path}: not STAGE | STAGES | FUNCTION: {line}") from None
                    if stage not in self.titles:
                        raise SystemExit(f"error: {path}: there is no stage {stage}: {line}")
                    self.rules.append((stage, [pattern(word) for word in callers.split()], pattern(function)))

    def of(self, function, above):
        """The stage of a function, and whether a rule names it."""
        got = self.known.get((function, above))
        if got is None:
            got = next(((stage, True) for stage, callers, what in self.rules if what(function) and any(caller(above) for caller in callers)),
                       (above, False))
            self.known[function, above] = got
        return got

    def costs(self, calls):
        """Stage -> function -> instructions."""
        costs = {name: collections.Counter() for name in self.titles}

        def visit(node, above):
            stage, _ = self.of(node.function, above)
            costs[stage][node.function] += node.own
            for child in node.children.values():
                visit(child, stage)
        for child in calls.root.children.values():
            visit(child, "other")
        return costs

    def landmarks(self, calls):
        """The functions at which a stage begins."""
        found = set()

        def visit(node, above):
            stage, named = self.of(node.function, above)
            if named and stage != above:
                found.add(node.function)
            for child in node.children.values():
                visit(child, stage)
        for child in calls.root.children.values():
            visit(child, "other")
        return found


class Function:
    """What a function costs, wherever it is called: alone, and with all that it calls."""

    def __init__(self):
        self.own = self.total = self.calls = 0


def functions(calls):
    found = collections.defaultdict(Function)

    def visit(node, above):
        got = found[node.function]
        got.own += node.own
        got.calls += node.calls
        if node.function not in above:
            got.total += node.total
            above = above | {node.function}
        for child in node.children.values():
            visit(child, above)
    for child in calls.root.children.values():
        visit(child, frozenset())
    return found


def tree(node, least, depth=0):
    """The lines of a tree of calls."""
    if node.total >= least:
        yield f"{node.total:9.1f} {node.own:9.1f} {node.calls:7.2f}  {'  ' * depth}{node.function}"
        for child in sorted(node.children.values(), key=lambda child: -child.total):
            yield from tree(child, least, depth + 1)


def lay_out(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip() + "\n" for row in rows)


class Lines:
    """Lines of the source of a module that has its debug information."""

    def __init__(self, path):
        self.path = path
        symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.split("\n")
        self.at = {words[2]: int(words[0], 16) for words in map(str.split, symbols) if len(words) == 3 and words[1] in "tT"}

    def find(self, calls, module):
        """A tree: a function, a line of it, the function that the compiler has put there, a line of
        that, and so on."""
        wanted = {}
        for (of, symbol, offset), times in calls.addresses.items():
            if of == module and symbol in self.at:
                wanted[self.at[symbol] + offset] = times
        said = subprocess.run(["addr2line", "-e", self.path, "-j", ".text", "-afi"], input="\n".join(map(hex, wanted)), capture_output=True,
                              text=True, check=True).stdout
        root = breakdown_calls.Node("")
        for part in re.split(r"^0x", said, flags=re.M)[1:]:
            address, *lines = part.splitlines()
            node = root
            for function, line in reversed(list(zip(lines[::2], lines[1::2]))):
                node = node.child(function).child(re.sub(".*/rust/", "", line.partition(" ")[0]))
            node.own += wanted[int(address, 16)]
        root.sum()
        return root

    def files(self, calls):
        """Those of the module's Rust source that have executed instructions for each I/O, which what
        comes now and then has not. Functions of the kernel crate that were inlined are in
        rust/kernel."""
        costs = collections.Counter()

        def visit(node):
            path, colon, _ = node.function.partition(":")
            if colon and path.endswith(".rs") and path.partition("/")[0].removesuffix(".rs") in FLOORS:
                costs[path] += node.total
            for child in node.children.values():
                visit(child)
        visit(self.find(calls, LINES_OF))
        return {path for path, cost in costs.items() if cost >= 1}

    @staticmethod
    def show(node, least, depth=0):
        """What costs so much. What has little but one thing in it is one line of text with that."""
        for child in sorted(node.children.values(), key=lambda child: -child.total):
            if child.total >= least:
                names, cost = [child.function], child.total
                while (inner := max(child.children.values(), key=lambda inner: inner.total, default=child)).total > cost * 0.9 and inner is not child:
                    child = inner
                    names.append(child.function)
                yield f"{cost:9.0f}  {'  ' * depth}{' '.join(names)}\n"
                yield from Lines.show(child, least, depth + 1)


def demangle(text):
    said = subprocess.run(["c++filt", "-s", "rust"], input=text, capture_output=True, text=True, check=True).stdout
    return "".join(breakdown_calls.plain_name(line) for line in said.splitlines(keepends=True))


def fio(path):
    """What fio says of a job: nanoseconds per I/O, and the median of the latency."""
    with open(path, encoding="ascii") as f:
        job = json.load(f)["jobs"][0]
    side = max(job["read"], job["write"], key=lambda side: side["total_ios"])
    return 1e9 / side["iops"], side["lat_ns"]["percentile"]["50.000000"]


def details(stages, calls, args, lines):
    """All that is known of one peer and job."""
    found = functions(calls)
    yield f"{calls.ios} I/Os, {calls.instructions} instructions; all numbers are per I/O\n\n"
    yield "Functions of each stage\n\n"
    for name, costs in stages.costs(calls).items():
        if sum(costs.values()) >= 0.5:
            yield f"{sum(costs.values()):9.0f}  {stages.titles[name]}\n"
            for function, cost in costs.most_common():
                if cost >= 5:
                    yield f"{cost:9.0f}      {function}\n"
    yield f"\nThe {args.top} functions with the most instructions of their own\n\n"
    top = sorted(found.items(), key=lambda item: -item[1].own)[:args.top]
    yield lay_out([["own", "calls", "", "function"]] + [[f"{f.own:.0f}", f"{f.calls:.2f}", "", name] for name, f in top])
    yield "\nWhat functions cost with all that they call: those at which a stage begins, and those of modules\n\n"
    chosen = stages.landmarks(calls) | {name for name in found if calls.modules.get(name)}
    rows = [(name, f) for name, f in sorted(found.items(), key=lambda item: -item[1].total) if name in chosen and f.total >= 20]
    yield lay_out([["inclusive", "own", "calls", "", "function"]] + [[f"{f.total:.0f}", f"{f.own:.0f}", f"{f.calls:.2f}", "", name] for name, f in rows])
    if lines and calls.addresses:
        yield f"\nFiles of {LINES_OF} that have executed instructions: {' '.join(sorted(lines.files(calls)))}\n"
        yield f"\nLines of {LINES_OF} with at least {args.least} instructions, and what the compiler has put there of others\n\n"
        yield demangle("".join(lines.show(lines.find(calls, LINES_OF), args.least)))
    yield "\nThe tree of calls: inclusive, own, calls\n\n"
    for line in tree(calls.root, args.least):
        yield line + "\n"


def report(args):
    stages = Stages(args.stages)
    lines = Lines(args.module) if args.module else None
    wrong = []
    for job in args.jobs:
        found = {}
        for peer in args.peers:
            path = f"{args.folder}/{peer}.{job}"
            if not os.path.exists(path + ".calls"):
                wrong.append(f"{peer}, {job}: not traced")
                continue
            calls = found[peer] = Calls.load(path + ".calls")
            with open(path + ".txt", "w", encoding="utf-8") as f:
                f.writelines(details(stages, calls, args, lines))
            if calls.lost.total() * 100 > calls.ios:
                wrong.append(f"{peer}, {job}: {calls.lost.total()} calls were not understood: {calls.lost.most_common(3)}")
        if not found:
            continue
        costs = {peer: {name: sum(c.values()) for name, c in stages.costs(calls).items()} for peer, calls in found.items()}
        rows = [[f"{job}, instructions per I/O", *found]]
        for name, title in stages.titles.items():
            if any(cost[name] >= 0.5 for cost in costs.values()):
                rows.append(["  " + title, *(f"{cost[name]:.0f}" for cost in costs.values())])
        rows.append(["all", *(f"{calls.root.total:.0f}" for calls in found.values())])
        rows.append(["drivers' own, both ends", *(f"{sum(cost[name] for name in stages.own):.0f}" for cost in costs.values())])
        if lines:
            counts = {peer: len(lines.files(calls)) if calls.addresses else 0 for peer, calls in found.items()}
            rows.append([f"files of {LINES_OF} executed", *(str(count or "") for count in counts.values())])
        times = {peer: fio(f"{args.folder}/{peer}.{job}.json") for peer in found}
        rows.append(["time per I/O (fio, ns)", *(f"{time:.0f}" for time, _ in times.values())])
        rows.append(["  differs by", *(f"{100 * found[peer].root.total / time - 100:+.1f} %" for peer, (time, _) in times.items())])
        rows.append(["median latency (fio, ns)", *(f"{p50:.0f}" for _, p50 in times.values())])
        print(lay_out(rows))
        for peer, (time, _) in times.items():
            if abs(100 * found[peer].root.total / time - 100) > TOLERANCE:
                wrong.append(f"{peer}, {job}: the count differs by more than {TOLERANCE} % from fio's time")
    print(f"functions, lines and trees of calls: {args.folder}/PEER.JOB.txt")
    for line in wrong:
        print(f"warning: {line}")


def calls(args):
    """Makes the trees of all logs of a folder, which are called GUEST.PEER.JOB.WINDOW.trace. They
    are read in the order in which they were made, as each says only what is new to it."""
    windows = collections.defaultdict(list)
    for path in sorted(glob.glob(f"{args.logs}/*.trace"), key=os.path.getmtime):
        _, peer, job, _, _ = os.path.basename(path).split(".")
        windows[f"{peer}.{job}"].append(path)
    instructions = breakdown_calls.Instructions(breakdown_calls.Symbols(args.kallsyms))
    for name, paths in windows.items():
        breakdown_calls.follow(instructions, paths, STARTS, ENDS, {LINES_OF}).save(f"{args.folder}/{name}.calls")
    for path in sum(windows.values(), []) if args.remove else []:
        os.unlink(path)


def main():
    # Chains of calls are long where the trace was not understood.
    sys.setrecursionlimit(20000)
    p = argparse.ArgumentParser(prog="tools/bench/breakdown", description=__doc__)
    commands = p.add_subparsers(required=True)
    c = commands.add_parser("calls", help="logs of instructions -> trees of calls")
    c.add_argument("logs")
    c.add_argument("kallsyms")
    c.add_argument("folder")
    c.add_argument("--remove", action="store_true", help="remove the logs then")
    c.set_defaults(run=calls)
    c = commands.add_parser("report", help="trees of calls -> tables")
    c.add_argument("folder")
    c.add_argument("--stages", required=True)
    c.add_argument("--module", help="farblk.ko with its debug information")
    c.add_argument("--peers", nargs="+", required=True)
    c.add_argument("--jobs", nargs="+", required=True)
    c.add_argument("--top", type=int, default=40, help="functions")
    c.add_argument("--least", type=int, default=5, help="instructions of a line, and of a call in the tree")
    c.set_defaults(run=report)
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
