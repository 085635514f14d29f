"""tests/cpu/spill_check.py sees a vector spilled in a hot loop, and nothing else."""
import contextlib
import io
import pathlib
import subprocess
import sys
import unittest

CPU = pathlib.Path(__file__).resolve().parent.parent / "cpu"
sys.path.insert(0, str(CPU))
import spill_check  # noqa: E402

HEADING = ("0000000000000000 <void tilewise::cpu::{}<tilewise::cpu::Avx2, "
           "(tilewise::cpu::Operand)1>(int)>:")
PRODUCT = "vfmadd231ps %ymm1,%ymm2,%ymm3"
STORE = "vmovaps %ymm6,0x20(%rsp)"


def listing(*instructions, name="product_tile"):
    """As objdump prints it, an instruction every 4 bytes from 0."""
    lines = [f"{4 * i:8x}:\t{words}" for i, words in enumerate(instructions)]
    return "\n".join([HEADING.format(name), *lines, ""])


def spills_of(*instructions):
    (_, code), = spill_check.functions(listing(*instructions))
    return [spills for _, _, spills in spill_check.hot_loops(code)]


def answer(text):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        complaints = spill_check.check("isa_x.cc.o", text)
    return complaints, printed.getvalue()


class SpillCheck(unittest.TestCase):
    def test_a_store_and_a_load_in_a_hot_loop_count(self):
        load = "vfmadd231ps 0x40(%rsp),%zmm1,%zmm0"
        self.assertEqual(spills_of(*[PRODUCT] * 3, STORE, load, "jne    0 <f+0x0>"), [2])

    def test_outside_the_loop_they_do_not(self):
        self.assertEqual(spills_of(STORE, *[PRODUCT] * 4, "jne    4 <f+0x4>", STORE), [0])

    def test_nor_in_a_loop_around_it(self):
        self.assertEqual(
            spills_of(STORE, *[PRODUCT] * 4, "jne    4 <f+0x4>", STORE, "jmp    0 <f>"), [0])

    def test_several_jumps_to_one_place_are_one_loop(self):
        self.assertEqual(
            spills_of(*[PRODUCT] * 4, "je     0 <f>", STORE, "jne    0 <f>"), [1])

    def test_scalars_arrays_and_cold_loops_do_not_count(self):
        scalar = "vmovss %xmm0,0x58(%rsp)"
        array = "vmovaps %ymm6,0x20(%rsp,%rax,4)"
        pointer = "vmovaps %ymm6,0x20(%rbp)"
        self.assertEqual(spills_of(*[PRODUCT] * 4, scalar, array, pointer, "jne    0 <f>"), [0])
        self.assertEqual(spills_of(*[PRODUCT] * 3, STORE, "jne    0 <f>"), [])

    def test_rbp_counts_where_it_is_the_frame(self):
        self.assertEqual(spills_of("mov    %rsp,%rbp", *[PRODUCT] * 4, "vmovaps %ymm6,-0x20(%rbp)",
                                   "jne    4 <f>"), [1])

    def test_tiles_and_dot_products_are_products(self):
        self.assertEqual(spills_of(*["tdpbf16ps %tmm1,%tmm2,%tmm3"] * 2,
                                   *["vdpbf16ps %zmm1,%zmm2,%zmm3"] * 2, "jne    0 <f>"), [0])

    def test_what_it_says(self):
        spilled = [*[PRODUCT] * 4, STORE, "jne    0 <f>"]
        self.assertEqual(answer(listing(*spilled)), (
            1, "isa_x.cc.o: product_tile<Avx2, 1>: 1 vectors to or from the stack in a loop of "
               "6 instructions and 4 products, at most 0\n"
               "isa_x.cc.o: 1 hot loops, 1 complaints\n"))
        self.assertEqual(answer(listing("ret")), (
            1, "isa_x.cc.o: 0 hot loops, 0 complaints\n"
               "isa_x.cc.o: no hot loop found: this test sees nothing\n"))

    def test_a_bound_is_a_bound(self):
        spilled = [*[PRODUCT] * 4, STORE, "jne    0 <f>"]
        spill_check.BOUNDS["product_tile<Avx2, 1>"] = 1
        self.addCleanup(spill_check.BOUNDS.pop, "product_tile<Avx2, 1>")
        self.assertEqual(answer(listing(*spilled))[0], 0)

    def test_no_units_is_an_error(self):
        done = subprocess.run([sys.executable, CPU / "spill_check.py", "isa_neon.cc.o", "x.o"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "spill_check: no isa_*.cc.o of x86-64 among the files\n"))


if __name__ == "__main__":
    unittest.main()
