# SPDX-License-Identifier: GPL-2.0
"""The plots of a report, as SVG."""
import math

COLOURS = {"brd": "#b5b5b5", "raw": "#777777", "nvme": "#e8a33d", "rnbd": "#9c6b30", "farblk": "#3b6fb6", "farblk-block": "#c0504d",
           "farblk-sealed": "#7f5fa8", "nvme-tcp": "#4f9d69", "nbd": "#8fbf6f"}
LIMIT = "#000000"
WIDTH, HEIGHT, GAP, LEFT, COLUMNS = 260, 150, 55, 50, 4


def text(x, y, what, size=10, anchor="middle", extra=""):
    what = str(what).replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>{what}</text>'


def segment(x1, y1, x2, y2, colour, extra=""):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def short(x):
    return f"{x:.1f}" if x < 100 else f"{x:.0f}" if x < 10000 else f"{x / 1000:.0f}k"


def legend(peers, more=""):
    parts, x = [], LEFT
    for peer in peers:
        parts += [f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS.get(peer, LIMIT)}"/>', text(x + 17, 22, peer, 12, "start")]
        x += 40 + 8 * len(peer)
    return parts + [text(x, 22, more, 12, "start")]


def page(groups, caption, peers, more=""):
    """Groups of panels, each group with a title and its panels in rows; a panel is a title and a function that draws it at x, y."""
    parts, y = legend(peers, more), 60
    for title, panels in groups:
        parts.append(text(LEFT, y, title, 14, "start", ' font-weight="bold"'))
        for i, (name, draw) in enumerate(panels):
            left, top = LEFT + i % COLUMNS * (WIDTH + GAP), y + 35 + i // COLUMNS * (HEIGHT + 60)
            parts.append(text(left + WIDTH / 2, top - 12, name, 11, extra=' font-weight="bold"'))
            parts += draw(left, top)
            parts.append(segment(left, top + HEIGHT, left + WIDTH, top + HEIGHT, "#888888"))
        y += 45 + -(-len(panels) // COLUMNS) * (HEIGHT + 60)
    parts.append(text(LEFT, y, caption, 10, "start"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + COLUMNS * (WIDTH + GAP)}" height="{y + 20}" font-family="sans-serif">'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


def bars(got, peers, limits):
    """A bar for each peer, and over that of a peer with a goal the limit of it."""
    peers = [peer for peer in peers if peer in got]
    # What is far longer than the rest is cut, and its number says how long it is.
    known = sorted([got[peer]["median"] for peer in peers] + [limit for _, limit in limits])
    full = min(known[-1], 4 * known[len(known) // 2])

    def draw(left, top):
        parts, slot = [], WIDTH / len(peers)
        for i, peer in enumerate(peers):
            value = got[peer]["median"]
            h, x = min(value, full) / full * HEIGHT, left + i * slot
            parts.append(f'<rect x="{x + 2:.1f}" y="{top + HEIGHT - h:.1f}" width="{slot - 4:.1f}" height="{h:.1f}" fill="{COLOURS.get(peer, LIMIT)}"/>')
            parts.append(text(x + slot / 2, top + HEIGHT - h - 2, short(value), 8))
            for of, limit in limits:
                if of == peer:
                    y = top + HEIGHT - min(limit, full) / full * HEIGHT
                    parts.append(segment(x - 3, y, x + slot + 3, y, LIMIT, ' stroke-width="2" stroke-dasharray="4,2"'))
        return parts
    return draw


def lines(series, points, most=None):
    """A line for each peer over points that are evenly spaced: on a logarithmic scale, or on one from 0 to that."""
    every = [y for ys in series.values() for y in ys.values()]
    log = most is None
    scale = math.log10 if log else float
    low, high = (scale(min(every)), scale(max(every))) if log else (0.0, most)

    def draw(left, top):
        parts, step = [], WIDTH / max(len(points) - 1, 1)
        # Powers of ten, unless the label would be on that of an end.
        near = (high - low) / 15
        inner = [(float(at), 10**at) for at in range(math.ceil(low + near), math.floor(high - near) + 1)] if log else []
        for at, label in [(low, min(every) if log else 0), *inner, (high, max(every) if log else most)]:
            y = top + HEIGHT - (at - low) / ((high - low) or 1) * HEIGHT
            parts += [segment(left, y, left + WIDTH, y, "#dddddd"), text(left - 3, y + 3, short(label), 8, "end")]
        for i, point in enumerate(points):
            parts.append(text(left + i * step, top + HEIGHT + 12, point, 9))
        for peer, ys in series.items():
            spots = [(left + i * step, top + HEIGHT - (scale(ys[point]) - low) / ((high - low) or 1) * HEIGHT) for i, point in enumerate(points) if point in ys]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS.get(peer, LIMIT)}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLOURS.get(peer, LIMIT)}"/>' for x, y in spots]
        return parts
    return draw


def measured(report, mode):
    """The jobs of a mode with their results, by peer."""
    for job in report["jobs"]:
        got = {peer: got for peer, got in report["results"].get(job["name"], {}).items() if peer in report["peers"]}
        if job["mode"] == mode and got:
            yield job, got


def panels_of_bars(report, mode):
    for job, got in measured(report, mode):
        limits = [(goal["peer"], goal["limit_value"]) for goal in report["goals"] if goal["job"] == job["name"] and not goal["of"] and goal["limit_value"] is not None]
        doubt = " (unreliable)" if job["name"] in report["unreliable"] else ""
        yield f"{job['title']}, {job['unit']}{doubt}", bars(got, report["peers"], limits)


def panels_of_tails(report, mode):
    for job, got in measured(report, mode):
        yield f"{job['title']}, us", lines({peer: got[peer]["percentiles"] for peer in report["peers"] if peer in got}, ["50", "90", "99", "99.9"])


def panel_of_scale(report, mode, most):
    """One panel of all jobs of the mode."""
    series, unit = {}, ""
    for job, got in measured(report, mode):
        unit = job["unit"]
        for peer in got:
            series.setdefault(peer, {})[str(job["jobs"])] = got[peer]["median"]
    return unit, lines(series, sorted({point for ys in series.values() for point in ys}, key=int), most)


def plots(report, modes, caption):
    """By name: "bars" with the limits of the goals, "latency" from p50 to p99.9, "scale" over the number of jobs; those that there are."""
    plain, scale = ([mode for mode in modes if mode.startswith("scale") == which and any(measured(report, mode))] for which in (False, True))
    out = {}
    if plain:
        out["bars"] = page([(modes[mode], list(panels_of_bars(report, mode))) for mode in plain], caption, report["peers"], "- - limit of a goal")
        out["latency"] = page([(modes[mode], list(panels_of_tails(report, mode))) for mode in plain], caption, report["peers"])
    if scale:
        # Beside each other and of one scale, as they are compared.
        most = max(result["median"] for mode in scale for _, got in measured(report, mode) for result in got.values())
        panels = [(f"{modes[mode]}, {unit}", draw) for mode in scale for unit, draw in [panel_of_scale(report, mode, most)]]
        out["scale"] = page([("4K reads over the number of jobs, each with 8 in flight", panels)], caption, report["peers"])
    return out
