# SPDX-License-Identifier: GPL-2.0
"""Turns what the guests measured into a table, report.json and plot.svg; started by tools/bench/run."""
import argparse
import datetime
import glob
import json
import os
import statistics

UNITS = {"p50": "us", "cost": "us/IO", "iops": "IOPS", "mib": "MiB/s"}
REFERENCE = "nvme"
# The peer in question, and those whose better one it is compared with.
CANDIDATE = "farblk-block"
RIVALS = ("nvme", "rnbd")
BETTER = "better of " + " and ".join(RIVALS)
COLOURS = ["#9aa0a6", "#e8a33d", "#3b6fb6", "#c0504d", "#4f9d69", "#7f5fa8", "#444444"]

# The project's goals: (job, numerator, sum of these, limit, "at most" or "at least").
GOALS = [
    ("4k-read-qd1-icount", "farblk", ("raw", "brd"), 1.10, "at most"),
    ("4k-write-qd1-icount", "farblk", ("raw", "brd"), 1.10, "at most"),
    ("4k-read-qd1-icount", "farblk", ("raw handler", "brd"), 1.10, "at most"),
    ("4k-write-qd1-icount", "farblk", ("raw handler", "brd"), 1.10, "at most"),
    ("4k-read-qd32-icount", "farblk", ("nvme",), 0.5, "at most"),
    ("4k-write-qd32-icount", "farblk", ("nvme",), 0.5, "at most"),
    ("128k-read-qd4-icount", "farblk", ("raw",), 1 / 0.95, "at most"),
    ("128k-write-qd4-icount", "farblk", ("raw",), 1 / 0.95, "at most"),
    ("4k-read-qd32", "farblk", ("nvme",), 2.0, "at least"),
    ("4k-write-qd32", "farblk", ("nvme",), 2.0, "at least"),
    ("128k-read-qd4", "farblk", ("raw",), 0.95, "at least"),
    ("128k-write-qd4", "farblk", ("raw",), 0.95, "at least"),
    ("4k-read-qd1-polled", "farblk", ("nvme",), 0.25, "at most"),
    ("4k-read-qd1-icount", CANDIDATE, (BETTER,), 0.80, "at most"),
    ("4k-write-qd1-icount", CANDIDATE, (BETTER,), 0.90, "at most"),
    ("4k-read-qd32-icount", CANDIDATE, (BETTER,), 1 / 1.25, "at most"),
    ("4k-write-qd32-icount", CANDIDATE, (BETTER,), 1 / 1.25, "at most"),
    ("128k-read-qd4-icount", CANDIDATE, (BETTER,), 1 / 1.05, "at most"),
    ("128k-write-qd4-icount", CANDIDATE, (BETTER,), 1 / 1.05, "at most"),
    ("4k-read-qd1", CANDIDATE, (BETTER,), 0.65, "at most"),
    ("4k-write-qd1", CANDIDATE, (BETTER,), 0.65, "at most"),
    ("4k-read-qd1-polled", CANDIDATE, (BETTER,), 0.35, "at most"),
    ("4k-write-qd1-polled", CANDIDATE, (BETTER,), 0.35, "at most"),
    ("4k-read-qd32", CANDIDATE, (BETTER,), 1.25, "at least"),
    ("4k-write-qd32", CANDIDATE, (BETTER,), 1.25, "at least"),
    ("128k-read-qd4", CANDIDATE, (BETTER,), 1.05, "at least"),
    ("128k-write-qd4", CANDIDATE, (BETTER,), 1.05, "at least"),
]

# An idle connection, KiB per queue: (side, limit).
MEMORY_GOALS = [("client", 256), ("server", 100)]


def read_jobs(path, modes):
    jobs = []
    with open(path) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                mode, name, completion, rw, size, depth, ms, metric, title = line.split(maxsplit=8)
                if mode not in modes:
                    continue
                jobs.append({"mode": mode, "name": name, "completion": completion, "rw": rw, "bytes": int(size), "depth": int(depth),
                             "milliseconds": int(ms), "metric": metric, "unit": UNITS[metric], "title": title.strip()})
    return jobs


def value(data, metric, p50_key="p50_ns"):
    """The metric of one result: fio's JSON, or that of a peer that measures in its own way. None if it failed."""
    if "jobs" in data:
        job = data["jobs"][0]
        if job["error"]:
            return None
        side = max(job["read"], job["write"], key=lambda s: s["total_ios"])
        if not side["total_ios"]:
            return None
        p50, rate, size = side["lat_ns"]["percentile"]["50.000000"], side["iops"], side["bw_bytes"] / side["iops"]
    else:
        p50, rate, size = data[p50_key], data["ios"] * 1e9 / data["ns"], data["bytes"]
    return {"p50": p50 / 1000, "cost": 1e6 / rate, "iops": rate, "mib": rate * size / 2**20}[metric]


