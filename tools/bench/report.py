# SPDX-License-Identifier: GPL-2.0
"""Turns what the guests measured into tables, report.json and plots; started by tools/bench/run."""
import argparse
import datetime
import glob
import json
import os
import statistics

import goals
import plot

UNITS = {"p50": "us", "cost": "us/IO", "iops": "IOPS", "mib": "MiB/s"}
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
MODES = {
    "hca-icount": "test HCA without a wire, 1 CPU",
    "hca-2cpus": "test HCA, wire of 2 us and 100 Gbit/s, 2 CPUs",
    "hca-4cpus": "test HCA, wire of 2 us and 100 Gbit/s, 4 CPUs",
    "rxe-icount": "rxe, 1 CPU",
    "rxe-2cpus": "rxe, 2 CPUs in real time",
    "scale-1cpu": "test HCA without a wire, 1 CPU",
    "scale-2cpus": "test HCA without a wire, 2 CPUs",
    "scale-4cpus": "test HCA without a wire, 4 CPUs",
}
REFERENCE = "nvme"
# The peer in question, and those whose better one it is compared with.
CANDIDATE = "farblk-block"
RIVALS = ("nvme", "rnbd")


def read_jobs(path, modes):
    """The jobs of these modes, in the order of the modes. A name is unique with its mode before it."""
    jobs = []
    with open(path) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                of, name, completion, rw, size, depth, count, ms, metric, title = line.split(maxsplit=9)
                for mode in of.split(","):
                    jobs.append({"mode": mode, "name": f"{mode}/{name}", "completion": completion, "rw": rw, "bytes": int(size), "depth": int(depth),
                                 "jobs": int(count), "milliseconds": int(ms), "metric": metric, "unit": UNITS[metric], "title": title.strip()})
    return sorted((job for job in jobs if job["mode"] in modes), key=lambda job: modes.index(job["mode"]))


def lower_is_better(job):
    return job["metric"] in ("p50", "cost")


def values(p50, rate, size):
    return {"p50": p50, "cost": 1e6 / rate, "iops": rate, "mib": rate * size / 2**20}


def of_fio(data):
    """What one fio measured, by peer; without those that failed."""
    out = {}
    for job in data["jobs"]:
        side = max(job["read"], job["write"], key=lambda s: s["total_ios"])
        if not job["error"] and side["total_ios"]:
            percentiles = {float(name): ns / 1000 for name, ns in side["lat_ns"]["percentile"].items()}
            out[job["jobname"]] = {**values(percentiles[50.0], side["iops"], side["bw_bytes"] / side["iops"]), "percentiles": percentiles}
    return out


def of_raw(peer, data):
    """The same of what measured itself. Its latency may also end in the completion handler, before a thread runs."""
    percentiles = {float(name): ns / 1000 for name, ns in data["percentiles_ns"].items()}
    rate = data["ios"] * 1e9 / data["ns"]
    return {peer: {**values(percentiles[50.0], rate, data["bytes"]), "percentiles": percentiles},
            f"{peer} handler": {**values(data["handler_p50_ns"] / 1000, rate, data["bytes"]), "percentiles": {}}}


def read_results(folder, job):
    """What each repeat of a job gave, by peer."""
    out = {}
    mode, name = job["name"].split("/")
    for path in sorted(glob.glob(f"{folder}/{mode}/bench/*.{name}.*.json")):
        with open(path, errors="replace") as f:
            text = f.read()
        try:
            # fio says first what failed.
            data, _ = json.JSONDecoder().raw_decode(text[text.index("{"):])
            got = of_fio(data) if "jobs" in data else of_raw(os.path.basename(path).split(".")[0], data)
        except (ValueError, KeyError, ZeroDivisionError):
            continue
        for peer, measured in got.items():
            out.setdefault(peer, []).append(measured)
    return out


def spread(measured):
    """How far repeats differ, relative to their median."""
    return (max(measured) - min(measured)) / statistics.median(measured)


def summary(job, repeats):
    """Of one peer: the median of the repeats in the job's metric and of each percentile of the latency, and their spreads."""
    measured = [repeat[job["metric"]] for repeat in repeats]
    tails = {f"{at:g}": [repeat["percentiles"][at] for repeat in repeats] for at in PERCENTILES if all(at in repeat["percentiles"] for repeat in repeats)}
    return {"median": statistics.median(measured), "values": measured, "spread": spread(measured),
            "percentiles": {at: statistics.median(us) for at, us in tails.items()}, "percentile_spreads": {at: spread(us) for at, us in tails.items()}}


def collect(folder, jobs):
    results = {}
    for job in jobs:
        got = {peer: summary(job, repeats) for peer, repeats in read_results(folder, job).items()}
        rivals = [peer for peer in RIVALS if peer in got]
        # Without one of them the better one is not known, but for what cannot poll.
        if rivals and (len(rivals) == len(RIVALS) or job["completion"] == "poll"):
            best = (min if lower_is_better(job) else max)(rivals, key=lambda peer: got[peer]["median"])
            got[goals.BETTER] = {**got[best], "peer": best}
        if got:
            results[job["name"]] = got
    return results


def comparisons(results):
    """The candidate against the better rival, job by job."""
    return {name: {"peer": CANDIDATE, "against": got[goals.BETTER]["peer"], "ratio": got[CANDIDATE]["median"] / got[goals.BETTER]["median"]}
            for name, got in results.items() if CANDIDATE in got and goals.BETTER in got}


