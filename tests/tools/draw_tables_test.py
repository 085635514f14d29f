#!/usr/bin/env python3
"""tools/draw_tables: pages whose tables come from result files alone say what these say."""
import importlib.machinery
import importlib.util
import os
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOADER = importlib.machinery.SourceFileLoader("draw_tables", f"{ROOT}/tools/draw_tables")
SPEC = importlib.util.spec_from_loader("draw_tables", LOADER)
draw_tables = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(draw_tables)


class DrawTables(unittest.TestCase):
    def test_pages_are_drawn(self):
        for page in ("docs/io-model.md", "docs/speed.md"):
            before, after = draw_tables.drawn(page)
            self.assertEqual(before, after, "run tools/draw_tables")
            for name in draw_tables.PAGES[page]:
                self.assertIn(f"<!-- {name} -->\n", before)

    def test_a_changed_figure_shows(self):
        text = "<!-- x -->\n1\n<!-- /x -->"
        self.assertEqual(draw_tables.replace_part(text, "x", "2"), "<!-- x -->\n2\n<!-- /x -->")
        self.assertEqual(draw_tables.replace_part(text, "x", None), text)


if __name__ == "__main__":
    unittest.main()
