# SPDX-License-Identifier: GPL-2.0
"""Makes trees of calls from logs of instructions that QEMU wrote (tools/vm/instructions.py).

A tree counts how often each function was called in each chain of calls, and how many instructions
it had there itself. What runs on the stack of something else without being called by it has a tree
of its own below the root: (irq), (softirq), (syscall), and (task) for kernel threads. So an
interrupt does not count for what it interrupts. User space is one function, (user).

The order of the instructions alone says who called whom: an instruction behind a call is in the
function that was called, and one behind a return is where that was called. A task that runs again
after others is recognised by where it returns to.
"""
import array
import bisect
import collections
import re
import subprocess
import sys

# What follows an instruction: the next one, or elsewhere.
PLAIN, CALL, RETURN, JUMP, LEAVE = range(5)
KINDS = [("call", CALL), ("ret", RETURN), ("iret", LEAVE), ("sysret", LEAVE), ("j", JUMP), ("loop", JUMP)]
PREFIXES = {"rep", "repz", "repnz", "bnd", "notrack", "lock", "data16", "ds", "cs"}
KERNEL = 1 << 63
USER, SOFTIRQ, SYSCALLS, IRQ, TASK = "(user)", "(softirq)", "(syscall)", "(irq)", "(task)"
# What interrupts and exceptions enter.
ENTRIES = re.compile("asm_(sysvec|exc|common_interrupt|spurious|fred)|(irq|spurious)_entries_start")
# Functions that begin a tree of their own, and the functions that every task returns through.
ROOTS = {"handle_softirqs": SOFTIRQ}
SCHEDULER = {"__switch_to", "__switch_to_asm", "__schedule", "schedule"}
# The compiler's names for a part or a variant of a function.
VARIANT = re.compile(r"\.(cold|part|isra|constprop|llvm)\b.*")


def plain_name(name):
    """A demangled name, as a person wants to read it."""
    name = re.sub(r"\[[0-9a-f]{4,}\]", "", VARIANT.sub("", name))
    return re.sub(r"\bfarblk::", "", name)