def collect(folder, jobs, peers):
    results = {}
    for job in jobs:
        # The handler is a second way to end raw's latency: not a column, but there for the goals.
        for peer, key in [(peer, "p50_ns") for peer in peers] + [("raw handler", "handler_p50_ns")] * (job["metric"] == "p50"):
            values = []
            for path in sorted(glob.glob(f"{folder}/{job['mode']}/bench/{peer.split()[0]}.{job['name']}.*.json")):
                try:
                    with open(path) as f:
                        got = value(json.load(f), job["metric"], key)
                except (ValueError, KeyError, ZeroDivisionError):
                    got = None
                if got is not None:
                    values.append(got)
            if values:
                results.setdefault(job["name"], {})[peer] = {"median": statistics.median(values), "values": values}
        got = results.get(job["name"], {})
        rivals = [peer for peer in RIVALS if peer in got]
        # Without one of them the better one is not known, but for what cannot poll.
        if rivals and (len(rivals) == len(RIVALS) or job["completion"] == "poll"):
            best = (min if lower_is_better(job["unit"]) else max)(rivals, key=lambda peer: got[peer]["median"])
            got[BETTER] = {**got[best], "peer": best}
    return results


def lower_is_better(unit):
    return unit in (UNITS["p50"], UNITS["cost"])


def comparisons(jobs, results):
    """The candidate against the better rival, job by job."""
    out = {}
    for job in jobs:
        got = results.get(job["name"], {})
        if CANDIDATE in got and BETTER in got:
            out[job["name"]] = {"peer": CANDIDATE, "against": got[BETTER]["peer"], "ratio": got[CANDIDATE]["median"] / got[BETTER]["median"]}
    return out


def collect_memory(folder, peers):
    """What an idle connection takes, in KiB per queue and by kind of memory, and what the server's part takes before that."""
    out = {}
    for peer in peers:
        steps = {}
        for path in glob.glob(f"{folder}/memory/*/{peer}.*.json"):
            side, (_, repeat, _) = path.split("/")[-2], os.path.basename(path).rsplit(".", 2)
            with open(path) as f:
                # The first one loaded modules and filled caches.
                if repeat != "0":
                    steps.setdefault(side, {})[int(repeat)] = json.load(f)
        if len(steps) < 2:
            continue
        queues = next(iter(steps["client"].values()))["queues"]

        def taken(side, before, after, parts):
            rounds = [steps[side][repeat] for repeat in sorted(steps[side])]
            kinds = {}
            for kind in rounds[0][before]:
                values = [(step[after][kind] - step[before][kind]) / parts for step in rounds]
                kinds[kind] = {"median": statistics.median(values), "values": values}
            return kinds

        out[peer] = {"queues": queues, "client": taken("client", "alone", "connected", queues),
                     "server": taken("server", "alone", "connected", queues), "export": taken("server", "none", "alone", 1)}
    return out


def number(x):
    return f"{x:.1f}" if x < 1000 else f"{x:.0f}"


