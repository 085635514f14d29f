"""Times the cpu backend beside its peers, shape by shape, in one run.

  cpu.py [--program build/bin/tilewise] [--threads N]
         [--set all|forward|backward|matrix|quick]
         [--json FILE [--resume]]      resume: keep the rows that FILE has

matrix: bf16 of the longest shapes, both directions, for processors with a matrix unit.
Peers: PyTorch (scaled_dot_product_attention, forward and backward), ONNX Runtime
(MultiHeadAttention, fp32), OpenVINO (ScaledDotProductAttention), JAX (dot_product_attention,
fp32) and ggml (ggml_flash_attn_ext); each that is not installed is left out and named. ggml is one
when the environment variable GGML_LIBRARIES names the folder with its libggml-base.so and
libggml-cpu.so; the source package llama-cpp-python holds its sources (vendor/llama.cpp/ggml), which
cmake builds alone. Every contender of a shape runs in a
process of its own that may use N cores, the contenders take turns for several rounds, and the
median of the rounds counts, so that a machine whose clock moves is unfair to nobody. One thread is
timed by its CPU time, several by the wall. Inputs are normal(0, 1), contiguous [b, h, s, d].

GFLOP/s count useful work: 4 pairs d forward, 10 pairs d backward, pairs that the mask shows.
"""

import argparse
import datetime
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time

