# SPDX-License-Identifier: GPL-2.0
"""The goals of the project, and whether a report reaches them."""

# The better one of the peers that farblk is compared with, in that job.
BETTER = "better of nvme and rnbd"

# Repeats that differ by more, relative to their median, are unreliable.
SPREAD_MAX = 0.10

# Of what: the metric of the job, or a percentile of the latency.
METRIC, P999 = None, "99.9"


def read_and_write(mode, name, *goal):
    """The same goal for a read and a write; the name of the job has RW there."""
    return [(f"{mode}/{name.replace('RW', rw)}", *goal) for rw in ("read", "write")]


# A goal: the job, the peer, the sum of these, the limit of the ratio, and of what.
GOALS = [
    *read_and_write("hca-icount", "4k-RW-qd1", "farblk", ("raw", "brd"), "at most", 1.10, METRIC),
    *read_and_write("hca-icount", "4k-RW-qd32", "farblk", ("raw", "brd"), "at most", 1.25, METRIC),
    *read_and_write("hca-icount", "4k-RW-qd1", "farblk-block", (BETTER,), "at most", 0.65, METRIC),
    *read_and_write("hca-icount", "4k-RW-qd32", "farblk-block", (BETTER,), "at most", 0.60, METRIC),
    *read_and_write("hca-icount", "128k-RW-qd4", "farblk-block", (BETTER,), "at most", 0.80, METRIC),
    *read_and_write("hca-4cpus", "4k-RW-qd1-polled", "farblk-block", ("nvme",), "at most", 0.70, METRIC),
    *read_and_write("hca-4cpus", "4k-RW-qd1", "farblk-block", ("nvme",), "at most", 0.80, METRIC),
    *read_and_write("hca-4cpus", "4k-RW-qd1-polled", "farblk", ("nvme",), "at most", 0.40, METRIC),
    *read_and_write("hca-4cpus", "4k-RW-qd32-jobs4", "farblk-block", (BETTER,), "at least", 1.5, METRIC),
    *read_and_write("hca-4cpus", "4k-RW-qd32-jobs4", "farblk", (BETTER,), "at least", 2.5, METRIC),
    *(goal for peer in ("farblk-block", "farblk") for name in ("4k-RW-qd1-polled", "4k-RW-qd1", "4k-RW-qd32-jobs4")
      for goal in read_and_write("hca-4cpus", name, peer, ("nvme",), "at most", 1.0, P999)),
    *(goal for mode, name in (("rxe-icount", "4k-RW-qd1"), ("rxe-icount", "4k-RW-qd32"), ("rxe-icount", "128k-RW-qd4"), ("rxe-2cpus", "4k-RW-qd1"))
      for goal in read_and_write(mode, name, "farblk-block", (BETTER,), "at most", 0.95, METRIC)),
    *read_and_write("rxe-2cpus", "4k-RW-qd1-polled", "farblk-block", (BETTER,), "at most", 1.0, METRIC),
    *read_and_write("rxe-2cpus", "4k-RW-qd32", "farblk-block", (BETTER,), "at least", 1.05, METRIC),
    *read_and_write("rxe-2cpus", "128k-RW-qd4", "farblk-block", (BETTER,), "at least", 1.05, METRIC),
    *read_and_write("rxe-icount", "4k-RW-qd32", "farblk", ("nvme",), "at most", 0.50, METRIC),
]

# An idle connection, KiB per queue.
MEMORY_GOALS = {"client": 256, "server": 100}


def figure(result, of):
    """Its value and the spread of that, or None for each."""
    if not result:
        return None, None
    return (result["median"], result["spread"]) if of is METRIC else (result["percentiles"].get(of), result["percentile_spreads"].get(of))


def reached(jobs, results, memory):
    """All goals of the jobs that were asked for; "met" is None where something was not measured."""
    titles = {job["name"]: f"{job['mode']}: {job['title']}" for job in jobs}
    out = []
    for name, peer, parts, sense, limit, of in GOALS:
        if name not in titles:
            continue
        got = results.get(name, {})
        (mine, *theirs), spreads = zip(*(figure(got.get(part), of) for part in (peer, *parts)))
        ratio = None if mine is None or None in theirs else mine / sum(theirs)
        met = None if ratio is None else ratio <= limit if sense == "at most" else ratio >= limit
        against = [got.get(part, {}).get("peer", part) for part in parts]
        out.append({"job": name, "title": titles[name] + (f", p{of}" if of else ""), "peer": peer, "against": " + ".join(against), "unit": "x",
                    "value": ratio, "sense": sense, "limit": limit, "met": met,
                    "limit_value": None if None in theirs else limit * sum(theirs), "of": of,
                    "unreliable": any(spread is not None and spread > SPREAD_MAX for spread in spreads)})
    for side, limit in MEMORY_GOALS.items():
        if "farblk-block" in memory:
            kib = memory["farblk-block"][side]["all"]["median"]
            out.append({"job": "memory", "title": f"idle queue, {side}", "peer": "farblk-block", "against": "", "unit": "KiB", "value": kib,
                        "sense": "at most", "limit": limit, "met": kib <= limit, "limit_value": limit, "of": METRIC, "unreliable": False})
    return out


def line(goal):
    """One goal as text."""
    word = {True: "met", False: "missed", None: "unknown"}[goal["met"]]
    value = "not measured" if goal["value"] is None else f"{goal['value']:.3f} {goal['unit']}"
    against = f" ({goal['against']})" if goal["against"] else ""
    doubt = ", unreliable" if goal["unreliable"] else ""
    return f"{word:<7} {goal['title']}: {goal['peer']} is {value}{against}, to be {goal['sense']} {goal['limit']:.3f}{doubt}"