def unreliable(peers, results):
    """By job the peers whose repeats spread too far."""
    out = {name: [peer for peer in peers if peer in got and got[peer]["spread"] > goals.SPREAD_MAX] for name, got in results.items()}
    return {name: wide for name, wide in out.items() if wide}


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
                kib = [(step[after][kind] - step[before][kind]) / parts for step in rounds]
                kinds[kind] = {"median": statistics.median(kib), "values": kib}
            return kinds

        out[peer] = {"queues": queues, "client": taken("client", "alone", "connected", queues),
                     "server": taken("server", "alone", "connected", queues), "export": taken("server", "none", "alone", 1)}
    return out


def read_errors(folder):
    """What was not built or did not come up, by peer: why, and in which mode."""
    out = {}
    for path in sorted(glob.glob(f"{folder}/*.error") + glob.glob(f"{folder}/*/*/*.error")):
        with open(path, errors="replace") as f:
            why = ([line.strip() for line in f if line.strip()] or ["no reason given"])[-1]
        mode = os.path.relpath(path, folder).split("/")[0]
        # Both ends may say it.
        out.setdefault(os.path.basename(path).removesuffix(".error"), {})[why if mode.endswith(".error") else f"{mode}: {why}"] = True
    return {peer: list(reasons) for peer, reasons in out.items()}


def number(x):
    return f"{x:.1f}" if x < 1000 else f"{x:.0f}"


def lay_out(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def table(jobs, peers, report):
    """The jobs of one mode: a row for the metric, and below a median latency one for its tail."""
    rows = [["", "unit", *peers, f"{CANDIDATE} is"]]
    for job in jobs:
        got = report["results"].get(job["name"], {})
        base = got.get(REFERENCE, {}).get("median")
        wide = report["unreliable"].get(job["name"], [])
        row = [job["title"] + (" (unreliable)" if wide else ""), job["unit"]]
        for peer in peers:
            if peer not in got:
                row.append("-")
                continue
            median = got[peer]["median"]
            row.append(("~" if peer in wide else "") + number(median) + (f" {median / base:5.2f}x" if base else ""))
        compared = report["comparisons"].get(job["name"])
        rows.append([*row, f"{compared['ratio']:.2f}x {compared['against']}" if compared else "-"])
        if job["metric"] == "p50":
            base = got.get(REFERENCE, {}).get("percentiles", {}).get("99.9")
            row = ["  its p99.9", job["unit"]]
            for peer in peers:
                tail = got.get(peer, {}).get("percentiles", {}).get("99.9")
                doubt = "~" if got.get(peer, {}).get("percentile_spreads", {}).get("99.9", 0) > goals.SPREAD_MAX else ""
                row.append("-" if tail is None else doubt + number(tail) + (f" {tail / base:5.2f}x" if base else ""))
            rows.append([*row, ""])
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
    left_out = read_errors(args.folder)
    results = collect(args.folder, jobs)
    # What has come up somewhere has a column.
    peers = [peer for peer in args.peers if peer not in left_out or any(peer in got for got in results.values())]
    memory = collect_memory(args.folder, peers)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report = {"schema": "farblk.bench/3", "date": date, "commit": args.commit, "kernel": args.kernel, "cpus": os.cpu_count(),
              "load": os.getloadavg()[0], "peers": peers, "left_out": left_out, "reference": REFERENCE, "jobs": jobs, "results": results,
              "comparisons": comparisons(results), "unreliable": unreliable(peers, results), "memory": memory, "goals": goals.reached(jobs, results, memory)}
    with open(f"{args.folder}/report.json", "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    modes = {mode: title for mode, title in MODES.items() if any(job["mode"] == mode for job in jobs)}
    caption = f"kernel {args.kernel}, farblk {args.commit}, {date}; guests in software emulation"
    plots = plot.plots(report, modes, caption)
    for name, svg in plots.items():
        with open(f"{args.folder}/{name}.svg", "w") as f:
            f.write(svg)

    print(f"kernel {args.kernel}, farblk {args.commit}; x = times {REFERENCE} in the same run, ~ = repeats differ by more than {goals.SPREAD_MAX:.0%}")
    print("where instructions are counted (all but real time) a microsecond is a thousand of them\n")
    for mode, title in modes.items():
        print(f"{title} ({mode})")
        print(table([job for job in jobs if job["mode"] == mode], peers, report) + "\n")
    if memory:
        print(memory_table(memory))
        print("medians (least..most); server and client in two guests; export: what the server takes before anybody connects\n")
    for peer, reasons in left_out.items():
        print("\n".join(f"left out {peer}: {why}" for why in reasons))
    for goal in report["goals"]:
        print(goals.line(goal))
    print("\n".join(f"{args.folder}/{name}" for name in ["report.json", *(f"{name}.svg" for name in plots)]))
    absent = [peer for peer in peers if any(peer not in results.get(job["name"], {}) for job in jobs if job["completion"] == "irq" and job["jobs"] == 1)]
    absent += [peer for peer in left_out if peer in args.must.split()]
    if absent:
        raise SystemExit("error: not everything was measured of: " + " ".join(absent))


if __name__ == "__main__":
    main()
