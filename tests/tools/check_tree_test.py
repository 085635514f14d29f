#!/usr/bin/env python3
"""tools/check_tree on small trees: each rule complains where it should and nowhere else."""
import importlib.machinery
import importlib.util
import os
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOADER = importlib.machinery.SourceFileLoader("check_tree", f"{ROOT}/tools/check_tree")
LOADER_SPEC = importlib.util.spec_from_loader("check_tree", LOADER)
check_tree = importlib.util.module_from_spec(LOADER_SPEC)
LOADER.exec_module(check_tree)

HEADER = "// What it is.\n#pragma once\n"


def complaints(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return check_tree.check(root)[1]


class CheckTree(unittest.TestCase):
    def assert_complains(self, files, *texts):
        found = complaints(files)
        self.assertEqual(len(found), len(texts), found)
        for text in texts:
            self.assertTrue(any(text in line for line in found), (text, found))

    def test_a_good_tree(self):
        self.assert_complains({
            "include/tilewise/tilewise.hpp": HEADER,
            "src/backend.h": HEADER + '#include "tilewise/tilewise.hpp"\n',
            "src/semantics/mask.h": HEADER,
            "src/cpu/backend.cc": '// CPU.\n#include <vector>\n#include "backend.h"\n',
            "src/gpu/kernels/tile.cuh": HEADER + '#include "semantics/mask.h"\n',
            "cli/main.cc": '// Program.\n#include "tilewise/tilewise.hpp"\n',
            "README.md": "See `src/cpu/backend.cc`, `src/{cpu,gpu}` and `src/cpu/*.cc`.\n"})

    def test_backends_do_not_include_each_other(self):
        self.assert_complains({"src/cpu/a.h": HEADER,
                               "src/reference/b.cc": '// B.\n#include "cpu/a.h"\n'},
                              "src/reference/b.cc:2: reference may not include src/cpu/a.h")

    def test_the_library_does_not_include_case_or_cli(self):
        self.assert_complains({"src/case/case.h": HEADER, "cli/verbs.h": HEADER,
                               "src/plan.cc": '// P.\n#include "case/case.h"\n'
                                              '#include "cli/verbs.h"\n'},
                              "src may not include src/case", "src may not include cli")

    def test_device_code_has_no_system_headers(self):
        self.assert_complains({"src/semantics/mask.h": HEADER + "#include <vector>\n",
                               "src/gpu/kernels/a.cuh": HEADER + "#include <cuda.h>\n"},
                              "<vector>", "<cuda.h>")

    def test_missing_include(self):
        self.assert_complains({"src/a.cc": '// A.\n#include "gone.h"\n'}, '"gone.h"')

    def test_sizes(self):
        long_function = "void f() {\n" + "  g();\n" * 60 + "}\n"
        self.assert_complains({"src/a.cc": "// A.\n" + long_function}, "function of 62 lines")
        self.assert_complains({"src/a.cc": "// A.\n" + "int a;\n" * 500}, "501 lines")
        self.assert_complains({"src/a.cuh": HEADER + "int a;\n" * 590})
        self.assert_complains({"src/a.cc": "// " + "x" * 98 + "\n"}, "101 columns")

    def test_functions_are_told_from_other_braces(self):
        text = 'namespace a {\nstruct B {\n  void f() { g("}"); }  // }\n};\n}\n'
        self.assertEqual(list(check_tree.functions(text)), [(3, 1)])

    def test_texts(self):
        self.assert_complains({"src/a.cc": "// TODO: later\n"}, "TODO needs")
        self.assert_complains({"src/a.cc": "// TODO #7: later\n"})
        self.assert_complains({"src/a.cc": "// A.\n#if 0\n#endif\n"}, "#if 0")
        self.assert_complains({"src/a.cc": "int a;\n"}, "does not open with a comment")
        self.assert_complains({"src/a.h": "// A.\n"}, "#pragma once")

    def test_names(self):
        self.assert_complains({"src/string_utils.cc": "// A.\n"}, '"utils"')
        self.assert_complains({"src/baseline.cc": "// A.\n"})

    def test_documents(self):
        self.assert_complains({"README.md": "`src/gone.cc` `./dev demo` `a/b` `build/bin/x`\n"},
                              "README.md:1: names src/gone.cc")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    raise SystemExit(bad > 0)
