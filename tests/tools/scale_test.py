"""bench/scale.py runs what it says, reads memory and judges, with a stand-in for the program."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STAND_IN = """#!/usr/bin/env python3
import json, sys
threads = int(sys.argv[sys.argv.index("--threads") + 1])
row = dict(case=sys.argv[2], backend="cpu", threads=threads, ms=8 / threads, tflops=0.1 * threads,
           share_of_peak=0.5, peak_gflops=1, workspace_bytes=64)
print(json.dumps(dict(schema=1, machine=dict(cpu="none"), commit="unknown", rows=[row])))
"""


def scale(program, *words):
    return subprocess.run([sys.executable, ROOT / "bench" / "scale.py", "--program", program,
                           *words], capture_output=True, text=True, check=False)


class Scale(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = os.path.join(self.folder.name, "program")

    def stand_in(self, text):
        pathlib.Path(self.program).write_text(text, encoding="utf-8")
        os.chmod(self.program, 0o755)

    def test_rows_and_verdicts(self):
        self.stand_in(STAND_IN)
        path = os.path.join(self.folder.name, "result.json")
        done = scale(self.program, "--threads", "3", "--lengths", "131072", "--rounds", "1",
                     "--commit", "abc", "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.assertEqual(result["commit"], "abc")
        threads = [row for row in result["rows"] if row["table"] == "threads"]
        self.assertEqual([row["threads"] for row in threads], [1, 2, 3] * 2)
        self.assertEqual([row["speedup"] for row in threads], [1, 2, 3] * 2)
        lengths = [row["length"] for row in result["rows"] if row["table"] == "lengths"]
        self.assertEqual(lengths, [2**i for i in range(7, 18)] * 2)
        self.assertTrue(all(row["peak_rss_bytes"] > 2**20 for row in result["rows"]))
        self.assertIn("at least 1.95: 2.000 x, met", done.stdout)
        self.assertIn("of 65,536 tokens, bf16, at most 2.05: ", done.stdout)

    def test_a_slow_second_core_is_not_met(self):
        self.stand_in(STAND_IN.replace("8 / threads", "8 / min(threads, 1.9)"))
        done = scale(self.program, "--threads", "2", "--lengths", "128", "--rounds", "1")
        self.assertIn("at least 1.95: 1.900 x, NOT met", done.stdout)

    def test_a_program_that_fails_stops_it(self):
        self.stand_in("#!/bin/sh\nexit 3\n")
        done = scale(self.program, "--threads", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("scale: exit status 3: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