class Symbols:
    """The functions of a kernel and of its modules, from /proc/kallsyms."""

    def __init__(self, path):
        self.names, self.modules, self.mangled = {}, {}, {}
        with open(path, encoding="ascii") as f:
            mangled = f.read().splitlines()
        plain = subprocess.run(["c++filt", "-s", "rust"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
        for line, raw in zip(plain, mangled, strict=True):
            address, _, name = line.split(" ", 2)
            name, _, module = name.partition("\t")
            # Of several names of an address the first one counts.
            if not name.startswith((".L", "__pfx_", "__cfi_")) and int(address, 16) not in self.names:
                address = int(address, 16)
                self.names[address] = sys.intern(plain_name(name))
                self.modules[self.names[address]] = module.strip("[]")
                self.mangled[address] = raw.split()[2]
        self.starts = sorted(self.names)

    def find(self, address):
        """Where the function begins that has this instruction; None for user space."""
        i = bisect.bisect_right(self.starts, address)
        return self.starts[i - 1] if address >= KERNEL and i else None


class Instructions:
    """All instructions that the logs have, each with a number."""

    def __init__(self, symbols):
        self.symbols = symbols
        self.number, self.text = {}, {}
        self.pc, self.start, self.function, self.entry = [], [], [], []
        self.kind, self.behind = [], []

    def add(self, pc):
        """The number of one that was not executed before."""
        start = self.symbols.find(pc)
        name = USER if start is None else self.symbols.names[start]
        entry = bool(ENTRIES.match(name)) and (pc == start or name.endswith("_entries_start"))
        for column, value in zip((self.pc, self.start, self.function, self.entry), (pc, start, name, entry)):
            column.append(value)
        self.kind.append(PLAIN)
        self.behind.append(pc)
        self.define(len(self.pc) - 1)
        return len(self.pc) - 1

    def define(self, number):
        """Takes what is known of one by now."""
        size, words = self.text.get(self.pc[number], (1, []))
        op = next((word for word in words if word not in PREFIXES), "")
        if self.function[number] is not USER:
            self.kind[number] = next((kind for name, kind in KINDS if op.startswith(name)), PLAIN)
        self.behind[number] = self.pc[number] + size

    def describe(self, line):
        """Takes a line "0xADDRESS:  BYTES  INSTRUCTION". Where the bytes need a second line, that has
        no instruction."""
        address, _, rest = line.decode("ascii").partition(":")
        hexes, _, words = rest.strip().partition("  ")
        size, pc = len(hexes.split()), int(address, 16)
        if words.strip():
            self.described = pc
            self.text[pc] = (size, words.split())
        else:
            pc = self.described
            self.text[pc] = (self.text[pc][0] + size, self.text[pc][1])
        number = self.number.get(b"%016x" % pc)
        if number is not None:
            self.define(number)

    def first(self, functions):
        """The first instructions of these functions."""
        return {n for n, name in enumerate(self.function) if name in functions and self.pc[n] == self.start[n]}

    def read(self, path):
        """The numbers of the instructions of a log, in their order."""
        numbers, known = array.array("I"), self.number
        with open(path, "rb", buffering=1 << 20) as log:
            for line in log:
                if line.startswith(b"Trace"):
                    pc = line.split(b"/", 2)[1]
                    number = known.get(pc)
                    if number is None:
                        number = known[pc] = self.add(int(pc, 16))
                    numbers.append(number)
                elif line.startswith(b"0x"):
                    self.describe(line)
                elif line.startswith((b"Stopped", b"cpu_io_recompile")) and numbers:
                    # It was not executed: QEMU has something else to do first.
                    numbers.pop()
        return numbers


class Node:
    """A function in a chain of calls."""
    __slots__ = ("function", "children", "own", "calls", "total")

    def __init__(self, function):
        self.function, self.children, self.own, self.calls = function, {}, 0, 0

    def child(self, function):
        got = self.children.get(function)
        if got is None:
            got = self.children[function] = Node(function)
        return got

    def add(self, other):
        """Adds the counts of another tree."""
        self.own += other.own
        self.calls += other.calls
        for name, child in other.children.items():
            self.child(name).add(child)

    def clear(self):
        self.own = self.calls = 0
        for child in self.children.values():
            child.clear()

    def sum(self):
        self.total = self.own + sum(child.sum() for child in self.children.values())
        return self.total


class Frame:
    """A call that has not returned: where it returns to, or None if that is not known; and if a
    context begins there, what was interrupted."""
    __slots__ = ("node", "back", "interrupted")

    def __init__(self, node, back=None, interrupted=None):
        self.node, self.back, self.interrupted = node, back, interrupted

    def same(self, other):
        return self.back == other.back and self.node.function is other.node.function


class Walk:
    """Follows the calls of instructions."""

    def __init__(self, instructions):
        self.of = instructions
        self.root = Node("")
        self.lost = collections.Counter()
        self.suspended = []  # stacks of tasks
        self.returns = None  # of a task whose stack is not known yet
        self.stack = None
        self.before = None

    def begin(self, function):
        """The frame of a function of which nothing below is known."""
        return Frame(self.root.child(USER) if function is USER else self.root.child(TASK).child(function))

    def push(self, node, back=None, interrupted=None):
        node.calls += 1
        self.stack.append(Frame(node, back, interrupted))
        return node

    def run(self, numbers):
        of = self.of
        kinds, functions, pcs, entry = of.kind, of.function, of.pc, of.entry
        if self.stack is None:
            self.stack = [self.begin(functions[numbers[0]])]
            self.before = numbers[0], PLAIN
        last, kind = self.before
        node = self.stack[-1].node
        for number in numbers:
            function = functions[number]
            if kind == LEAVE:
                node, last, kind = self.leave(function, last)
            if entry[number] and not entry[last]:
                node = self.push(self.root.child(IRQ).child(function), None, (last, kind))
            elif kind == PLAIN or kind == JUMP:
                if function is not functions[last]:
                    if functions[last] is USER:
                        node = self.push(self.root.child(SYSCALLS).child(function), None, (last, PLAIN))
                    else:
                        node = self.jump(function)
            elif kind == CALL:
                # A call of what follows is for the address alone.
                if pcs[number] != of.behind[last]:
                    node = self.push(self.below(node, function), of.behind[last])
                    if function == "__switch_to_asm":
                        self.suspended = self.suspended[-100:] + [self.stack]
                        self.stack = [self.begin(function)]
                        self.returns = []
                        node = self.stack[-1].node
            elif kind == RETURN:
                node = self.ret(pcs[number], function)
            node.own += 1
            last, kind = number, kinds[number]
        self.before = last, kind

    def leave(self, function, last):
        """An interrupt or a system call has ended."""
        while self.stack and self.stack[-1].interrupted is None:
            self.stack.pop()
        if self.stack:
            # What follows belongs to what was interrupted.
            last, kind = self.stack.pop().interrupted
            if self.stack:
                return self.stack[-1].node, last, kind
        self.stack = [self.begin(function)]
        return self.stack[-1].node, last, PLAIN

    def jump(self, function):
        """Control is in another function without a call: one that jumped here before, or one that is
        called in place of this one's return."""
        stack = self.stack
        if stack[-1].node.function is function:
            return stack[-1].node
        if function is USER:
            self.stack = [self.begin(function)]
            return self.stack[-1].node
        top = len(stack) - 1
        back = stack[top].back
        while top and back is not None and stack[top].interrupted is None and stack[top - 1].back == back:
            top -= 1
            if stack[top].node.function is function:
                del stack[top + 1:]
                return stack[top].node
        return self.push(self.below(stack[-1].node, function), back)

    def below(self, node, function):
        """The node of a function that was called there."""
        root = ROOTS.get(function)
        return (self.root.child(root) if root else node).child(function)

    def ret(self, pc, function):
        stack = self.stack
        top = len(stack) - 1
        while top >= 0 and stack[top].interrupted is None and stack[top].back is not None:
            if stack[top].back == pc:
                # Those that were left by a jump return there, too.
                while top and stack[top - 1].back == pc and stack[top - 1].node.function is not function:
                    top -= 1
                del stack[top:]
                if not stack:
                    stack.append(self.begin(function))
                return stack[-1].node
            top -= 1
        if any(frame.interrupted is not None for frame in stack[:top + 1]):
            # A return that is no end of a call.
            self.lost[f"{stack[-1].node.function} returns to {function}"] += 1
            return self.push(stack[-1].node.child(function))
        return self.bottom(pc, function, top)

    def bottom(self, pc, function, top):
        """A return from the lowest frame that is known."""
        stack = self.stack
        if top < len(stack) - 1:
            self.lost[f"{stack[-1].node.function} returns to {function}"] += 1
            self.returns = None
        if self.returns is not None:
            self.returns.append(pc)
            if function not in SCHEDULER:
                fits = [rest for rest in map(self.after, self.suspended) if rest is not None]
                self.returns = None
                if fits and all(len(rest) == len(fits[0]) and all(map(Frame.same, rest, fits[0])) for rest in fits):
                    # Which of them does not matter.
                    self.suspended = [old for old in self.suspended if old[:len(fits[0])] != fits[0]]
                    self.stack = fits[0]
                    return self.stack[-1].node
        self.stack = [self.begin(function)]
        return self.stack[-1].node

    def after(self, stack):
        """What is left of a stack after the returns that were seen, if they fit."""
        top = len(stack)
        for pc in self.returns:
            if not top or stack[top - 1].back != pc:
                return None
            while top and stack[top - 1].back == pc:
                top -= 1
        return stack[:top] or None


class Calls:
    """The tree of all windows of a job, per I/O, and what else is known of them."""

    def __init__(self):
        self.root, self.ios, self.instructions = Node(""), 0, 0
        self.lost, self.addresses, self.modules = collections.Counter(), collections.Counter(), {}

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            print("ios", self.ios, self.instructions, sep="\t", file=f)
            for what, times in self.lost.most_common():
                print("lost", times, what, sep="\t", file=f)
            for name, module in sorted(self.modules.items()):
                print("module", module, name, sep="\t", file=f)
            for (module, symbol, offset), times in sorted(self.addresses.items()):
                print("at", times, module, symbol, offset, sep="\t", file=f)

            def write(node, depth):
                print(depth, node.own, node.calls, node.function, sep="\t", file=f)
                for _, child in sorted(node.children.items()):
                    write(child, depth + 1)
            write(self.root, 0)

    @classmethod
    def load(cls, path):
        self, chain = cls(), []
        with open(path, encoding="utf-8") as f:
            for line in f:
                what, *words = line.rstrip("\n").split("\t")
                if what == "ios":
                    self.ios, self.instructions = map(int, words)
                elif what == "lost":
                    self.lost[words[1]] = int(words[0])
                elif what == "module":
                    self.modules[words[1]] = words[0]
                elif what == "at":
                    self.addresses[words[1], words[2], int(words[3])] = int(words[0]) / self.ios
                else:
                    del chain[int(what):]
                    node = chain[-1].child(words[2]) if chain else self.root
                    node.own, node.calls = int(words[0]) / self.ios, int(words[1]) / self.ios
                    chain.append(node)
        self.root.sum()
        return self


def window(numbers, starts, ends):
    """Where the part of a log begins and ends that counts, and how many I/Os it has. starts and
    ends are the instructions with which an I/O starts and ends. As many are under way where that
    part begins as where it ends: with many at a time they come in bursts, and otherwise some would
    have only been started there, or only been completed."""
    at, level = [], 0
    for i, number in enumerate(numbers):
        if number in starts:
            at.append((i, level))
            level += 1
        elif number in ends:
            level -= 1
    # What comes before is for the walk to learn the stacks of the tasks.
    skip, first, best = len(at) // 8, {}, (0, 0, 0)
    for n, (i, level) in enumerate(at[skip:]):
        begin, of = first.setdefault(level, (n, i))
        best = max(best, (n - begin, of, i))
    ios, begin, end = best
    return begin, end, ios


def follow(instructions, paths, starts, ends, modules):
    """The calls in these logs. starts and ends are the functions that each I/O enters once. The
    addresses of instructions are kept for these modules."""
    out = Calls()
    for path in paths:
        numbers = instructions.read(path)
        begin, end, ios = window(numbers, instructions.first(starts), instructions.first(ends))
        if ios < 5:
            out.lost[f"{path}: there are only {ios} I/Os"] += 1
            continue
        walk = Walk(instructions)
        walk.run(numbers[:begin])
        walk.root.clear()
        walk.lost.clear()
        part = numbers[begin:end]
        walk.run(part)
        out.root.add(walk.root)
        out.lost.update(walk.lost)
        out.ios += ios
        out.instructions += len(part)
        for number, times in collections.Counter(part).items():
            start, name = instructions.start[number], instructions.function[number]
            if start is not None:
                if instructions.pc[number] not in instructions.text:
                    out.lost[f"QEMU does not say what the instruction {instructions.pc[number]:x} of {name} is"] += times
                out.modules[name] = instructions.symbols.modules[name]
                if out.modules[name] in modules:
                    out.addresses[out.modules[name], instructions.symbols.mangled[start], instructions.pc[number] - start] += times
    if not out.ios:
        raise SystemExit(f"error: there are hardly any I/Os in {', '.join(paths)}")
    return out
