#!/usr/bin/env python3
"""Reads the machine code of forward kernels and fails on what ptxas must not have done.

    sass_check.py VENV FILE.cubin|DIRECTORY...
    sass_check.py VENV --where          which cuobjdump that takes; exit status 1 when there is none

cuobjdump is one of PATH, of a CUDA toolkit, or of the virtual environment VENV.

Innermost loops that hold wgmma (HGMMA) are the steps of the kernel. In each of them:
  * no local memory (LDL, STL): spills may stand at item edges, not in the loop
  * overlapped order (QK waits before PV): the exponentials of the fast path stand between the wait
    for QK and the wait for PV. ptxas moves the second wait up when nothing stops it, silently.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")


def find_cuobjdump(venv, toolkits=(os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")):
    on_path = shutil.which("cuobjdump")
    found = [pathlib.Path(on_path)] if on_path else []
    found += [pathlib.Path(kit, "bin", "cuobjdump") for kit in toolkits if kit]
    found += pathlib.Path(venv).glob("lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump")
    for path in found:
        if path.exists():
            return str(path)
    sys.exit("sass_check: no cuobjdump; ./dev test brings it")


def instructions(cuobjdump, path):
    text = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True,
                          check=True).stdout
    found = []
    for line in text.splitlines():
        match = INSTRUCTION.search(line)
        if match:
            words = re.sub(r"^@!?U?P\w+\s+", "", match.group(2))
            found.append((int(match.group(1), 16), words))
    return found


LONGEST_STEP = 1200  # instructions; longer backward branches return from waits moved out of line


def innermost_loops(code):
    """Bodies of backward branches that hold wgmma and no other such body."""
    at = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (address, words) in enumerate(code):
        target = re.match(r"BRA.*0x([0-9a-f]+)", words)
        if not target or int(target.group(1), 16) >= address:
            continue
        first = at.get(int(target.group(1), 16))
        if first is None or i - first >= LONGEST_STEP:
            continue
        if any(w.startswith("HGMMA") for _, w in code[first:i]):
            loops.append((first, i))
    inner = [l for l in loops
             if not any(o != l and l[0] <= o[0] and o[1] <= l[1] for o in loops)]
    return [[w for _, w in code[a:b + 1]] for a, b in inner]


def check_loop(body):
    problems = []
    local = [w for w in body if w.startswith(("LDL", "STL"))]
    if local:
        problems.append(f"{len(local)} local memory accesses in the loop")
    waits = [i for i, w in enumerate(body) if "DEPBAR" in w and w.startswith("WARPGROUP")]
    products = [i for i, w in enumerate(body) if w.startswith("HGMMA")]
    exps = [i for i, w in enumerate(body) if w.startswith("MUFU.EX2")]
    if len(waits) != 2:
        problems.append(f"{len(waits)} wgmma waits, expected 2")
        return problems, 0
    if products and products[-1] > waits[0]:
        problems.append("a wgmma is issued after the first wait")
    return problems, sum(waits[0] < i < waits[1] for i in exps) / max(1, len(exps))


def main():
    cuobjdump, paths = find_cuobjdump(sys.argv[1]), []
    if sys.argv[2:] == ["--where"]:
        print(cuobjdump)
        return 0
    for path in map(pathlib.Path, sys.argv[2:]):
        paths += sorted(path.glob("*.cubin")) if path.is_dir() else [path]
    if not paths:
        sys.exit("sass_check: no cubins; forward_compile \"\" DIRECTORY writes them")
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda path: instructions(cuobjdump, path), paths))
    for path, code in zip(paths, codes):
        for body in innermost_loops(code):
            problems, share = check_loop(body)
            # Sequential loops wait for both products first: no exponential lies between.
            order = "overlapped" if share > 0.1 else "sequential"
            if order == "overlapped" and share < 0.9:
                problems.append(f"only {share:.0%} of the exponentials stand between the waits")
            failures += bool(problems)
            print(f"{path}: {order}, {len(body)} instructions, "
                  f"{share:.0%} of exps between the waits {'; '.join(problems)}")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
