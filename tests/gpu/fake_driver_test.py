#!/usr/bin/env python3
"""The GPU backend without a GPU: the program runs against a stand-in for libcuda and NVRTC
(tests/gpu/fake), each time with another thing gone wrong, and its messages are read.

    fake_driver_test.py PROGRAM FAKES       prints "N passed, N failed"

FAKES holds good/, old_driver/ and old_nvrtc/ with libcuda.so.1 and libnvrtc.so.13.
"""
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM, FAKES = sys.argv[1:3]
CASE = "b=1 hq=2 q=70 kv=70 d=64 dtype=bf16"


class Bench:
    """One cache directory, and the counts."""

    def __init__(self):
        self.cache = tempfile.mkdtemp(prefix="tilewise-fake-")
        self.passed = self.failed = 0

    def run(self, words, fakes="good", program=PROGRAM, **environment):
        folder = os.path.join(FAKES, fakes)
        env = {**os.environ, "TILEWISE_CACHE_DIR": self.cache, **environment}
        env["LD_LIBRARY_PATH"] = folder + ":" + env.get("LD_LIBRARY_PATH", "")
        done = subprocess.run([program] + words, env=env, capture_output=True, text=True)
        return done.stdout + done.stderr

    def expect(self, name, text, *parts):
        missing = [part for part in parts if part not in text]
        if missing:
            self.failed += 1
            print(f"FAILED {name}: {missing} not in\n{text}")
        else:
            self.passed += 1

    def check(self, name, *parts, case=CASE, **rest):
        self.expect(name, self.run(["check", case, "--backend", "gpu"], **rest), *parts)


def device_errors(bench):
    bench.check("no device", "skip", "gpu: cuInit failed: no CUDA-capable device is detected",
                FAKE_CUDA="no_device")
    bench.check("old driver", "skip",
                "gpu: the NVIDIA driver is too old: cuTensorMapEncodeTiled is missing "
                "(need 525 or newer)", fakes="old_driver")
    bench.check("no memory", "FAIL", "device 0: no memory for", FAKE_CUDA="no_memory")
    bench.check("refused cubin", "FAIL",
                "cuLibraryLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (the fake was told to fail)",
                FAKE_CUDA="load_fails")
    bench.check("launch", "FAIL",
                "cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (the fake was told to fail)",
                FAKE_CUDA="launch_fails")
    bench.check("kernel", "FAIL",
                "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (the fake was told to fail)",
                FAKE_CUDA="kernel_fails")


def compiler_errors(bench):
    shutil.rmtree(bench.cache)
    os.mkdir(bench.cache, 0o700)
    bench.check("old NVRTC", "NVRTC is too old: nvrtcGetCUBINSize is missing (need 12.0 or newer)",
                fakes="old_nvrtc")
    text = bench.run(["check", CASE, "--backend", "gpu"], FAKE_NVRTC="compile_fails")
    bench.expect("compile failure", text, "NVRTC could not compile a kernel",
                 "error: the fake was told to fail", "the kernel's source is in " + bench.cache)
    sources = [name for name in os.listdir(bench.cache) if name.endswith(".cu")]
    stub = open(os.path.join(bench.cache, sources[0])).read() if len(sources) == 1 else ""
    bench.expect("source of the failure", stub, '#include "kernels/forward_', "kSpec{",
                 "tilewise_kernel(")


def results(bench):
    """The kernels of the stand-in do nothing, so a check must see that nothing was written."""
    bench.check("nothing written", "FAIL", "was not written (",
                "rerun: tilewise check \"" + CASE.replace("kv=70 ", "") + "\" --backend gpu")
    text = bench.run(["check", CASE])
    bench.expect("gpu joins by itself", text, "FAIL  gpu", "pass  cpu")
    text = bench.run(["bench", CASE, "--backend", "gpu", "--repetitions", "1"])
    bench.expect("bench names the device", text, "device: Fake Hopper, tensors copied there",
                 "200 us")  # 1 ms by the stand-in's clock, 5 calls
    bench.expect("support asks the device", bench.run(["support", "--csv"]),
                 "\nbf16,gpu,1,0", "\nsliding window,gpu,1,0")


def packs(bench):
    """A kernel from a pack beside the program is taken before NVRTC is asked."""
    folder = os.path.join(bench.cache, "own")
    os.mkdir(folder)
    program = shutil.copy(PROGRAM, folder)
    text = bench.run(["prebuild", "--arch", "sm_90a", CASE, CASE + " mask=causal"], program=program)
    bench.expect("prebuild", text, "qk_dim = 64", "bound_right = 1",
                 "2 kernels for sm_90a in " + folder + "/tilewise-kernels")
    fails = {"FAKE_NVRTC": "compile_fails", "program": program}
    bench.expect("from the pack", bench.run(["check", CASE, "--backend", "gpu"], **fails),
                 "was not written (")
    bench.expect("not in the pack",
                 bench.run(["check", CASE + " softcap=3", "--backend", "gpu"], **fails),
                 "NVRTC could not compile a kernel")
    bench.expect("unknown arch", bench.run(["prebuild", "--arch", "sm_70", CASE]),
                 'prebuild: arch is "sm_70", expected one of sm_80, ')
    bench.expect("no backward", bench.run(["prebuild", "--arch", "sm_80", CASE + " dir=bwd"]),
                 "the GPU has no backward kernel yet")
    bench.expect("closed pack",
                 bench.run(["prebuild", "--arch", "sm_80", CASE, "--pack", "/dev/null/x"]),
                 "prebuild: cannot write to /dev/null/x")


def main():
    bench = Bench()
    try:
        results(bench)
        device_errors(bench)
        compiler_errors(bench)
        packs(bench)
    finally:
        shutil.rmtree(bench.cache)
    print(f"{bench.passed} passed, {bench.failed} failed")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