SHAPES = [(n, d, causal) for d in (64, 128) for n in (512, 1024, 4096) for causal in (False, True)]
GGML = "GGML_LIBRARIES"
PEERS = {"torch": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino", "jax": "jax"}
HEADS = 8
SECONDS = 0.4  # of one measurement
LONGEST_TO_REPEAT = 5  # seconds; a longer call is a sample by itself
LONGEST_OF_JAX = 1024  # it takes 6 and 10 times as long at 4096, and most of the run's time


def takes(peer, shape, dtype, backward):
    if backward:
        return peer == "torch"
    if peer == "jax" and shape[0] > LONGEST_OF_JAX:
        return False
    return dtype == "fp32" or peer in ("torch", "openvino", "ggml")


# --- one peer, one shape: each returns a function that computes once ---

def torch_call(n, d, causal, dtype, backward, threads):
    import torch
    torch.set_num_threads(threads)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    q, k, v, g = (torch.randn(1, HEADS, n, d).to(kind) for _ in range(4))
    attention = torch.nn.functional.scaled_dot_product_attention
    if not backward:
        def forward():
            with torch.no_grad():
                attention(q, k, v, is_causal=causal)
        return forward
    for x in (q, k, v):
        x.requires_grad_()
    out = attention(q, k, v, is_causal=causal)

    def gradients():
        torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
    return gradients


def onnxruntime_call(n, d, causal, dtype, backward, threads):
    import numpy
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
    names = ["query", "key", "value"]
    node = helper.make_node("MultiHeadAttention", names, ["out"], domain="com.microsoft",
                            num_heads=HEADS, unidirectional=int(causal))
    shape = [1, n, HEADS * d]
    graph = helper.make_graph(
        [node], "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)])
    model = helper.make_model(graph, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    inputs = {name: numpy.random.randn(*shape).astype(numpy.float32) for name in names}
    return lambda: session.run(None, inputs)


def openvino_call(n, d, causal, dtype, backward, threads):
    import numpy
    import openvino
    from openvino import opset13
    shape = [1, HEADS, n, d]
    parameters = [opset13.parameter(shape, numpy.float32, name=name) for name in "qkv"]
    node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
    precision = {"fp32": "f32", "bf16": "bf16"}[dtype]
    compiled = openvino.Core().compile_model(
        openvino.Model([node], parameters), "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    inputs = [numpy.random.randn(*shape).astype(numpy.float32) for _ in range(3)]
    return lambda: request.infer(inputs)


def jax_call(n, d, causal, dtype, backward, threads):
    import jax
    key = jax.random.PRNGKey(0)
    q, k, v = (jax.random.normal(key, (1, n, HEADS, d)) for _ in range(3))
    attention = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
    return lambda: attention(q, k, v).block_until_ready()


def ggml_library():
    """ggml's functions, with the types of what they take."""
    import ctypes
    folder = os.environ[GGML]
    base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(os.path.join(folder, "libggml-cpu.so"))

    class Memory(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_size_t), ("data", ctypes.c_void_p),
                    ("no_alloc", ctypes.c_bool)]
    pointer, number, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_int64
    for library, name, result, arguments in (
            (base, "ggml_init", pointer, [Memory]),
            (base, "ggml_new_tensor_4d", pointer, [pointer, ctypes.c_int] + [size] * 4),
            (base, "ggml_get_data", pointer, [pointer]),
            (base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [number] * 3),
            (base, "ggml_new_graph", pointer, [pointer]),
            (base, "ggml_build_forward_expand", None, [pointer] * 2),
            (base, "ggml_backend_graph_compute", ctypes.c_int, [pointer] * 2),
            (cpu, "ggml_backend_cpu_init", pointer, []),
            (cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int])):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(base, name, function)
    return base, Memory


def ggml_call(n, d, causal, dtype, backward, threads):
    """q is fp32 always, k and v of the dtype; the causal mask is a matrix of fp16."""
    import ctypes
    import numpy
    ggml, memory = ggml_library()
    context = ggml.ggml_init(memory(16 * HEADS * n * d + 2 * n * n + 2**26, None, False))

    def tensor(kind, values, *shape):
        made = ggml.ggml_new_tensor_4d(context, kind, *shape)
        ctypes.memmove(ggml.ggml_get_data(made), values.ctypes.data, values.nbytes)
        return made

    def normal(kind):
        values = numpy.random.randn(HEADS, n, d).astype(numpy.float32)
        if kind == bf16:
            values = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        return tensor(kind, values, d, n, HEADS, 1)
    fp32, fp16, bf16 = 0, 1, 30  # of enum ggml_type
    kind = {"fp32": fp32, "bf16": bf16}[dtype]
    mask = None
    if causal:
        hidden = numpy.triu(numpy.full((n, n), -numpy.inf, numpy.float16), 1)
        mask = tensor(fp16, hidden, n, n, 1, 1)
    out = ggml.ggml_flash_attn_ext(context, normal(fp32), normal(kind), normal(kind), mask,
                                   d ** -0.5, 0, 0)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, out)
    backend = ggml.ggml_backend_cpu_init()
    ggml.ggml_backend_cpu_set_n_threads(backend, threads)

    def compute():
        if ggml.ggml_backend_graph_compute(backend, graph) != 0:
            raise RuntimeError("ggml could not compute")
    return compute


def stay_on(threads):
    """This process, and what it starts, on as many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def measure_here(peer, shape, dtype, backward, threads):
    """Milliseconds of one call in this process."""
    stay_on(threads)
    call = globals()[peer + "_call"](*shape, dtype, backward, threads)
    # Work may run on a pool even when one thread is asked for: count the whole process.
    clock = time.process_time if threads == 1 else time.perf_counter
    call()
    start = clock()
    call()
    seconds = clock() - start
    if seconds > LONGEST_TO_REPEAT:
        return seconds * 1e3
    count = max(1, int(SECONDS / 3 / max(seconds, 1e-6)))
    samples = []
    for _ in range(3):
        start = clock()
        for _ in range(count):
            call()
        samples.append((clock() - start) / count)
    return statistics.median(samples) * 1e3


# --- the run ---

def measure_peer(peer, shape, dtype, backward, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                       JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
    work = json.dumps([peer, shape, dtype, backward, threads])
    done = subprocess.run([sys.executable, __file__, "--measure", work], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "died")
    return float(done.stdout.split()[-1])


def case_text(shape, dtype, backward):
    n, d, causal = shape
    text = f"b=1 hq={HEADS} q={n} d={d} layout=bhsd dtype={dtype}"
    return text + (" mask=causal" if causal else "") + (" dir=bwd" if backward else "")


def measure_tilewise(program, shape, dtype, backward, threads):
    command = [program, "bench", case_text(shape, dtype, backward), "--threads", str(threads),
               "-r", "5", "--backend", "cpu", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                          preexec_fn=lambda: stay_on(threads))
    return json.loads(done.stdout)


def flops_of(shape, backward):
    n, d, causal = shape
    pairs = n * (n + 1) / 2 if causal else n * n
    return HEADS * pairs * d * (10 if backward else 4)


def run_shape(program, shape, dtype, backward, threads, peers, rounds):
    times = {peer: [] for peer in peers}
    own, peaks, matrix_peaks, report = [], [], [], None
    for _ in range(rounds):
        report = measure_tilewise(program, shape, dtype, backward, threads)
        own.append(report["rows"][0]["ms"])
        peaks.append(report["rows"][0]["peak_gflops"])
        matrix_peaks.append(report["rows"][0].get("matrix_peak_gflops", 0))
        for peer in list(times):
            try:
                times[peer].append(measure_peer(peer, shape, dtype, backward, threads))
            except RuntimeError as error:
                print(f"  {peer} left out: {error}", file=sys.stderr)
                del times[peer]
    flops = flops_of(shape, backward)
    row = dict(report["rows"][0])
    row["ms"] = statistics.median(own)
    row["tflops"] = flops / row["ms"] * 1e-9
    row["peak_gflops"] = statistics.median(peaks)
    if max(matrix_peaks) > 0:
        row["matrix_peak_gflops"] = statistics.median(matrix_peaks)
    row["share_of_peak"] = row["tflops"] * 1e3 / row["peak_gflops"]
    row["peers"] = {}
    for peer, samples in times.items():
        ms = statistics.median(samples)
        row["peers"][peer] = {"ms": ms, "tflops": flops / ms * 1e-9}
    return row, report


def say(row):
    ratios = ", ".join(f"{peer} {p['ms'] / row['ms']:.2f} x" for peer, p in row["peers"].items())
    print(f"{row['case']}: {row['tflops'] * 1e3:.0f} GFLOP/s, {row['share_of_peak']:.0%} of the "
          f"fp32 peak; {ratios}", flush=True)


def versions_of(peers):
    from importlib import metadata
    versions = {peer: metadata.version(peer) for peer in peers if peer != "ggml"}
    if "ggml" in peers:
        versions["ggml"] = ggml_version()
    return versions


def ggml_version():
    import ctypes
    base, _ = ggml_library()
    base.ggml_version.restype = ctypes.c_char_p
    return base.ggml_version().decode()


def installed_peers():
    there = [peer for peer, module in PEERS.items() if importlib.util.find_spec(module)]
    for peer in PEERS.keys() - set(there):
        print(f"not installed, so left out: {peer}", file=sys.stderr)
    if GGML in os.environ:
        return there + ["ggml"]
    print(f"{GGML} is not set, so left out: ggml", file=sys.stderr)
    return there


def work_of(name):
    if name == "quick":
        return [((512, 64, False), "fp32", False), ((512, 64, True), "fp32", True)]
    if name == "matrix":
        longest = max(shape[0] for shape in SHAPES)
        return [(shape, "bf16", backward) for backward in (False, True)
                for shape in SHAPES if shape[0] == longest]
    directions = {"all": (False, True), "forward": (False,), "backward": (True,)}[name]
    return [(shape, dtype, backward) for backward in directions for dtype in ("fp32", "bf16")
            for shape in SHAPES]


def write_result(path, report, rows, peers):
    """After every row, so that a run that is stopped has written what it measured."""
    versions = report["versions"] | versions_of(peers) | {"python": platform.python_version()}
    result = report | {"versions": versions, "rows": rows,
                       "command": "bench/peers/cpu.py " + " ".join(sys.argv[1:]),
                       "date": datetime.datetime.now(datetime.timezone.utc).isoformat(
                           "T", "seconds")}
    with open(path, "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/bin/tilewise")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", default="forward",
                        choices=["all", "forward", "backward", "matrix", "quick"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        peer, shape, dtype, backward, threads = json.loads(options.measure)
        print(measure_here(peer, shape, dtype, backward, threads))
        return
    there = installed_peers()
    rows, first = [], None
    work = work_of(options.set)
    if options.resume:
        with open(options.json) as file:
            first = json.load(file)
        rows = first["rows"]
    for shape, dtype, backward in work[len(rows):]:
        peers = [peer for peer in there if takes(peer, shape, dtype, backward)]
        row, report = run_shape(options.program, shape, dtype, backward, options.threads, peers,
                                options.rounds)
        rows.append(row)
        first = first or report
        say(row)
        if options.json:
            write_result(options.json, first, rows, there)
    best = [min(p["ms"] for p in row["peers"].values()) / row["ms"] for row in rows if row["peers"]]
    if best:
        print(f"against the best peer of each shape: geomean "
              f"{math.exp(statistics.fmean(map(math.log, best))):.2f} x, least {min(best):.2f} x")


if __name__ == "__main__":
    main()
