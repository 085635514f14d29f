"""Times the GPU forward beside cuDNN in one process; with --set mma forward_mma, beside torch's
FlashAttention-2 (fp32: its memory-efficient kernel), which use mma.sync too.

Every contender of a shape becomes a CUDA graph of about 12 ms. All graphs are warmed up, then
replayed in a new random order every round, because the first kernel after a gap reads up to 15 %
high and heat carries over from the one before. The median of the rounds is a sustained,
power-limited figure. Inputs are normal(0, 1), layout [b, s, h, d], b * s = 16384, h * d = 2048
unless a case says otherwise.

  gpu_forward.py LIBRARY [--set main|quick|options|mma] [--variants FILE] [--json FILE]
"""

import argparse
import ctypes
import datetime
import json
import math
import random
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Problem(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_int64) for n in
         ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim",
          "left", "right")]
        + [("element", ctypes.c_int), ("packed", ctypes.c_int),
           ("total_q", ctypes.c_int64), ("total_kv", ctypes.c_int64),
           ("scale", ctypes.c_double), ("softcap", ctypes.c_double)]
        + [(n, ctypes.c_int64 * 3) for n in
           ("q_strides", "k_strides", "v_strides", "out_strides")])


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.bench_plan.restype = ctypes.c_void_p
        self.lib.bench_plan.argtypes = [ctypes.POINTER(Problem), ctypes.c_char_p]
        self.lib.bench_run.argtypes = [ctypes.c_void_p] * 9
        self.lib.bench_error.restype = ctypes.c_char_p
        self.lib.bench_describe.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]

    def plan(self, problem, changes):
        handle = self.lib.bench_plan(ctypes.byref(problem), changes.encode())
        if not handle:
            raise RuntimeError(self.lib.bench_error().decode()[:2000])
        return handle

    def describe(self, handle):
        text = ctypes.create_string_buffer(1000)
        self.lib.bench_describe(handle, text, 1000)
        return text.value.decode()

    def run(self, handle, tensors, workspace):
        pointers = [0 if t is None else t.data_ptr() for t in tensors]
        stream = torch.cuda.current_stream().cuda_stream
        if self.lib.bench_run(handle, *pointers, workspace.data_ptr(), stream):
            raise RuntimeError(self.lib.bench_error().decode())


