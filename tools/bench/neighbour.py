#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The latency of a host's I/O beside one that keeps all memory of the export that it can have; for tools/bench/neighbour."""
import argparse
import glob
import json
import re
import statistics
import sys


def percentiles(path):
    """In us, by percentile."""
    with open(path, encoding="ascii") as lines:
        job = json.load(lines)["jobs"][0]
    latency = next(job[way]["lat_ns"] for way in ("read", "write") if job[way]["total_ios"])
    return {float(name): ns / 1000 for name, ns in latency["percentile"].items()} | {"max": latency["max"] / 1000}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for option in "--commit", "--kernel":
        p.add_argument(option, required=True)
    p.add_argument("--limit", type=float, required=True, help="of the ratio at p99")
    p.add_argument("out", help="folder of the run")
    args = p.parse_args()
    found = {}
    for path in sorted(glob.glob(f"{args.out}/smp/**/*.json", recursive=True)):
        match = re.search(r"([a-z0-9_]+)\.(alone|silent|slow|many)\.([0-9]+)\.json$", path)
        if match and match[3] != "0":
            found.setdefault(match[1], {}).setdefault(match[2], []).append(percentiles(path))
    if not found:
        sys.exit(f"no results below {args.out}")
    rows, bad = [], 0
    print(f"{'us':<14}{'hog':<8}{'p50 alone':>11}{'beside':>9}{'x':>6}{'p99 alone':>12}{'beside':>9}{'x':>6}{'max alone':>12}{'beside':>9}")
    for name, sides in found.items():
        for kind in sorted(sides.keys() - {"alone"}):
            row = {"job": name, "hog": kind, "repeats": len(sides["alone"])}
            text = f"{name:<14}{kind:<8}"
            for at, width in (50.0, 11), (99.0, 12), ("max", 12):
                key = "max" if at == "max" else f"p{at:g}"
                alone, hog = (statistics.median(run[at] for run in sides[side]) for side in ("alone", kind))
                row[key] = {"alone_us": alone, "hog_us": hog, "ratio": hog / alone}
                text += f"{alone:>{width}.0f}{hog:>9.0f}" + ("" if at == "max" else f"{hog / alone:>6.2f}")
            bad += row["p99"]["ratio"] > args.limit
            rows.append(row)
            print(text)
    report = {"schema": "farblk.neighbour/2", "commit": args.commit, "kernel": args.kernel, "limit": args.limit, "jobs": rows}
    with open(f"{args.out}/report.json", "w", encoding="ascii") as lines:
        json.dump(report, lines, indent=1)
    print(f"{args.out}/report.json")
    if bad:
        sys.exit(f"beyond {args.limit:g} x at p99: {bad} of {len(rows)}")


if __name__ == "__main__":
    main()
