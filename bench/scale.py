"""How the cpu backend scales: with threads, with the length, and what memory it takes.

  ./dev scale, or
  scale.py [--program build/bin/tilewise] [--threads N] [--lengths MOST] [--rounds N]
           [--thread-length N] [--commit HASH] [--json FILE]

Builds nothing: it runs `tilewise bench` of a finished build, each measurement in a process of its
own, and takes about a minute and a half on 16 cores. Two tables, fp32 and bf16:

  threads   one shape with 1, 2, 4, ... N threads in turn, median of the rounds, and how many times
            as fast as one thread. One thread is timed by its CPU time, several by the wall, so
            that a neighbour on the machine can only make this figure worse
  lengths   causal attention from 128 tokens to MOST with N threads; the peak of the process's
            resident memory, its growth from the length before, and the workspace

Says whether the second core brings 1.95 x and whether memory at 131,072 tokens is within 2.05 x of
that at 65,536; it prints and never fails for either, because benches do not assert.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

DTYPES = ("fp32", "bf16")
SECOND_CORE = 1.95
DOUBLE_LENGTH = 2.05


def bench(program, case, threads, repetitions):
    """The report of `tilewise bench`; its row also holds the peak of resident memory."""
    command = [program, "bench", case, "--threads", str(threads), "-r", str(repetitions),
               "--backend", "cpu", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"scale: exit status {process.returncode}: {' '.join(command)}")
    report = json.loads(text)
    report["rows"][0]["peak_rss_bytes"] = usage.ru_maxrss * 1024
    return report


def counts_up_to(most):
    """1, 2, 4, ... and `most` itself."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else counts + [most]


def lengths_up_to(most):
    lengths = [128]
    while lengths[-1] * 2 <= most:
        lengths.append(lengths[-1] * 2)
    return lengths


def thread_rows(program, dtype, counts, rounds, length):
    case = f"b=1 hq=16 q={length} d=128 dtype={dtype} layout=bhsd"
    samples, rows = {count: [] for count in counts}, {}
    for _ in range(rounds):
        for count in counts:
            row = bench(program, case, count, 3)["rows"][0]
            samples[count].append(row["ms"])
            rows[count] = row
    for count, row in rows.items():
        row["tflops"] *= row["ms"] / statistics.median(samples[count])
        row["ms"] = statistics.median(samples[count])
        # The peak of one run and the time of another make no share.
        del row["share_of_peak"], row["peak_gflops"]
        row |= {"table": "threads", "dtype": dtype}
    for row in rows.values():
        row["speedup"] = rows[1]["ms"] / row["ms"]
    return list(rows.values())


def length_row(program, dtype, length, threads):
    """Short lengths have more heads: every thread has work, and the figure is not its start."""
    heads = max(1, 16384 // length)
    case = f"b=1 hq={heads} q={length} d=64 dtype={dtype} mask=causal layout=bhsd"
    report = bench(program, case, threads, 5 if length <= 16384 else 1)
    row = report["rows"][0]
    row |= {"table": "lengths", "dtype": dtype, "length": length}
    return report, row


def say_threads(rows):
    for row in rows:
        print(f"{row['case']}, {row['threads']} threads: {row['ms']:.1f} ms, "
              f"{1e3 * row['tflops']:.0f} GFLOP/s, {row['speedup']:.2f} x", flush=True)


def say_length(row, before):
    grown = ""
    if before:
        grown = f", {row['peak_rss_bytes'] / before['peak_rss_bytes']:.2f} x the length before"
    print(f"{row['case']}: {row['ms']:.2f} ms, {1e3 * row['tflops']:.0f} GFLOP/s, "
          f"{row['peak_rss_bytes'] / 2**20:.1f} MiB at its peak{grown}, workspace "
          f"{row['workspace_bytes'] / 2**20:.1f} MiB", flush=True)


def verdict(what, value, holds):
    print(f"{what}: {value:.3f} x, {'met' if holds else 'NOT met'}", flush=True)


def judge(rows):
    for row in rows:
        if row["table"] == "threads" and row["threads"] == 2:
            verdict(f"second core, {row['case']}, at least {SECOND_CORE}", row["speedup"],
                    row["speedup"] >= SECOND_CORE)
    for dtype in DTYPES:
        peaks = {row["length"]: row["peak_rss_bytes"] for row in rows
                 if row["table"] == "lengths" and row["dtype"] == dtype}
        if 131072 in peaks:
            growth = peaks[131072] / peaks[65536]
            verdict(f"memory at 131,072 of 65,536 tokens, {dtype}, at most {DOUBLE_LENGTH}",
                    growth, growth <= DOUBLE_LENGTH)


def write_result(path, report, rows, commit):
    result = report | {"rows": rows, "command": "bench/scale.py " + " ".join(sys.argv[1:])}
    if commit:
        result["commit"] = commit
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/bin/tilewise")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lengths", type=int, default=262144, help="the longest")
    parser.add_argument("--thread-length", type=int, default=4096,
                        help="length of the table of threads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", help="of the build, where there is no git")
    parser.add_argument("--json")
    options = parser.parse_args()
    start, rows, report = time.monotonic(), [], None
    for dtype in DTYPES:
        rows += thread_rows(options.program, dtype, counts_up_to(options.threads),
                            options.rounds, options.thread_length)
        say_threads(rows[-len(counts_up_to(options.threads)):])
    for dtype in DTYPES:
        before = None
        for length in lengths_up_to(options.lengths):
            report, row = length_row(options.program, dtype, length, options.threads)
            rows.append(row)
            say_length(row, before)
            before = row
            if options.json:
                write_result(options.json, report, rows, options.commit)
    judge(rows)
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
