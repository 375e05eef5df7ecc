#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
import argparse, array, bisect, collections, fnmatch, json, os, re, subprocess, sys

NORMAL, CALL, RET, JUMP, LEAVE, SYSCALL = range(6)
# Functions at which another context begins on the stack of the one that was interrupted.
ENTRY = re.compile(r"asm_(sysvec|exc|common_interrupt|spurious)|irq_entries_start|spurious_entries_start|common_interrupt_entry")
SOFTIRQ = {"handle_softirqs", "__do_softirq"}
SCHEDULER = {"__switch_to", "__switch_to_asm", "__schedule", "schedule"}
SUFFIX = re.compile(r"\.(cold|part|isra|constprop|llvm)\b.*")
KERNEL = 1 << 63
USER = "(user)"


class Symbols:
    def __init__(self, path):
        table = {}
        with open(path, encoding="ascii") as f:
            lines = subprocess.run(["c++filt", "-s", "rust"], stdin=f, capture_output=True, text=True, check=True).stdout.splitlines()
        for line in lines:
            address, _, name = line.split(" ", 2)
            name, _, module = name.partition("\t")
            if not name.startswith((".L", "__pfx_", "__cfi_")):
                table.setdefault(int(address, 16), (name, module))
        self.at = sorted(table)
        self.table = table

    def find(self, pc):
        """The function and its address."""
        if pc < KERNEL:
            return USER, 0
        i = bisect.bisect_right(self.at, pc) - 1
        if i < 0:
            return "(unknown)", 0
        name, module = self.table[self.at[i]]
        return shorten(SUFFIX.sub("", name)), self.at[i]


def shorten(name):
    """A Rust name without what nobody wants to read."""
    if "::" not in name:
        return name
    name = re.sub(r"\[[0-9a-f]{8,}\]", "", name)
    name = re.sub(r"\bfarblk::", "", name)
    return name


class Trace:
    """The instructions that QEMU logged, as indices of those that there are."""

    def __init__(self, path, symbols, text):
        """QEMU says what an instruction is when it first translates it, which may have been for an earlier trace: text remembers."""
        self.pc, self.kind, self.next, self.func = [], [], [], []
        self.entry = []
        index, ids = {}, array.array("I")
        with open(path, "rb", buffering=1 << 20) as f:
            pending = None
            for line in f:
                if line[:5] == b"Trace":
                    pc = line.split(b"/", 2)[1]
                    i = index.get(pc)
                    if i is None:
                        i = index[pc] = self.add(int(pc, 16), text, symbols)
                    ids.append(i)
                elif line[:2] == b"0x":
                    pc, _, rest = line.decode().partition(":")
                    pc = int(pc, 16)
                    hexes, _, words = rest.strip().partition("  ")
                    if words.strip():
                        pending = pc
                        text[pc] = [len(hexes.split()), words.strip()]
                    elif pending is not None:
                        if re.fullmatch(r"([0-9a-f]{2} ?)+", hexes):
                            text[pending][0] += len(hexes.split())
                        else:
                            text[pc] = [1, hexes]
                elif line[:7] == b"Stopped" and ids:
                    ids.pop()
        self.ids = ids

    def add(self, pc, text, symbols):
        size, words = text.get(pc, (1, "?"))
        words = words.replace("rep ", "").replace("repz ", "").replace("bnd ", "").replace("notrack ", "")
        op = words.split()[0]
        kind = NORMAL
        if op.startswith("call") or op == "lcall":
            kind = CALL
        elif op.startswith("ret") and not op.startswith("retf"):
            kind = RET
        elif op.startswith(("iret", "sysret", "sysexit", "eret", "lret", "retf")):
            kind = LEAVE
        elif op == "syscall":
            kind = SYSCALL
        elif op.startswith(("j", "loop")):
            kind = JUMP
        name, start = symbols.find(pc)
        if pc < KERNEL and kind not in (SYSCALL,):
            kind = NORMAL
        self.pc.append(pc)
        self.kind.append(kind)
        self.next.append(pc + size)
        self.func.append(name)
        self.entry.append(pc == start)
        return len(self.pc) - 1


class Node:
    """A function called in a chain of calls."""
    __slots__ = ("parent", "func", "children", "cost", "calls", "total")

    def __init__(self, parent, func):
        self.parent, self.func, self.children, self.cost, self.calls = parent, func, {}, 0, 0

    def child(self, func):
        got = self.children.get(func)
        if got is None:
            got = self.children[func] = Node(self, func)
        return got


ANY = None  # a return address that is not known


