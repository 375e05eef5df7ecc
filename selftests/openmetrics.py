#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads OpenMetrics text from stdin and fails if it breaks a rule of OpenMetrics 1.0.

It also fails if it has what the textfile collector of node_exporter cannot read: a type that the
older text format has not, or a timestamp. Prints the number of values.
"""

import math
import re
import sys

NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
# What a sample of each type may end with.
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]Inf|NaN")


def refuse(number, why):
    sys.exit(f"line {number}: {why}")


def number_of(text, line):
    if not NUMBER.fullmatch(text):
        refuse(line, f"{text!r} is no number")
    return float(text)


def labels_of(text, line):
    labels, at = {}, 0
    while text and at < len(text):
        found = LABEL.match(text, at)
        if not found:
            refuse(line, f"labels {text!r}")
        if found[1] in labels or found[1].startswith("__"):
            refuse(line, f"label {found[1]!r}")
        labels[found[1]] = found[2]
        at = found.end()
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                refuse(line, f"labels {text!r}")
            at += 1
    return labels


class Family:
    def __init__(self, name):
        self.name = name
        self.type = self.unit = self.help = None
        self.samples = []
        # The label sets, in their order.
        self.metrics = []

    def add(self, line, name, labels, value):
        if not self.type:
            refuse(line, f"{name} has no TYPE")
        if name not in [self.name + suffix for suffix in SUFFIXES[self.type]]:
            refuse(line, f"{name} is no sample of the {self.type} {self.name}")
        if self.type != "gauge" and not (value >= 0 and math.isfinite(value)):
            refuse(line, f"{value} in a {self.type}")
        key = (name, tuple(sorted(labels.items())))
        if key in [other[0] for other in self.samples]:
            refuse(line, f"{name} with these labels for the second time")
        metric = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        if metric not in self.metrics:
            self.metrics.append(metric)
        elif self.metrics[-1] != metric:
            refuse(line, f"{name} is not beside the others with these labels")
        if (self.type, name.endswith("_bucket")) == ("histogram", True) and "le" not in labels:
            refuse(line, "a bucket without le")
        self.samples.append((key, metric, labels, value))

    def finish(self, line):
        if not self.help:
            refuse(line, f"{self.name} has no HELP")
        if self.unit is not None and not self.name.endswith("_" + self.unit):
            refuse(line, f"the name {self.name} does not end with the unit {self.unit}")
        if self.type == "counter" and self.name.endswith("_total"):
            refuse(line, f"the family {self.name} ends with _total")
        if self.type == "histogram":
            for metric in self.metrics:
                self.histogram(line, [s for s in self.samples if s[1] == metric])

    def histogram(self, line, samples):
        last, counted = (-math.inf, 0.0), None
        have = {}
        for (name, _), _, labels, value in samples:
            if name.endswith("_bucket"):
                end = number_of(labels["le"], line)
                if not (end > last[0] and value >= last[1] and value == int(value)):
                    refuse(line, f"the bucket {labels} of {self.name} is not in order")
                last = (end, value)
            else:
                have[name[len(self.name):]] = value
        counted = have.get("_count")
        if last[0] != math.inf:
            refuse(line, f"{self.name} has no bucket +Inf")
        if ("_sum" in have) != ("_count" in have) or (counted is not None and counted != last[1]):
            refuse(line, f"the count of {self.name} is {counted}, not {last[1]}")


def main():
    text = sys.stdin.buffer.read().decode()
    if not text.endswith("# EOF\n"):
        sys.exit("the end is not # EOF")
    families, family, line = {}, None, 0
    for line, row in enumerate(text[:-1].split("\n"), 1):
        if row == "# EOF":
            break
        comment = re.fullmatch(rf"# (TYPE|UNIT|HELP) ({NAME}) (.+)", row)
        if comment:
            word, name, rest = comment.groups()
            if not family or family.name != name:
                if family:
                    family.finish(line)
                if name in families:
                    refuse(line, f"{name} for the second time")
                family = families[name] = Family(name)
            if family.samples or getattr(family, word.lower()) is not None:
                refuse(line, f"{word} of {name} is not where it has to be")
            if word == "TYPE" and rest not in SUFFIXES:
                refuse(line, f"the type {rest}")
            setattr(family, word.lower(), rest)
            continue
        sample = SAMPLE.fullmatch(row)
        if not sample or not family:
            refuse(line, f"{row!r}")
        value = number_of(sample[3], line)
        family.add(line, sample[1], labels_of(sample[2] or "", line), value)
    if line != text.count("\n"):
        refuse(line, "text after # EOF")
    if family:
        family.finish(line)
    names = set(families)
    for other in families.values():
        for suffix in SUFFIXES[other.type]:
            if suffix and other.name + suffix in names:
                sys.exit(f"{other.name}{suffix} is a sample and a family")
    print(sum(len(family.samples) for family in families.values()))


main()
