"""Runs the four benchmarks of Python several times, and prints tables of their figures and goals.

    python benches/python/report.py [--runs 3] [--json FILE] [--svg docs/reference/python-benchmarks.svg]
    python benches/python/report.py --only alone

A figure is the median of the runs, with the lowest and the highest. The picture shows how many times faster
than each peer. ``--runs 0 --json FILE`` measures nothing and reads the figures from the file. A missed goal
ends the program with 1.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
OURS = "multiproc", "multiproc, numpy"
PROGRAMS = "queues", "pool", "loader", "alone"
# Row, limit of our figure (the least one if more is better), and how many times faster than peers.
GOALS = [
    ("round trip: small dict", 12, {"faster-fifo": 2}),
    ("round trip: two 16 KB", 40, {"torch Queue": 20, "multiprocessing": 2}),
    ("round trip: 1 MiB", None, {"torch Queue": 10}),
    ("4 KiB one way", 100, {}),
    ("pool: map of a list, 1 M ints", None, {"multiprocessing": 2}),
    ("pool: map of a range, 1 M ints", None, {"multiprocessing": 2}),
    ("pool: map of a list, 1 M floats, a function of C", None, {"multiprocessing": 2}),
    ("loader, 2 workers: batches of 38 MB, unchanged dataset", None, {"torch": 1.5}),
    ("loader, 2 workers: batches of 38 MB, in place", None, {"torch": 6}),
    # A batch takes 10 to 11 ms.
    ("loader: delay after a killed worker", 41, {}),
    ("loader: 8 workers ready, first epoch", 300, {}),
    ("64 MiB: put", None, {"memcpy": 0.9}),
    ("Rust worker: overhead of a batch", 50, {}),
    ("8 processes with torch, preloaded", 300, {}),
]


def run(program, rounds):
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, HERE / program, "--rounds", str(rounds), "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(pathlib.Path(file.name).read_text())


def measure(programs):
    """Returns rows: name, unit, whether more is better, and figures by contender. Ours is the first."""
    rows = []
    queues = run("queues.py", 5)["rows"] if "queues" in programs else {}
    for name, figures in queues.items():
        unit = next(iter(figures.values()))["unit"]
        about = name if unit == "k/s" else f"round trip: {name}"
        rows.append((about, unit, unit == "k/s", {peer: row["median"] for peer, row in figures.items()}))
    pool = run("pool.py", 5)["rows"] if "pool" in programs else {}
    rows += [(f"pool: {name}", "ms", False, figures) for name, figures in pool.items()]
    if "loader" in programs:
        rows += loader_rows()
    alone = run("alone.py", 3)["rows"] if "alone" in programs else {}
    rows += [(name, figures.pop("unit"), False, figures) for name, figures in alone.items()]
    return rows


def loader_rows():
    rows = []
    loader = {name: row["median"] for name, row in run("loader.py", 3)["rows"].items()}
    batches = "batches of 38 MB, "
    for name in ("unchanged dataset", "in place"):
        figures = {"multiproc": loader[batches + name], "torch": loader[batches + "torch"]}
        rows.append((f"loader, 2 workers: {batches}{name}", "/s", True, figures))
    extra = "delay after a killed worker", "8 workers ready, first epoch", "8 workers ready, later epoch"
    for name in extra:
        rows.append((f"loader: {name}", "ms", False, {"multiproc": loader[name]}))
    return rows


def shown(values):
    middle, low, high = statistics.median(values), min(values), max(values)
    digits = 0 if middle >= 100 else 1
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def ratios(runs, row, peer):
    """Returns in how many times less time than a peer's, for each run."""
    found = [(run[row][3]["multiproc"], run[row][3][peer]) for run in runs]
    more = runs[0][row][2]
    return [ours / theirs if more else theirs / ours for ours, theirs in found]


def table(runs):
    print("| row | multiproc | peer | times faster |\n|---|---|---|---|")
    for row, (name, unit, _, figures) in enumerate(runs[0]):
        ours = f"{shown([run[row][3]['multiproc'] for run in runs])} {unit}"
        peers = [peer for peer in figures if peer not in OURS]
        for peer in peers or ["–"]:
            times = shown(ratios(runs, row, peer)) if peers else "–"
            print(f"| {name} | {ours} | {peer} | {times} |")
            name = ours = ""


def goals(runs):
    """Prints the goals whose rows were measured, and returns the number of those that are missed."""
    print("\n| goal | figure |\n|---|---|")
    missed = 0
    for name, limit, peers in GOALS:
        rows = [number for number, row in enumerate(runs[0]) if row[0] == name]
        if not rows:
            continue
        _, unit, more, _ = runs[0][rows[0]]
        ours = statistics.median(run[rows[0]][3]["multiproc"] for run in runs)
        checks = []
        if limit is not None:
            goal = f"at {'least' if more else 'most'} {limit} {unit}"
            checks.append((goal, f"{ours:.1f} {unit}", ours >= limit if more else ours <= limit))
        for peer, least in peers.items():
            times = statistics.median(ratios(runs, rows[0], peer))
            checks.append((f"{least} times as fast as {peer}", f"{times:.1f} times", times >= least))
        for goal, figure, is_met in checks:
            print(f"| {name}: {goal} | {figure}{'' if is_met else ', **missed**'} |")
            missed += not is_met
    return missed


def picture(runs, path):
    """Draws a bar for each peer: how many times faster, on a scale of logarithms."""
    import math

    parts, y = [], 40
    bars = [(row, peer) for row in range(len(runs[0])) for peer in runs[0][row][3] if peer not in OURS]
    unit = 130
    for times in (1, 10, 100):
        x = 360 + unit * math.log10(times)
        parts.append(f'<text x="{x}" y="24" text-anchor="middle" fill="#6e7781">{times}</text>')
        parts.append(f'<path d="M{x} 32V{60 + 17 * len(bars) + 8 * len(runs[0])}" stroke="#d0d7de"/>')
    last = None
    for row, peer in bars:
        times = statistics.median(ratios(runs, row, peer))
        if row != last:
            y += 8
            parts.append(f'<text x="14" y="{y + 12}">{runs[0][row][0]}</text>')
        last = row
        width = max(1, unit * math.log10(times))
        parts.append(f'<rect x="360" y="{y + 2}" width="{width:.0f}" height="12" rx="2" fill="#1a7f6b"/>')
        label = f"{times:.{0 if times >= 10 else 1}f} times {peer}"
        parts.append(f'<text x="{368 + width:.0f}" y="{y + 12}" fill="#6e7781">{label}</text>')
        y += 17
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{y + 30}" '
    style = 'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#1f2328">\n'
    back = f'<rect width="860" height="{y + 30}" rx="8" fill="#ffffff"/>\n'
    title = '<text x="14" y="24" font-weight="bold">multiproc: times faster than</text>\n'
    pathlib.Path(path).write_text(head + style + back + title + "\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures of all runs")
    parser.add_argument("--svg", help="file for the picture")
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, with commas between them")
    options = parser.parse_args()
    programs = options.only.split(",")
    if unknown := {*programs} - {*PROGRAMS}:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PROGRAMS)}")
    if options.runs < 1 and not options.json:
        parser.error("--runs 0 needs --json")
    runs = [measure(programs) for _ in range(options.runs)] or json.loads(options.json.read_text())
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))
    table(runs)
    if options.svg:
        picture(runs, options.svg)
    return 1 if goals(runs) else 0


if __name__ == "__main__":
    sys.exit(main())