class Walk:
    """Follows the calls and returns of a trace. A stack is a list of (node, return address, is it where a context begins)."""

    def __init__(self, trace):
        self.t = trace
        self.root = Node(None, "")
        self.unknown = self.root.child("(task)")
        self.lost = collections.Counter()
        self.suspended = []
        self.observed = None

    def frame(self, func):
        return (self.unknown.child(func), ANY, False)

    def run(self, ids):
        t = self.t
        K, F, PC, NEXT, E = t.kind, t.func, t.pc, t.next, t.entry
        stack = [self.frame(F[ids[0]])]
        node = stack[-1][0]
        prev, prevkind, func = ids[0], NORMAL, F[ids[0]]
        irq_root, soft_root, sys_root, user = (self.root.child(x) for x in ("(irq)", "(softirq)", "(syscall)", USER))
        for i in ids:
            f = F[i]
            if prevkind == NORMAL:
                if f is not func and f != func:
                    node = self.enter(stack, i, f, func, irq_root, user, prev)
            elif prevkind == JUMP:
                if f is not func and f != func:
                    node = self.enter(stack, i, f, func, irq_root, user, prev)
            elif prevkind == CALL:
                if f == func and PC[i] == NEXT[prev]:
                    pass
                elif ENTRY.match(f):
                    stack.append((irq_root.child(f), ANY, True))
                    node = stack[-1][0]
                    node.calls += 1
                else:
                    if f in SOFTIRQ:
                        node = soft_root.child(f)
                    else:
                        node = node.child(f)
                    node.calls += 1
                    stack.append((node, NEXT[prev], False))
                    if f == "__switch_to_asm":
                        self.suspended = self.suspended[-100:] + [stack]
                        stack = [self.frame(f)]
                        node = stack[-1][0]
                        self.observed = []
            elif prevkind == RET:
                stack = self.ret(stack, i, f, irq_root)
                node = stack[-1][0]
            elif prevkind == LEAVE:
                n = len(stack) - 1
                while n >= 0 and not stack[n][2]:
                    n -= 1
                if n >= 0:
                    del stack[n:]
                else:
                    stack.clear()
                if not stack:
                    stack.append((user, ANY, False) if f == USER else self.frame(f))
                node = stack[-1][0]
                if node.func != f:
                    if f == USER:
                        stack[:] = [(user, ANY, False)]
                    elif ENTRY.match(f):
                        stack.append((irq_root.child(f), ANY, True))
                    else:
                        self.lost["leave " + node.func + " -> " + f] += 1
                        stack.append(self.frame(f))
                    node = stack[-1][0]
            elif prevkind == SYSCALL:
                node = sys_root.child(f)
                node.calls += 1
                stack.append((node, ANY, True))
            node.cost += 1
            prev, prevkind, func = i, K[i], f

    def enter(self, stack, i, f, func, irq_root, user, prev):
        """Control got into another function without a call."""
        if ENTRY.match(f) and not ENTRY.match(func):
            stack.append((irq_root.child(f), ANY, True))
            node = stack[-1][0]
            node.calls += 1
            return node
        if f == USER:
            self.lost["user from " + func] += 1
            stack[:] = [(user, ANY, False)]
            return user
        # A jump back into one that jumped here.
        node, back, begins = stack[-1]
        n = len(stack) - 1
        while n > 0 and stack[n][1] == back and not stack[n][2] and stack[n - 1][1] == back and back is not ANY:
            n -= 1
            if stack[n][0].func == f:
                del stack[n + 1:]
                return stack[-1][0]
        node = node.child(f)
        node.calls += 1
        stack.append((node, back if not begins else ANY, False))
        return node

    def ret(self, stack, i, f, irq_root):
        pc = self.t.pc[i]
        n = len(stack) - 1
        while n >= 0 and not stack[n][2]:
            if stack[n][1] == pc:
                while n > 0 and stack[n - 1][1] == pc and stack[n - 1][0].func != f:
                    n -= 1
                del stack[n:]
                if stack and stack[-1][0].func == f:
                    return stack
                # The function of the frame below is another name of this one (e.g. after a jump in the middle).
                if stack:
                    return stack
                return [self.frame(f)]
            if stack[n][1] is ANY:
                break
            n -= 1
        if n >= 0 and stack[n][2]:
            # Return below where the context began: a "ret" used as a jump.
            self.lost["ret in context " + stack[-1][0].func + " -> " + f] += 1
            stack.append((stack[-1][0].child(f), ANY, False))
            return stack
        # The bottom, whose caller is not known. Who came there by a jump lies there, too.
        while n == len(stack) - 1 and n > 0 and stack[n - 1][1] is ANY and not stack[n - 1][2]:
            stack.pop()
            n -= 1
        if self.observed is not None and len(stack) - 1 == n:
            self.observed.append(pc)
            fits = [s for s in self.suspended if self.fits(s)]
            if not fits:
                self.observed = None
            elif f in SCHEDULER:
                # All tasks have these calls.
                pass
            elif all(self.same(s, fits[0]) for s in fits[1:]):
                got = fits[0]
                self.suspended = [s for s in self.suspended if s is not got]
                keep = self.popped(got)
                self.observed = None
                if keep:
                    return keep
        elif n < 0 or len(stack) - 1 != n:
            self.lost["ret " + stack[-1][0].func + " -> " + f] += 1
        del stack[max(n, 0):]
        stack.append(self.frame(f))
        return stack

    def popped(self, stack):
        """The stack after the returns that were observed."""
        stack = list(stack)
        for pc in self.observed:
            if not stack or stack[-1][1] is ANY:
                return None
            while stack and stack[-1][1] == pc:
                stack.pop()
        return stack or None

    def fits(self, stack):
        n = len(stack) - 1
        for pc in self.observed:
            if n < 0 or stack[n][1] is ANY:
                return True
            if stack[n][1] != pc:
                return False
            while n >= 0 and stack[n][1] == pc:
                n -= 1
        return True

    @staticmethod
    def same(a, b):
        return [x[1] for x in a] == [x[1] for x in b] and [x[0].func for x in a] == [x[0].func for x in b]


