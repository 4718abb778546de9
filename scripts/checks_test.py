#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks must be able to fail: each is run on a small tree with one fault."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_docs  # noqa: E402
import check_layers  # noqa: E402

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("docs/cli.md", "| `FLASHPRIME_KNOWN` | x |\n")
        self.write("src/a.cc", SPDX + 'auto x = getenv("FLASHPRIME_KNOWN");\n')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class DocsTest(TreeTest):
    def problems(self, text):
        self.write("README.md", text)
        return check_docs.check_tree(self.root)

    def test_a_good_tree_has_no_problem(self):
        self.assertEqual(self.problems("[cli](docs/cli.md) and `src/a.cc`, [web](https://x)\n"), [])

    def test_a_dead_link_is_found(self):
        self.assertIn("no such file", self.problems("[x](docs/gone.md)\n")[0])

    def test_a_dead_anchor_is_found(self):
        self.assertEqual(self.problems("# A title, here\n[x](#a-title-here)\n"), [])
        self.assertIn("no such heading", self.problems("# A\n[x](#b)\n")[0])

    def test_a_path_that_does_not_exist_is_found(self):
        self.assertIn("src/b.cc", self.problems("see `src/b.cc`\n")[0])
        self.assertEqual(self.problems("see `src/*.cc`\n"), [])

    def test_a_snippet_that_differs_from_the_code_is_found_and_rewritten(self):
        self.write("examples/e.cc", "void f() {\n  // [call]\n  g();\n  // [/call]\n}\n")
        block = "<!-- snippet: examples/e.cc#call -->\n```cpp\n{}```\n"
        self.assertEqual(self.problems(block.format("g();\n")), [])
        self.assertIn("differs", self.problems(block.format("h();\n"))[0])
        check_docs.check_tree(self.root, write=True)
        self.assertIn("g();", (self.root / "README.md").read_text(encoding="utf-8"))

    def test_a_snippet_without_its_marker_is_found(self):
        self.write("examples/e.cc", "g();\n")
        text = "<!-- snippet: examples/e.cc#call -->\n```cpp\ng();\n```\n"
        self.assertIn("wants one", self.problems(text)[0])

    def test_a_stale_table_is_found(self):
        text = "<!-- generated: flashprime {} -->\n{}<!-- /generated -->\n"
        self.write("README.md", text.format("hello", "hello\n"))
        self.assertEqual(check_docs.check_tree(self.root, "/bin/echo"), [])
        self.write("README.md", text.format("hello", "goodbye\n"))
        self.assertIn("has changed", check_docs.check_tree(self.root, "/bin/echo")[0])

    def test_an_undocumented_variable_is_found(self):
        self.write("src/b.cc", SPDX + 'auto y = getenv("FLASHPRIME_SECRET");\n')
        self.assertIn("FLASHPRIME_SECRET", self.problems("")[0])

    def test_an_undocumented_variable_of_the_python_package_is_found(self):
        self.write("python/flashprime/a.py", 'OVERRIDE = "FLASHPRIME_NEW"\n')
        self.assertIn("FLASHPRIME_NEW", " ".join(self.problems("")))

    def test_a_documented_variable_that_nothing_reads_is_found(self):
        self.write("src/a.cc", SPDX)
        self.assertIn("read by nothing", self.problems("")[0])


class LayersTest(TreeTest):
    def setUp(self):
        super().setUp()
        original = check_layers.ROOT
        check_layers.ROOT = self.root
        self.addCleanup(setattr, check_layers, "ROOT", original)
        self.write("include/flashprime/types.h", SPDX + "#pragma once\n")
        self.write("src/cpu/fast.h", SPDX + "#pragma once\n")

    def problems(self, name, text):
        return list(check_layers.check_file(self.write(name, SPDX + text)))

    def test_the_command_may_include_the_public_headers(self):
        self.assertEqual(self.problems("cli/a.cc", '#include "flashprime/types.h"\n'), [])

    def test_the_command_may_not_include_the_library_inside(self):
        self.assertIn("may not include", self.problems("cli/a.cc", '#include "src/cpu/fast.h"\n')[0])
        self.assertIn("may not include", self.problems("cli/a.cc", '#include "cpu/fast.h"\n')[0])

    def test_a_public_header_may_not_use_a_third_party_library(self):
        text = "#pragma once\n#include <fmt/format.h>\n"
        self.assertIn("may not use fmt", self.problems("include/flashprime/a.h", text)[0])

    def test_the_binding_may_use_the_public_headers_and_tvm_ffi_alone_may(self):
        text = '#include <tvm/ffi/error.h>\n#include "flashprime/types.h"\n'
        self.assertEqual(self.problems("python/src/a.cc", text), [])
        self.assertIn("may not use tvm", self.problems("src/a.cc", text)[0])
        self.assertIn(
            "may not include", self.problems("python/src/a.cc", '#include "cpu/fast.h"\n')[0]
        )

    def test_the_case_table_may_use_the_public_api_only(self):
        self.assertIn(
            "may not include", self.problems("tests/cases/a.cc", '#include "cpu/fast.h"\n')[0]
        )
        self.assertEqual(self.problems("tests/unit/a.cc", '#include "cpu/fast.h"\n'), [])

    def test_a_header_without_guard_or_licence_is_found(self):
        self.assertIn("pragma once", self.problems("src/b.h", "")[0])
        self.assertIn("SPDX", next(check_layers.check_file(self.write("src/c.cc", "int x;\n"))))


if __name__ == "__main__":
    unittest.main()
