# SPDX-License-Identifier: GPL-2.0
"""Tests of the report: python3 -B -m unittest discover -s tools/bench"""
import json
import os
import tempfile
import unittest
import xml.dom.minidom

import goals
import plot
import report

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = report.read_jobs(f"{HERE}/jobs", list(report.MODES))


def job(name):
    return next(job for job in JOBS if job["name"] == name)


def fio(**peers):
    """What fio prints: of each peer the median latency in us, or None if it failed."""
    out = []
    for peer, us in peers.items():
        side = {"total_ios": 10, "iops": 1e6 / (us or 1), "bw_bytes": 4096e6 / (us or 1),
                "lat_ns": {"percentile": {f"{at:f}": (us or 1) * factor * 1000 for at, factor in zip(report.PERCENTILES, (1, 2, 3, 4))}}}
        out.append({"jobname": peer.replace("_", "-"), "error": 0 if us else 5, "read": side, "write": {"total_ios": 0}})
    return json.dumps({"jobs": out})


RAW = json.dumps({"bytes": 4096, "ios": 1000, "ns": 10**7, "handler_p50_ns": 8000, "percentiles_ns": {"50.0": 9000, "90.0": 9100, "99.0": 9200, "99.9": 20000}})


class Folder(unittest.TestCase):
    """With a folder of results."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def put(self, name, tool, repeat, content):
        mode, of = name.split("/")
        os.makedirs(f"{self.folder.name}/{mode}/bench", exist_ok=True)
        with open(f"{self.folder.name}/{mode}/bench/{tool}.{of}.{repeat}.json", "w") as f:
            f.write(content)

    def collect(self, *names):
        return report.collect(self.folder.name, [job(name) for name in names])


class Results(Folder):
    NAME = "hca-icount/4k-read-qd1"

    def test_median_of_repeats_and_their_spread(self):
        for repeat, us in enumerate((10, 11, 20), 1):
            self.put(self.NAME, "fio", repeat, fio(brd=us))
        got = self.collect(self.NAME)[self.NAME]["brd"]
        self.assertEqual(got["median"], 11)
        self.assertAlmostEqual(got["spread"], 10 / 11)
        self.assertEqual(got["percentiles"], {"50": 11, "90": 22, "99": 33, "99.9": 44})

    def test_what_failed_is_left_out(self):
        self.put(self.NAME, "fio", 1, "fio: pid=1, err=5\n" + fio(brd=10, rnbd=None))
        self.put(self.NAME, "fio", 2, "")
        self.assertEqual(set(self.collect(self.NAME)[self.NAME]), {"brd"})

    def test_raw_has_two_ends(self):
        self.put(self.NAME, "raw", 1, RAW)
        got = self.collect(self.NAME)[self.NAME]
        self.assertEqual((got["raw"]["median"], got["raw handler"]["median"]), (9, 8))
        self.assertEqual(got["raw"]["percentiles"]["99.9"], 20)

    def test_metrics(self):
        got = report.of_fio(json.loads(fio(brd=10)))["brd"]
        self.assertEqual({metric: got[metric] for metric in report.UNITS}, {"p50": 10, "cost": 10, "iops": 1e5, "mib": 390.625})

    def test_better_rival(self):
        cost, rates = "hca-icount/4k-read-qd32", "hca-4cpus/4k-read-qd32-jobs4"
        for name in self.NAME, cost, rates:
            self.put(name, "fio", 1, fio(nvme=40, rnbd=30, farblk_block=20))
        got = self.collect(self.NAME, cost, rates)
        self.assertEqual([got[name][goals.BETTER]["peer"] for name in (self.NAME, cost, rates)], ["rnbd"] * 3)
        compared = report.comparisons(got)
        self.assertAlmostEqual(compared[self.NAME]["ratio"], 2 / 3)
        self.assertAlmostEqual(compared[rates]["ratio"], 3 / 2)

    def test_better_rival_of_one(self):
        polled = "hca-4cpus/4k-read-qd1-polled"
        for name in self.NAME, polled:
            self.put(name, "fio", 1, fio(nvme=40))
        got = self.collect(self.NAME, polled)
        # rnbd may be better, but cannot poll.
        self.assertNotIn(goals.BETTER, got[self.NAME])
        self.assertEqual(got[polled][goals.BETTER]["peer"], "nvme")


    def test_what_did_not_come_up(self):
        for path, content in ("memory/client/rnbd.error", "one\ntwo\n"), ("memory/server/rnbd.error", "two\n"), ("raw.error", ""):
            os.makedirs(os.path.dirname(f"{self.folder.name}/{path}"), exist_ok=True)
            with open(f"{self.folder.name}/{path}", "w") as f:
                f.write(content)
        self.assertEqual(report.read_errors(self.folder.name), {"rnbd": ["memory: two"], "raw": ["no reason given"]})


class Goals(Folder):
    NAME = "hca-icount/4k-read-qd1"

    def reached(self, *names):
        results = self.collect(*names)
        return {(goal["peer"], goal["against"], goal["of"]): goal for goal in goals.reached([job(name) for name in names], results, {})}

    def test_sum_of_raw_and_brd(self):
        self.put(self.NAME, "raw", 1, RAW)
        for us, met in (17.6, True), (17.7, False):
            self.put(self.NAME, "fio", 1, fio(brd=7, farblk=us))
            goal = self.reached(self.NAME)["farblk", "raw + brd", None]
            self.assertAlmostEqual(goal["value"], us / 16)
            self.assertAlmostEqual(goal["limit_value"], 17.6)
            self.assertEqual(goal["met"], met)

    def test_at_least(self):
        name = "hca-4cpus/4k-read-qd32-jobs4"
        self.put(name, "fio", 1, fio(nvme=30, rnbd=40, farblk=11, farblk_block=21))
        got = self.reached(name)
        self.assertEqual([got[peer, "nvme", None]["met"] for peer in ("farblk", "farblk-block")], [True, False])
        # The tail of the latency is no rate: less is better.
        self.assertEqual(got["farblk-block", "nvme", "99.9"]["met"], True)

    def test_not_measured(self):
        self.put(self.NAME, "fio", 1, fio(farblk_block=20, nvme=40))
        got = [goal for goal in self.reached(self.NAME).values() if goal["peer"] == "farblk-block"]
        self.assertEqual([(goal["met"], goal["value"]) for goal in got], [(None, None)])
        self.assertIn("not measured", goals.line(got[0]))

    def test_unreliable(self):
        for repeat, us in (1, 40), (2, 45):
            self.put(self.NAME, "fio", repeat, fio(farblk_block=20, nvme=us, rnbd=60))
        self.assertTrue(self.reached(self.NAME)["farblk-block", "nvme", None]["unreliable"])
        self.assertEqual(report.unreliable(["farblk-block", "nvme", "rnbd"], self.collect(self.NAME)), {self.NAME: ["nvme"]})

    def test_unreliable_tail(self):
        name = "hca-4cpus/4k-read-qd1"
        for repeat in 1, 2:
            data = json.loads(fio(farblk_block=20, nvme=40))
            data["jobs"][1]["read"]["lat_ns"]["percentile"]["99.900000"] *= repeat
            self.put(name, "fio", repeat, json.dumps(data))
        got = self.reached(name)
        self.assertEqual([got["farblk-block", "nvme", of]["unreliable"] for of in (None, "99.9")], [False, True])

    def test_all_are_of_jobs_and_peers_that_there_are(self):
        names, peers = {job["name"] for job in JOBS}, {name.removesuffix(".sh") for name in os.listdir(f"{HERE}/peers")}
        for name, peer, parts, *_ in goals.GOALS:
            self.assertIn(name, names)
            self.assertLessEqual({peer, *parts}, peers | {goals.BETTER})


class Plots(Folder):
    def test_they_are_svg(self):
        peers = ["nvme", "farblk"]
        for entry in JOBS:
            self.put(entry["name"], "fio", 1, fio(nvme=40, farblk=20 + entry["jobs"]))
        results = report.collect(self.folder.name, JOBS)
        drawn = plot.plots({"jobs": JOBS, "results": results, "peers": peers, "unreliable": {}, "goals": goals.reached(JOBS, results, {})}, report.MODES, "a < b")
        self.assertEqual(set(drawn), {"bars", "latency", "scale"})
        for svg in drawn.values():
            xml.dom.minidom.parseString(svg)


if __name__ == "__main__":
    unittest.main()