MARK = {"blkdev_read_iter", "blkdev_write_iter"}


def walk(node, depth=0):
    yield node, depth
    for child in sorted(node.children.values(), key=lambda c: c.func):
        yield from walk(child, depth + 1)


def calls(args):
    """Makes the trees of calls of traces, which are given in the order in which they were made."""
    symbols, text = Symbols(args.kallsyms), {}
    for path in args.traces:
        trace = Trace(path, symbols, text)
        marks = {i for i, (f, e) in enumerate(zip(trace.func, trace.entry)) if f in MARK and e}
        at = [n for n, i in enumerate(trace.ids) if i in marks]
        skip = len(at) // 8
        if len(at) < 10:
            raise SystemExit(f"error: {path}: only {len(at)} I/Os")
        w = Walk(trace)
        # From the first ones the stacks are learnt.
        w.run(trace.ids[:at[skip]])
        for node, _ in walk(w.root):
            node.cost = node.calls = 0
        w.lost.clear()
        w.run(trace.ids[at[skip]:at[-1]])
        ios = len(at) - 1 - skip
        with open(f"{path.removesuffix('.trace')}.calls", "w") as f:
            print(ios, len(trace.ids), file=f)
            for node, depth in walk(w.root):
                print(depth, node.cost, node.calls, node.func, sep="\t", file=f)
            for what, n in w.lost.most_common():
                print("lost", n, what, sep="\t", file=f)


class Calls:
    def __init__(self, path):
        self.root, self.lost = Node(None, ""), []
        with open(path) as f:
            self.ios = int(f.readline().split()[0])
            at = [self.root]
            for line in f:
                depth, *rest = line.rstrip("\n").split("\t")
                if depth == "lost":
                    self.lost.append(rest)
                    continue
                depth = int(depth)
                if depth == 0:
                    continue
                node = at[depth - 1].child(rest[2])
                node.cost, node.calls = int(rest[0]) / self.ios, int(rest[1]) / self.ios
                del at[depth:]
                at.append(node)
        self.sum(self.root)

    def sum(self, node):
        node.total = node.cost
        for child in node.children.values():
            self.sum(child)
            node.total += child.total

    def functions(self):
        """Of each function its own cost, that with all that it calls, and calls."""
        own, all_, n = collections.Counter(), collections.Counter(), collections.Counter()

        def visit(node, above):
            own[node.func] += node.cost
            n[node.func] += node.calls
            if node.func not in above:
                all_[node.func] += node.total
                above = above | {node.func}
            for child in node.children.values():
                visit(child, above)
        visit(self.root, frozenset())
        return own, all_, n


def pattern(text):
    return re.compile(".*".join(re.escape(part) for part in text.split("*")) + r"\Z", re.S)