class Shape:
    """One problem: tensors, FLOPs, text."""

    ELEMENTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

    def __init__(self, d, s, causal, b=None, hq=None, hkv=None, dv=None, dtype="bf16", left=-1,
                 softcap=0.0, lens=None, family=""):
        self.d, self.s, self.causal, self.dv = d, s, causal, dv or d
        self.b = b or max(1, 16384 // s)
        self.hq = hq or 2048 // d
        self.hkv = hkv or self.hq
        self.dtype, self.left, self.softcap, self.lens = dtype, left, softcap, lens
        self.family = family
        kind = self.ELEMENTS[dtype]
        rows = [sum(lens)] if lens else [self.b, s]
        make = lambda h, w: torch.randn(*rows, h, w, device="cuda", dtype=kind)
        self.q, self.k = make(self.hq, d), make(self.hkv, d)
        self.v = make(self.hkv, self.dv)
        self.out = torch.full_like(make(self.hq, self.dv), float("nan"))
        self.starts = None
        if lens:
            total = [0]
            for n in lens:
                total.append(total[-1] + n)
            self.starts = torch.tensor(total, dtype=torch.int32, device="cuda")
        self.workspace = torch.zeros(16, dtype=torch.int32, device="cuda")

    def pairs(self):
        """Visible (query, key) pairs of one head, over the batch."""
        total = 0
        for n in self.lens or [self.s] * self.b:
            full = n * n
            if self.left >= 0:
                w = min(self.left + 1, n)
                full = w * (w + 1) // 2 + (n - w) * w
            elif self.causal:
                full = n * n / 2  # the convention of the published tables
            total += full
        return total

    def flops(self):
        return 2 * self.hq * self.pairs() * (self.d + self.dv)

    def text(self):
        lens = "qlens=" + ",".join(map(str, self.lens or []))
        words = "" if self.lens else f"b={self.b} "
        words += f"hq={self.hq} hkv={self.hkv} "
        words += lens if self.lens else f"q={self.s} kv={self.s}"
        words += f" d={self.d}"
        if self.dv != self.d:
            words += f" dv={self.dv}"
        if self.left >= 0:
            words += f" mask=window:{self.left}:0"
        elif self.causal:
            words += " mask=causal"
        if self.softcap:
            words += f" softcap={self.softcap}"
        return words + f" dtype={self.dtype} dir=fwd"

    def problem(self):
        p = Problem()
        p.batch, p.q_heads, p.kv_heads = self.b, self.hq, self.hkv
        p.q_len = p.kv_len = self.s
        p.head_dim, p.value_dim = self.d, self.dv
        p.left = self.left
        p.right = 0 if self.causal or self.left >= 0 else -1
        p.element, p.packed = list(self.ELEMENTS).index(self.dtype), int(bool(self.lens))
        p.scale, p.softcap = 1 / math.sqrt(self.d), self.softcap
        if self.lens:
            p.batch = len(self.lens)
            p.q_len = p.kv_len = max(self.lens)
            p.total_q = p.total_kv = sum(self.lens)
        for name, t in (("q", self.q), ("k", self.k), ("v", self.v), ("out", self.out)):
            st = t.stride()
            values = (0, st[0], st[1]) if self.lens else (st[0], st[1], st[2])
            setattr(p, f"{name}_strides", (ctypes.c_int64 * 3)(*values))
        return p

    def peer(self):
        """The name of torch's peer and a call of it; None where it has no such case."""
        if self.lens or self.left >= 0 or self.softcap:
            return None
        name, backend = "cudnn", SDPBackend.CUDNN_ATTENTION
        if self.family == "family=1":
            name, backend = "flash2", SDPBackend.FLASH_ATTENTION
        if self.dtype == "fp32":
            name, backend = "efficient", SDPBackend.EFFICIENT_ATTENTION
        q, k, v = (t.transpose(1, 2) for t in (self.q, self.k, self.v))

        def call():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=self.causal, enable_gqa=self.hq != self.hkv)
        return name, call


def capture(call, milliseconds):
    """A graph of enough calls to fill `milliseconds`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(3):
            call()
        end.record()
        end.synchronize()
        count = max(2, round(milliseconds / (start.elapsed_time(end) / 3)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                call()
    return graph, count


def time_all(calls, milliseconds, rounds):
    graphs = {name: capture(call, milliseconds) for name, call in calls.items()}
    names = list(graphs)
    times = {name: [] for name in names}
    for turn in range(rounds + 2):  # two rounds of warm-up
        for name in random.sample(names, len(names)):
            graph, count = graphs[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end) / count)
    return {name: statistics.median(t) for name, t in times.items()}


def check(shape):
    """Relative error against torch's math in float32 on one head."""
    if shape.lens or shape.softcap or shape.left >= 0 or shape.s > 8192:
        return float("nan")
    q, k, v = shape.q[0, :, 0].float(), shape.k[0, :, 0].float(), shape.v[0, :, 0].float()
    s = q @ k.T / math.sqrt(shape.d)
    if shape.causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    want = torch.softmax(s, -1) @ v
    return ((shape.out[0, :, 0].float() - want).norm() / want.norm()).item()


