#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
import argparse, array, bisect, collections, fnmatch, json, os, re, subprocess, sys

NORMAL, CALL, RET, JUMP, LEAVE, SYSCALL = range(6)
# Functions at which another context begins on the stack of the one that was interrupted.
ENTRY = re.compile(r"asm_(sysvec|exc|common_interrupt|spurious)|irq_entries_start|spurious_entries_start|common_interrupt_entry")
SOFTIRQ = {"handle_softirqs", "__do_softirq"}
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

    def __init__(self, path, symbols):
        self.pc, self.kind, self.next, self.func = [], [], [], []
        self.entry = []
        index, ids = {}, array.array("I")
        text = {}
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
                elif line[:7] == b"Stopped":
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
    __slots__ = ("parent", "func", "children", "cost", "calls")

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
                        self.suspended.append(stack)
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
        # The bottom, whose caller is not known.
        if self.observed is not None and len(stack) - 1 == n:
            self.observed.append(pc)
            fits = [s for s in self.suspended if self.fits(s)]
            if not fits:
                self.observed = None
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


def walk(node, depth=0):
    yield node, depth
    for child in node.children.values():
        yield from walk(child, depth + 1)


def total(node):
    return node.cost + sum(total(c) for c in node.children.values())


def show(node, ios, least, depth=0, out=sys.stdout):
    t = total(node)
    if t / ios < least:
        return
    print(f"{t / ios:9.1f} {node.cost / ios:9.1f} {node.calls / ios:7.2f} {'  ' * depth}{node.func}", file=out)
    for child in sorted(node.children.values(), key=total, reverse=True):
        show(child, ios, least, depth + 1, out)


MARK = {"blkdev_read_iter", "blkdev_write_iter"}


def load(path, symbols, skip):
    trace = Trace(path, symbols)
    marks = {i for i, (f, e) in enumerate(zip(trace.func, trace.entry)) if f in MARK and e}
    at = [n for n, i in enumerate(trace.ids) if i in marks]
    print(len(trace.ids), "instructions", len(at), "marks", file=sys.stderr)
    w = Walk(trace)
    # Learns the stacks first.
    w.run(trace.ids[:at[skip]])
    for node, _ in walk(w.root):
        node.cost = node.calls = 0
    first = w.lost.copy()
    w.run2 = None
    return trace, w, at, skip


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    symbols = Symbols(sys.argv[2])
    skip = int(sys.argv[3])
    trace = Trace(sys.argv[1], symbols)
    marks = {i for i, (f, e) in enumerate(zip(trace.func, trace.entry)) if f in MARK and e}
    at = [n for n, i in enumerate(trace.ids) if i in marks]
    ios = len(at) - 1 - skip
    print(len(trace.ids), "instructions", len(at), "marks", (at[-1] - at[skip]) / ios, "per I/O")
    w = Walk(trace)
    w.begin = at[skip]
    w.run(trace.ids[:at[-1]])
    print(w.lost.most_common(30))
    show(w.root, len(at), 30)
