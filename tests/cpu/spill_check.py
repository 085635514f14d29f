#!/usr/bin/env python3
"""Reads the machine code of the instruction-set units and fails on vectors spilled in hot loops.

    spill_check.py FILE.o...       those that are not an x86-64 unit (isa_*.cc.o) are passed over

A loop is what a jump backwards encloses. A hot loop is an innermost one with four or more vector
multiply-adds, dot products or tile products: the micro-kernels, the exponentials, the gradients'
weights. In it, a ymm or zmm register may not go to or come from a fixed place on the stack, but for
the functions of BOUNDS. (A place with an index is an array, not a spill.) The bounds are those of
GCC 12, which this test runs with.
"""

import re
import subprocess
import sys

# Stack accesses in one hot loop. AVX2 has 16 registers, and these have more values than that; the
# first two only read.
BOUNDS = {
    "weigh_gradients<Avx2>": 10,
    "score_panel<Avx2>": 6,
    "weigh<Avx2>": 2,
    "weigh<Avx2Thin>": 16,
}
LEAST_PRODUCTS = 4
UNITS = re.compile(r"isa_(?!scalar|neon)\w+\.cc\.o$")

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
JUMP = re.compile(r"^(?:bnd )?j\w+\s+([0-9a-f]+)\b")
PRODUCT = re.compile(r"^(vf\w*m(add|sub)\w*ps|vdpbf16ps|tdp\w+)\b")
VECTOR = re.compile(r"%[yz]mm\d")


def functions(text):
    """Name and code, a list of (address, instruction), of each function that objdump printed."""
    name, code = None, []
    for line in text.splitlines():
        heading, instruction = FUNCTION.match(line), INSTRUCTION.match(line)
        if heading:
            if name:
                yield name, code
            name, code = heading.group(1), []
        elif instruction and name:
            code.append((int(instruction.group(1), 16), instruction.group(2)))
    if name:
        yield name, code


def innermost_loops(code):
    at = {address: i for i, (address, _) in enumerate(code)}
    end_of = {}  # several jumps to one place are one loop
    for i, (_, words) in enumerate(code):
        jump = JUMP.match(words)
        first = at.get(int(jump.group(1), 16)) if jump else None
        if first is not None and first <= i:
            end_of[first] = max(i, end_of.get(first, i))
    loops = list(end_of.items())
    return [(first, end) for first, end in loops
            if not any((a, b) != (first, end) and first <= a and b <= end for a, b in loops)]


def stack_place(code):
    """What a fixed place on the stack looks like: rbp is one where it was made the frame."""
    frame = any(re.match(r"mov\s+%rsp,%rbp", words) for _, words in code)
    return re.compile(r"\(%r[sb]p\)" if frame else r"\(%rsp\)")


def hot_loops(code):
    """(instructions, products, spills) of each hot loop."""
    place = stack_place(code)
    for first, end in innermost_loops(code):
        body = [words for _, words in code[first:end + 1]]
        products = sum(bool(PRODUCT.match(words)) for words in body)
        if products >= LEAST_PRODUCTS:
            spills = sum(bool(VECTOR.search(words) and place.search(words)) for words in body)
            yield len(body), products, spills


def short_name(name):
    """weigh<Avx2> of "void tilewise::cpu::weigh<tilewise::cpu::Avx2>(long, ...)"."""
    name = re.sub(r"\b(tilewise::cpu::|\(anonymous namespace\)::)", "", name)
    name = re.sub(r"\((Operand|Finish|Element)\)", "", name)
    return re.sub(r"^\w+ ", "", name.split("(")[0])


def check(unit, text):
    """Prints the hot functions of one unit; how many complaints there are."""
    found = complaints = 0
    for name, code in functions(text):
        name = short_name(name)
        for length, products, spills in hot_loops(code):
            found += 1
            most = BOUNDS.get(name, 0)
            if spills > most:
                complaints += 1
                print(f"{unit}: {name}: {spills} vectors to or from the stack in a loop of "
                      f"{length} instructions and {products} products, at most {most}")
    print(f"{unit}: {found} hot loops, {complaints} complaints")
    if found == 0:
        print(f"{unit}: no hot loop found: this test sees nothing")
        complaints += 1
    return complaints


def main():
    units = [path for path in sys.argv[1:] if UNITS.search(path)]
    if not units:
        sys.exit("spill_check: no isa_*.cc.o of x86-64 among the files")
    complaints = 0
    for path in units:
        text = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", path],
                              capture_output=True, text=True, check=True).stdout
        complaints += check(path.rsplit("/", 1)[-1], text)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