def shapes_of(name):
    if name == "quick":
        return [dict(d=d, s=s, causal=c) for d in (64, 128, 256) for c in (False, True)
                for s in (512, 2048, 16384)]
    if name == "tiny":
        return [dict(d=d, s=64, b=1, hq=1, causal=False) for d in (64, 128)]
    if name == "main":
        return [dict(d=d, s=s, causal=c) for d in (64, 128, 256) for c in (False, True)
                for s in (512, 1024, 2048, 4096, 8192, 16384)]
    if name == "mma":
        rows = [dict(d=d, s=4096, causal=c) for d in (64, 128, 256) for c in (False, True)]
        rows += [dict(d=d, s=4096, causal=c, dtype="fp32", hq=512 // d) for d in (64, 128, 256)
                 for c in (False, True)]
        return [dict(row, family="family=1") for row in rows]
    if name.startswith("d"):
        return [dict(d=int(name[1:]), s=s, causal=c) for c in (False, True)
                for s in (512, 1024, 2048, 4096, 8192, 16384)]
    generator = torch.Generator().manual_seed(1)
    lens = torch.randint(64, 4096, (16,), generator=generator).tolist()
    rows = []
    for d in (64, 128):
        for c in (False, True):
            rows += [dict(d=d, s=4096, causal=c), dict(d=d, s=4096, causal=c, dtype="fp16"),
                     dict(d=d, s=2048, causal=c, b=16, lens=lens)]
        rows += [dict(d=d, s=8192, causal=True, b=1, hq=64, hkv=8),
                 dict(d=d, s=8192, causal=True, left=1023),
                 dict(d=d, s=4096, causal=True, softcap=50.0)]
    rows += [dict(d=96, s=4096, causal=c) for c in (False, True)]
    rows += [dict(d=192, dv=128, s=4096, b=1, hq=32, causal=c) for c in (False, True)]
    rows += [dict(d=192, s=4096, causal=c) for c in (False, True)]
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--set", default="quick")
    parser.add_argument("--variants", default="")  # lines "d causal|full changes"
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=12.0)
    parser.add_argument("--json", default="")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    library = Library(options.library)
    variants = [line.split() for line in open(options.variants)] if options.variants else []
    rows = []
    ratios = []
    for spec in shapes_of(options.set):
        torch.manual_seed(0)
        shape = Shape(**spec)
        calls = {}
        mask = "causal" if shape.causal else "full"
        changes = [""] + [v[2] for v in variants
                          if int(v[0]) == shape.d and v[1] in (mask, "both")]
        errors = {}
        for change in changes:
            try:
                words = ",".join(filter(None, [shape.family, change]))
                handle = library.plan(shape.problem(), words)
            except RuntimeError as error:
                print("   ", change, "failed:", str(error)[:300])
                continue
            tensors = (shape.q, shape.k, shape.v, shape.out, shape.starts, shape.starts)
            calls[change] = lambda h=handle, t=tensors: library.run(h, t, shape.workspace)
            shape.out.fill_(float("nan"))
            calls[change]()
            torch.cuda.synchronize()
            errors[change] = check(shape)
        peer = None
        if shape.peer():
            peer, call = shape.peer()
            try:
                call()
                calls[peer] = call
            except RuntimeError as error:
                print(f"    {peer}:", str(error)[:100])
        times = time_all(calls, options.slice, options.rounds)
        tflops = {name: shape.flops() / t * 1e-9 for name, t in times.items()}
        row = {"case": shape.text(), "backend": "gpu", "ms": round(times[""], 5),
               "tflops": round(tflops[""], 1)}
        line = f"{shape.text():62s} {times['']:8.4f} ms {tflops['']:6.0f}"
        if peer in times:
            row["peers"] = {peer: {"ms": round(times[peer], 5),
                                   "tflops": round(tflops[peer], 1)}}
            ratios.append(times[peer] / times[""])
            line += f"  {peer} {tflops[peer]:6.0f}  x{ratios[-1]:.2f}"
        line += f"  err {errors['']:.1e}"
        for change in changes[1:]:
            if change in tflops:
                line += f"\n      {change:70s} {tflops[change]:6.0f}  err {errors[change]:.1e}"
        print(line, flush=True)
        rows.append(row)
    if ratios:
        print(f"geomean x the peer {math.exp(statistics.mean(map(math.log, ratios))):.3f}, "
              f"least {min(ratios):.3f}")
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw,"
                          "temperature.gpu", "--format=csv,noheader"], capture_output=True,
                         text=True).stdout.strip()
    print(smi)
    if options.json:
        machine = {"gpu": torch.cuda.get_device_name(), "state_after": smi}
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                    "cuda": torch.version.cuda}
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        with open(options.json, "w") as out:
            json.dump({"schema": 1, "machine": machine, "versions": versions,
                       "commit": options.commit, "command": " ".join(sys.argv), "date": stamp,
                       "rows": rows},
                      out, indent=1)


if __name__ == "__main__":
    main()