class Stages:
    """The table: lines "= NAME TITLE" are the stages in their order, others are rules, of which the first one that fits counts:
    STAGE | STAGE OF THE CALLER | FUNCTION."""

    def __init__(self, path):
        self.titles, self.rules, self.known = {}, [], {}
        with open(path, encoding="ascii") as f:
            for line in f:
                line = line.strip()
                if not line or line.startswith("#"):
                    continue
                if line.startswith("="):
                    _, name, title = line.split(None, 2)
                    self.titles[name] = title
                    continue
                stage, under, func = (word.strip() for word in line.split("|"))
                self.rules.append((stage, [pattern(word) for word in under.split()], pattern(func)))
        unknown = {stage for stage, _, _ in self.rules} - set(self.titles)
        if unknown:
            raise SystemExit(f"error: {path}: no such stage: {', '.join(unknown)}")

    def of(self, func, above):
        got = self.known.get((func, above))
        if got is None:
            got = next((stage for stage, under, what in self.rules if what.match(func) and any(u.match(above) for u in under)), above)
            self.known[func, above] = got
        return got

    def costs(self, calls):
        cost = collections.Counter()
        entries = collections.defaultdict(collections.Counter)

        def visit(node, above):
            stage = self.of(node.func, above)
            cost[stage] += node.cost
            entries[stage][node.func] += node.cost
            for child in node.children.values():
                visit(child, stage)
        for child in calls.root.children.values():
            visit(child, "other")
        return cost, entries


def show(node, least, depth=0):
    if node.total < least:
        return
    yield f"{node.total:9.1f} {node.cost:9.1f} {node.calls:7.2f} {'  ' * depth}{node.func}"
    for child in sorted(node.children.values(), key=lambda c: -c.total):
        yield from show(child, least, depth + 1)


def lay_out(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows)


def fio(path):
    with open(path) as f:
        job = json.load(f)["jobs"][0]
    side = max(job["read"], job["write"], key=lambda s: s["total_ios"])
    return 1e9 / side["iops"], side["lat_ns"]["percentile"]["50.000000"]


def report(args):
    stages = Stages(args.stages)
    for job in args.jobs:
        data = {}
        for peer in args.peers:
            path = f"{args.folder}/{peer}.{job}"
            if os.path.exists(path + ".calls"):
                data[peer] = (Calls(path + ".calls"), fio(path + ".json"))
        print(f"\n=== {job}: instructions per I/O\n")
        costs = {peer: stages.costs(c)[0] for peer, (c, _) in data.items()}
        rows = [["stage", *data]]
        for name, title in stages.titles.items():
            if any(costs[peer][name] >= 0.5 for peer in data):
                rows.append([title, *(f"{costs[peer][name]:.0f}" for peer in data)])
        rows.append(["all (trace)", *(f"{c.root.total:.0f}" for c, _ in data.values())])
        rows.append(["time per I/O (fio, ns)", *(f"{f[0]:.0f}" for _, f in data.values())])
        rows.append(["p50 of latency (fio, ns)", *(f"{f[1]:.0f}" for _, f in data.values())])
        rows.append(["I/Os traced", *(f"{c.ios}" for c, _ in data.values())])
        print(lay_out(rows))
        if args.verbose:
            for peer, (c, _) in data.items():
                print(f"\n--- {peer} {job}: where each stage's instructions are")
                _, entries = stages.costs(c)
                for name in stages.titles:
                    if entries[name]:
                        print(f"{name}: " + ", ".join(f"{f} {n:.0f}" for f, n in entries[name].most_common(12) if n >= 10))
        for peer, (c, _) in data.items():
            own, all_, n = c.functions()
            print(f"\n--- {peer} {job}: top {args.top} functions by their own instructions per I/O (own, calls)\n")
            print(lay_out([["function", "own", "calls"]] + [[f[:140], f"{x:.0f}", f"{n[f]:.2f}"] for f, x in own.most_common(args.top)]))
            print(f"\n--- {peer} {job}: with all that they call (inclusive, own, calls)\n")
            print(lay_out([["function", "inclusive", "own", "calls"]] +
                          [[f[:140], f"{x:.0f}", f"{own[f]:.0f}", f"{n[f]:.2f}"] for f, x in all_.most_common(args.inclusive) if f]))
            with open(f"{args.folder}/{peer}.{job}.tree", "w") as f:
                f.write("\n".join(show(c.root, 5)) + "\n")


def main():
    sys.setrecursionlimit(10000)
    p = argparse.ArgumentParser()
    sub = p.add_subparsers(required=True)
    one = sub.add_parser("calls")
    one.add_argument("kallsyms")
    one.add_argument("traces", nargs="+")
    one.set_defaults(call=calls)
    two = sub.add_parser("report")
    two.add_argument("folder")
    two.add_argument("--stages", required=True)
    two.add_argument("--peers", nargs="+", required=True)
    two.add_argument("--jobs", nargs="+", required=True)
    two.add_argument("--top", type=int, default=40)
    two.add_argument("--inclusive", type=int, default=100)
    two.add_argument("--verbose", action="store_true")
    two.set_defaults(call=report)
    args = p.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