def lay_out(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def table(jobs, peers, results, compared):
    rows = [["", "unit", *peers, *([f"{CANDIDATE} is"] if compared else [])]]
    for job in jobs:
        got = results.get(job["name"], {})
        base = got.get(REFERENCE, {}).get("median")
        row = [job["title"], job["unit"]]
        for peer in peers:
            if peer not in got:
                row.append("-")
                continue
            median = got[peer]["median"]
            row.append(number(median) + (f" {median / base:5.2f}x" if base else ""))
        if compared:
            got = compared.get(job["name"])
            row.append(f"{got['ratio']:.2f}x {got['against']}" if got else "-")
        rows.append(row)
    return lay_out(rows)


def memory_table(memory):
    rows = [["idle connection", "unit", *memory]]
    for side, unit in (("client", "KiB/queue"), ("server", "KiB/queue"), ("export", "KiB")):
        for kind in ("all", "slab", "vmalloc", "percpu"):
            row = [side if kind == "all" else f"  of it {kind}", unit]
            for got in memory.values():
                kib = got[side][kind]
                spread = f" ({min(kib['values']):.0f}..{max(kib['values']):.0f})" if kind == "all" else ""
                row.append(f"{kib['median']:.0f}{spread}")
            rows.append(row)
    return lay_out(rows)


def goals(jobs, results, memory):
    titles = {job["name"]: job["title"] for job in jobs}
    out = []
    for name, peer, parts, limit, sense in GOALS:
        got = results.get(name, {})
        if name not in titles or peer not in got or any(part not in got for part in parts):
            continue
        ratio = got[peer]["median"] / sum(got[part]["median"] for part in parts)
        met = ratio <= limit if sense == "at most" else ratio >= limit
        against = " + ".join(got[part].get("peer", part) for part in parts)
        out.append({"job": name, "title": titles[name], "peer": peer, "against": against, "ratio": ratio, "sense": sense, "limit": limit, "met": met})
    for side, limit in MEMORY_GOALS:
        if CANDIDATE in memory:
            kib = memory[CANDIDATE][side]["all"]["median"]
            out.append({"job": "memory", "title": f"idle queue, {side}", "peer": CANDIDATE, "against": "KiB", "ratio": kib, "sense": "at most",
                        "limit": limit, "met": kib <= limit})
    return out


def text(x, y, what, size=11, anchor="middle", extra=""):
    what = what.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>{what}</text>'


def plot(jobs, peers, results, compared, caption):
    """One panel for each unit, as the scales differ; brd is left out, being no remote disk. Below a job is how the candidate compares."""
    peers = [peer for peer in peers if peer != "brd"]
    colour = {peer: COLOURS[i % len(COLOURS)] for i, peer in enumerate(peers)}
    bar, gap, height, top, left = 26, 30, 220, 70, 20
    parts, x = [], left
    for unit in UNITS.values():
        group = [job for job in jobs if job["unit"] == unit and job["name"] in results]
        values = [results[job["name"]][peer]["median"] for job in group for peer in peers if peer in results[job["name"]]]
        if not values:
            continue
        scale = height / max(values)
        start = x
        for job in group:
            first = x
            for peer in peers:
                got = results[job["name"]].get(peer)
                if got:
                    h = got["median"] * scale
                    parts.append(f'<rect x="{x:.1f}" y="{top + height - h:.1f}" width="{bar - 3}" height="{h:.1f}" fill="{colour[peer]}"/>')
                    parts.append(text(x + bar / 2 - 1, top + height - h - 4, f"{got['median']:.0f}", 9))
                x += bar
            lines = job["title"].split(", ")
            if job["name"] in compared:
                lines.append("{peer}: {ratio:.2f} x {against}".format(**compared[job["name"]]))
            for i, line in enumerate(lines):
                parts.append(text((first + x) / 2, top + height + 16 + 14 * i, line))
            x = max(x, first + (150 if compared else 110)) + gap
        better = "lower is better" if lower_is_better(unit) else "higher is better"
        parts.append(text(start, top - 22, f"{unit} ({better})", 12, "start", ' font-weight="bold"'))
        parts.append(f'<line x1="{start}" y1="{top + height}" x2="{x - gap}" y2="{top + height}" stroke="#888"/>')
        x += gap
    legend = left
    for peer in peers:
        parts.append(f'<rect x="{legend}" y="12" width="12" height="12" fill="{colour[peer]}"/>')
        parts.append(text(legend + 17, 22, peer, 12, "start"))
        legend += 30 + 8 * len(peer)
    parts.append(text(left, top + height + 62, caption, 10, "start"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{x:.0f}" height="{top + height + 75}" font-family="sans-serif">'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--commit", required=True)
    p.add_argument("--kernel", required=True)
    p.add_argument("--jobs", required=True)
    p.add_argument("--modes", required=True, help="what was measured")
    p.add_argument("--must", required=True, help="peers that may not be left out")
    p.add_argument("folder")
    p.add_argument("peers", nargs="+")
    args = p.parse_args()

    jobs = read_jobs(args.jobs, args.modes.split())
    # Without a result, and why: they were not built, or did not come up.
    left_out = {}
    for path in glob.glob(f"{args.folder}/*.error") + glob.glob(f"{args.folder}/*/*/*.error"):
        with open(path, errors="replace") as f:
            left_out[os.path.basename(path).removesuffix(".error")] = ([line.strip() for line in f if line.strip()] or ["no reason given"])[-1]
    peers = [peer for peer in args.peers if peer not in left_out]
    results = collect(args.folder, jobs, peers)
    compared = comparisons(jobs, results)
    memory = collect_memory(args.folder, peers)
    reached = goals(jobs, results, memory)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report = {"schema": "farblk.bench/2", "date": date, "commit": args.commit, "kernel": args.kernel, "cpus": os.cpu_count(),
              "load": os.getloadavg()[0], "peers": peers, "left_out": left_out, "reference": REFERENCE, "jobs": jobs, "results": results,
              "comparisons": compared, "memory": memory, "goals": reached}
    with open(f"{args.folder}/report.json", "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    with open(f"{args.folder}/plot.svg", "w") as f:
        f.write(plot(jobs, peers, results, compared, f"kernel {args.kernel}, farblk {args.commit}, {date}; one guest in software emulation, rxe over a dummy device"))

    print(f"kernel {args.kernel}, farblk {args.commit}; one guest, rxe over a dummy device; x = times {REFERENCE} in the same run")
    print("icount: one CPU, a microsecond is a thousand instructions; the other rows: 2 CPUs in software emulation\n")
    if jobs:
        print(table(jobs, peers, results, compared) + "\n")
    if memory:
        print(memory_table(memory))
        print("medians (least..most); server and client in two guests; export: what the server takes before anybody connects\n")
    for peer, why in left_out.items():
        print(f"left out {peer}: {why}")
    for goal in reached:
        unit = "KiB" if goal["against"] == "KiB" else f"x ({goal['against']})"
        print(f"{'met   ' if goal['met'] else 'missed'} {goal['title']}: {goal['peer']} is {goal['ratio']:.3f} {unit}, to be {goal['sense']} {goal['limit']:.3f}")
    print(f"{args.folder}/report.json\n{args.folder}/plot.svg")
    absent = [peer for peer in peers if any(peer not in results.get(job["name"], {}) for job in jobs if job["completion"] == "irq")]
    absent += [peer for peer in left_out if peer in args.must.split()]
    if absent:
        raise SystemExit("error: not everything was measured of: " + " ".join(absent))


if __name__ == "__main__":
    main()
