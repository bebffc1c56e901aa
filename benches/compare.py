#!/usr/bin/env python3
"""This SDK, the official Python SDK and bare HTTP exchanges, in turns, against one fast server.

    python3 benches/compare.py [--repeat 3] [--only CASE ...] [--out target/compare]

Builds `benches/clients.rs`, installs `tinker==0.36.0` into an environment under `target/`, and
runs every case of every side in turns, each in a fresh process with a fresh server, so that no
side profits from a quiet moment. Writes `table.md` (medians, and the spread as lowest to
highest) and `chart.svg`. Needs nothing but cargo, Python with pip, and Linux.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLLER = '{"sample_use_retrieve_futures":true}'
ZSTD = '{"proto_compress_fwdbwd":true}'
SIDES = ("SDK", "Python", "bare")

# Title, case, scheme, milliseconds of a sample and of a training request, flags, bare case.
CASES = [
    ("10,000 samples of 50 ms", "sample", "http", 50, 0, "{}", "bare_sample"),
    ("the same with the poller", "sample", "http", 50, 0, POLLER, None),
    ("the same over TLS", "sample", "https", 50, 0, "{}", "bare_sample"),
    ("200 groups of 16 x 512 tokens", "groups", "http", 50, 0, "{}", "bare_groups"),
    ("200 pipelined steps of 5 ms", "train", "http", 0, 5, "{}", "bare_train"),
    ("forward_backward of 67 MB", "big", "http", 0, 0, "{}", "bare_big"),
    ("the same with zstd", "big", "http", 0, 0, ZSTD, None),
    ("decoding 50 MB of samples", "decode", "http", 0, 0, "{}", None),
    ("process start to first sample", "first", "http", 0, 0, "{}", None),
    ("30 s idle", "idle", "http", 0, 0, "{}", None),
]


def cargo():
    """The measuring program, built for release."""
    command = ["cargo", "bench", "--bench", "clients", "--no-run", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    artifacts = [json.loads(line) for line in lines.splitlines()]
    found = [one["executable"] for one in artifacts
             if one.get("executable") and one["target"]["name"] == "clients"]
    return found[-1]


def environment(folder):
    python = folder / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "tinker==0.36.0", "numpy"]
    subprocess.run(install, check=True)
    return python


def watched(command, environment):
    """What a program says, its processor seconds, and the most threads and sockets it had, seen from
    outside, so that it costs the program nothing."""
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    most, ended = {"threads": 0, "sockets": 0}, threading.Event()

    def watch():
        folder = pathlib.Path(f"/proc/{child.pid}")
        over = False
        while not over:
            try:
                status = (folder / "status").read_text()
                threads = next(line for line in status.splitlines() if line.startswith("Threads:"))
                most["threads"] = max(most["threads"], int(threads.split()[1]))
                most["sockets"] = max(most["sockets"], sockets(folder / "fd"))
            except (OSError, StopIteration):
                pass  # It is ending.
            over = ended.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = child.stdout.read()
    ended.set()
    watcher.join()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return output, usage.ru_utime + usage.ru_stime, most


def sockets(folder):
    count = 0
    for file in os.scandir(folder):
        try:
            count += os.readlink(file.path).startswith("socket:")
        except OSError:
            pass  # Closed meanwhile.
    return count


def measure(program, python, body, case, side):
    """One run of one side, with a server of its own."""
    _, name, scheme, sample, train, flags, bare = case
    server = subprocess.Popen([program, "serve", scheme, str(sample), str(train), flags],
                              stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        if side == "Python":
            command = [python, ROOT / "benches/compare_python.py", name, url, body]
        else:
            command = [program, "run", bare if side == "bare" else name, url]
        certificates = {"SSL_CERT_FILE": str(ROOT / "tests/fixtures/tls/ca.pem")}
        began = time.perf_counter()
        output, used, most = watched(command, os.environ | certificates)
        figures = json.loads(output) | most
        if name == "first":
            # Starting the interpreter and importing are part of what the user waits for.
            figures |= {"wall": time.perf_counter() - began, "cpu": used}
        return figures
    finally:
        server.kill()
        server.wait()


def spread(values, digits):
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def processor():
    """The processor's name, where the system tells."""
    told = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.split(": ", 1)[1] for line in told.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(results, repeat):
    cores, today = os.cpu_count(), datetime.date.today().isoformat()
    yield (f"Medians of {repeat} runs in turns (lowest–highest), {today}, {cores} cores, "
           f"{processor()}, Python {platform.python_version()}, `tinker` 0.36.0.")
    yield ""
    yield "| | side | wall s | CPU s | peak MB | threads | sockets | wall of Python's |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for case in CASES:
        sides = results.get(case[0], {})
        reference = [run["wall"] for run in sides.get("Python", [])]
        for side, runs in sides.items():
            column = {key: [run[key] for run in runs] for key in runs[0]}
            ratio = ""
            if reference and side != "Python" and case[1] != "idle":
                ratio = f"1/{statistics.median(reference) / statistics.median(column['wall']):.1f}"
            digits = 3 if case[1] in ("first", "decode", "idle") else 2
            yield (f"| {case[0] if side == 'SDK' else ''} | {side} | {spread(column['wall'], digits)} "
                   f"| {spread(column['cpu'], digits)} | {spread(column['peak'], 0)} "
                   f"| {max(column['threads'])} | {max(column['sockets'])} | {ratio} |")


