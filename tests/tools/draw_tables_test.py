#!/usr/bin/env python3
"""tools/draw_tables: pages whose tables come from result files alone say what these say."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOADER = importlib.machinery.SourceFileLoader("draw_tables", f"{ROOT}/tools/draw_tables")
SPEC = importlib.util.spec_from_loader("draw_tables", LOADER)
draw_tables = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(draw_tables)


class DrawTables(unittest.TestCase):
    def test_pages_are_drawn(self):
        for page in ("docs/io-model.md", "docs/speed.md", "docs/testing.md"):
            before, after = draw_tables.drawn(page)
            self.assertEqual(before, after, "run tools/draw_tables")
            for name in draw_tables.PAGES[page]:
                self.assertIn(f"<!-- {name} -->\n", before)

    def test_a_changed_figure_shows(self):
        text = "<!-- x -->\n1\n<!-- /x -->"
        self.assertEqual(draw_tables.replace_part(text, "x", "2"), "<!-- x -->\n2\n<!-- /x -->")
        self.assertEqual(draw_tables.replace_part(text, "x", None), text)

    def test_peers_are_summed_up_with_their_goals(self):
        def row(case, ms, **peers):
            return {"case": case, "ms": ms, "tflops": 0.05, "threads": 1,
                    "peers": {name: {"ms": time} for name, time in peers.items()}}
        self.addCleanup(setattr, draw_tables, "rows_of", draw_tables.rows_of)
        draw_tables.rows_of = lambda name: [
            row("b=1 hq=8 q=512 d=64 layout=bhsd", 2, torch=4, jax=3),
            row("b=1 hq=8 q=1024 d=64 layout=bhsd", 2, torch=2.1, jax=3),
            row("b=1 hq=8 q=512 d=64 mask=causal dtype=bf16 dir=bwd", 1, torch=1.8)]
        self.assertEqual(draw_tables.cpu_peers_table("x.json", draw_tables.PEER_SETS), """\
| one core | 512 | 1,024 |
|---|---|---|
| fp32 fwd, d 64, full | 50 (1.50 x jax) | 50 (1.05 x torch) |
| bf16 bwd, d 64, causal | 50 (1.80 x torch) |  |

- fp32 fwd: 1.25 x the best peer in geomean (goal 1.3: not met), 1.05 x at least (goal 1.1: not met)
- bf16 bwd: 1.80 x the best peer in geomean, 1.80 x at least (goal 1.7: met)""")

    def test_of_scale_both_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            draw_tables.RESULTS = pathlib.Path(folder)
            self.addCleanup(setattr, draw_tables, "RESULTS", draw_tables.ROOT / "bench/results")
            self.assertIsNone(draw_tables.scale_table("x.json"))
            row = {"case": "q=1", "threads": 2, "ms": 1.5, "tflops": 0.25}
            rows = [row | {"table": "threads", "speedup": 1.96},
                    row | {"table": "lengths", "peak_rss_bytes": 2**21, "workspace_bytes": 1024}]
            (draw_tables.RESULTS / "x.json").write_text(json.dumps(
                {"machine": {"cpu": "C"}, "commit": "abc", "command": "scale", "rows": rows}))
            drawn = draw_tables.scale_table("x.json").splitlines()
            self.assertIn("| `q=1` | 2 | 1.5 | 250 | 1.96 x |", drawn)
            self.assertIn("| `q=1` | 2 | 1.50 | 250 | 2 MiB | 1 KiB |", drawn)


if __name__ == "__main__":
    unittest.main()