def chart(results):
    """Bars of the wall time of each side as a share of the slowest."""
    colours = {"SDK": "#2563eb", "Python": "#d97706", "bare": "#9ca3af"}
    rows = [(case[0], results[case[0]]) for case in CASES
            if case[0] in results and case[1] != "idle"]
    bar, gap, left, width = 12, 14, 250, 460
    y, parts = 30, []
    for title, sides in rows:
        slowest = max(statistics.median(run["wall"] for run in runs) for runs in sides.values())
        middle = y + bar * len(sides) / 2 + 4
        parts.append(f'<text x="{left - 10}" y="{middle}" text-anchor="end">{title}</text>')
        for side, runs in sides.items():
            wall = statistics.median(run["wall"] for run in runs)
            length = max(1.0, width * wall / slowest)
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 2}" '
                         f'fill="{colours[side]}"/>')
            parts.append(f'<text x="{left + length + 6:.1f}" y="{y + bar - 3}" '
                         f'class="value">{side} {wall:.3g} s</text>')
            y += bar
        y += gap
    style = ("text{font:12px system-ui,sans-serif;fill:#374151}.value{font-size:10px}"
             "@media(prefers-color-scheme:dark){text{fill:#d1d5db}}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {y}" role="img" '
            f'aria-label="Wall time of each side"><style>{style}</style>' + "".join(parts) + "</svg>\n")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--only", nargs="*", help="cases by name, such as sample or train")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "target/compare")
    options = options.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    program, python = cargo(), environment(options.out)
    body = options.out / "sample.bin"
    subprocess.run([program, "encode", body], check=True)
    results = {}
    for turn in range(options.repeat):
        for case in CASES:
            if options.only and case[1] not in options.only:
                continue
            sides = [side for side in SIDES if side != "bare" or case[6]]
            turned = sides[turn % len(sides):] + sides[: turn % len(sides)]
            for side in turned:
                figures = measure(program, python, body, case, side)
                results.setdefault(case[0], {name: [] for name in sides})[side].append(figures)
                print(f"{turn + 1}/{options.repeat} {case[0]:<32} {side:<7} "
                      f"{figures['wall']:8.3f} s {figures['peak']:7.0f} MB", flush=True)
    text = "\n".join(table(results, options.repeat)) + "\n"
    (options.out / "table.md").write_text(text)
    (options.out / "chart.svg").write_text(chart(results))
    print(text)


main()
