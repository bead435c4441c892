#!/usr/bin/env python3
"""Writes the tables of docs/kernels.md: the resources of each CUDA kernel, and the bytes that it moves.

usage: script/kernel_table.py [--check] [--brief] [--nvcc NVCC] [--arch sm_90a ...]

Compiles lehr/ops/*/kernel.cu to machine code for each architecture. ptxas reports registers, spills and shared memory,
instructions are counted in the machine code (16 bytes each), occupancy follows from the limits of the architecture, and
bytes are computed from the list BODIES below. With --check nothing is written, and the exit code is 1 if a kernel
spills, moves more than 1.1 times the bytes that it must, or differs from the page. With another version of nvcc than
the page's only spills and bytes are checked, because registers differ between compilers. --brief leaves out all
architectures but sm_90a, unless LEHR_ALL_MESHES is set, as `make test` does. Exit code 77: there is no nvcc.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs/kernels.md")
BEGIN, END = "<!-- begin: script/kernel_table.py -->", "<!-- end: script/kernel_table.py -->"
TYPES = {"float": 4, "bfloat16": 2}
MOST_RATIO = 1.1

# Limits of a multiprocessor and of its GPU, shared memory in bytes. Each block needs 1 KiB of it in addition.
Arch = namedtuple("Arch", "name gpu multiprocessors shared shared_a_block l2")
ARCHES = [Arch("sm_80", "A100", 108, 164 << 10, 163 << 10, 40 << 20),
          Arch("sm_90a", "H100, H200", 132, 228 << 10, 227 << 10, 50 << 20),
          Arch("sm_100", "B200", 148, 228 << 10, 227 << 10, 126 << 20)]
REGISTERS, WARPS, BLOCKS = 65536, 64, 32

# Sizes for which bytes are counted: those of a model of 8 billion parameters, of an MoE layer, and of linear attention
# (GROUP value heads per key head).
TOKENS, HIDDEN, HEADS, HEAD, VOCABULARY, CHOICES, EXPERT_HIDDEN, GROUP = 16384, 4096, 32, 128, 151936, 8, 2048, 2
CONV_BLOCK, CHUNK = 128, 64  # tokens of a block of the convolution, and of a chunk of the gated delta rule
PARTS_BY_ROW, PARTS_BY_HEAD = 132, 132 * 512 // 16  # weight_gradient_parts for those rows and heads


def parts(count, rows):
    """Bytes per element of the parts of a weight's gradient: written in float32, and read by SumParts."""
    return 8 * count / rows


def again(size, arch):
    """Bytes per element that CrossEntropyRow reads twice from the GPU's memory: the part of a row that does not fit
    into shared memory, unless half of the L2 cache holds it for all rows in flight (one per multiprocessor)."""
    left = max(0, VOCABULARY * size - (arch.shared_a_block - 256))
    return 0 if left * arch.multiprocessors <= arch.l2 / 2 else left / VOCABULARY


def packs(count):
    return lambda size: count * 16 // size


# For each body: threads per block, elements per thread in one pass through the code, the bytes per element that are
# moved and the least possible (functions of the element's size and the architecture), their explanation, and the
# dynamic shared memory. Inputs and outputs are moved once; tensors that all rows read (weights, angles) stay in caches.
Body = namedtuple("Body", "threads elements moved least why scratch", defaults=(lambda size, arch: 0,))
FOUR = lambda size, arch: 4 / HIDDEN  # one float32 per row
BODIES = {
    "RmsNormForwardRow": Body(512, packs(16 // 4), lambda s, a: 2 * s + FOUR(s, a), lambda s, a: 2 * s,
        "reads x, writes y and one number per row; registers hold the row (with a residual branch it moves 4 "
        "tensors, all of which must move)"),
    "RmsNormBackwardRows": Body(512, packs(4), lambda s, a: 3 * s + FOUR(s, a) + parts(PARTS_BY_ROW, TOKENS),
        lambda s, a: 3 * s, "reads x and dy, writes dx, and per group a part of the weight's gradient"),
    "SumParts": Body(128, lambda s: 4, lambda s, a: 4, lambda s, a: 4, "reads float32 parts, writes one row"),
    "RotateHead": Body(256, packs(2), lambda s, a: 2 * s + 8 / HEADS, lambda s, a: 2 * s + 8 / HEADS,
        "reads x and the token's angles, which its heads share in cache, writes y"),
    "NormRotateHead": Body(256, packs(4), lambda s, a: 2 * s + 8 / HEADS + 4 / HEAD, lambda s, a: 2 * s + 8 / HEADS,
        "like RotateHead; also writes one number per head"),
    "NormRotateBackwardHeads": Body(256, packs(4),
        lambda s, a: 3 * s + 8 / HEADS + 4 / HEAD + parts(PARTS_BY_HEAD, TOKENS * HEADS),
        lambda s, a: 3 * s + 8 / HEADS, "reads x, dy and angles, writes dx, and parts of the weight's gradient"),
    "SiluMulForward": Body(256, packs(2), lambda s, a: 3 * s, lambda s, a: 3 * s, "reads gate and up, writes y"),
    "SiluMulBackward": Body(256, packs(2), lambda s, a: 5 * s, lambda s, a: 5 * s,
        "reads dy, gate and up, writes both gradients"),
    "CrossEntropyRow": Body(512, packs(4), lambda s, a: 2 * s + again(s, a), lambda s, a: 2 * s,
        "reads a row of logits, overwrites it with its gradient; between the passes shared memory holds as much of the "
        "row as fits, and the L2 cache the rest, if that takes at most half of the cache for all rows in flight",
        lambda s, a: min(VOCABULARY * s, a.shared_a_block - 256) // 16 * 16),
    "RoundRows": Body(512, packs(1), lambda s, a: s + 1 + parts(264, TOKENS), lambda s, a: s + 1,
        "reads a row and holds it in shared memory, writes float8, and per group the largest elements of columns",
        lambda s, a: HIDDEN * (s + 4)),
    "ScaleColumns": Body(256, lambda s: 1, lambda s, a: 4, lambda s, a: 4, "reads the largest elements of all groups"),
    "RoundColumns": Body(256, packs(1), lambda s, a: s + 1, lambda s, a: s + 1,
        "reads, writes float8 transposed in segments of 128 bytes; the scales of columns need an earlier pass",
        lambda s, a: 64 * 132),
    "AdamWPiece": Body(256, lambda s: 8, lambda s, a: 7 * s, lambda s, a: 7 * s,
                       "reads value, gradient and moments; writes value and moments"),
    "SumSquaresOfPiece": Body(512, packs(4), lambda s, a: s, lambda s, a: s, "reads"),
    "ScalePiece": Body(512, packs(4), lambda s, a: 2 * s, lambda s, a: 2 * s, "reads and writes"),
    "ClearEmptyGroup": Body(256, packs(1), lambda s, a: s, lambda s, a: s, "writes zeros to groups without rows"),
    "SumAll": Body(512, lambda s: 1, lambda s, a: 8, lambda s, a: 8, "reads the float64 sums of pieces"),
    "KnownIds": Body(512, lambda s: 4, lambda s, a: 16, lambda s, a: 16, "reads int64 ids, writes them"),
    "CopyToken": Body(256, packs(2), lambda s, a: s + s / CHOICES, lambda s, a: s + s / CHOICES,
        "reads a token once, writes its copies"),
    "SumCopies": Body(256, packs(4), lambda s, a: s + s / CHOICES, lambda s, a: s + s / CHOICES,
        "reads copies, writes a token"),
    "SumCopiesBackward": Body(256, packs(2), lambda s, a: 2 * s + s / CHOICES + 2 * s / EXPERT_HIDDEN,
        lambda s, a: 2 * s + s / CHOICES,
        "reads copies and writes their gradients; the 8 warps of one block read the gradient of a token"),
    "RoundGroup": Body(256, lambda s: 16, lambda s, a: 6, lambda s, a: 6, "reads float32, writes bfloat16"),
    "ClampedSwiGLUForward": Body(256, packs(2), lambda s, a: 3 * s, lambda s, a: 3 * s, "reads pairs, writes y"),
    "ClampedSwiGLUBackward": Body(256, packs(2), lambda s, a: 5 * s, lambda s, a: 5 * s,
        "reads dy and pairs, writes the gradients of pairs"),
    **{f"ConvForward, {taps} taps": Body(256, lambda s, taps=taps: 16 // taps, lambda s, a: 2 * s, lambda s, a: 2 * s,
        "reads x, writes y; a run's first tokens read the ones before it, which are in cache") for taps in (4, 16)},
    **{f"ConvBackward, {taps} taps": Body(256, lambda s, taps=taps: 16 // taps,
        lambda s, a, taps=taps: 3 * s + parts(taps, CONV_BLOCK), lambda s, a: 3 * s,
        "reads x and dy, writes dx, and per block of tokens a part of the weight's gradient; a run also reads the tokens "
        "around it, which are in cache; with a bias also a part of the bias's gradient",
        lambda s, a, taps=taps: (64 * 16 + 256 * (16 // taps)) * 4) for taps in (4, 16)},
    "DeltaDecaysOfChunk": Body(64, lambda s: 1, lambda s, a: 32, lambda s, a: 32,
        "per token and value head: reads decay and beta, writes five numbers", lambda s, a: 4 * CHUNK * 4),
    "DeltaTrianglesOfChunk": Body(64, lambda s: CHUNK, lambda s, a: 8 / GROUP + 12, lambda s, a: 8 / GROUP + 12,
        "per element of a chunk's matrices: reads two products of its key head, writes three matrices; without "
        "corrections reads one and writes one",
        lambda s, a: (CHUNK * (CHUNK - 1) // 2 + 4 * CHUNK) * 4),
    "DeltaScanColumns": Body(256, lambda s: 4 * 32 / 256, lambda s, a: 16 + 4 * HEAD / CHUNK, lambda s, a: 16 + 4 * HEAD
        / CHUNK, "per element of the values: reads and writes a correction and, shared by the elements of a token, two "
        "rows of keys, of which the blocks of the head's other columns find a copy in the L2 cache; writes the states "
        "before chunks", lambda s, a: (2 * 4 * HEAD + 4 * 32 * 9) * 4),
    "DeltaStatePassing": Body(256, lambda s: 4, lambda s, a: 8, lambda s, a: 8,
        "per element of a state and chunk: reads the chunk's sum, writes the state before it"),
    "DeltaTrianglesBackwardOfChunk": Body(64, lambda s: CHUNK, lambda s, a: 8 + 16 / GROUP, lambda s, a: 8 + 16 / GROUP,
        "per element of a chunk's matrices: reads two gradients of its value head and two products of its key head, "
        "writes two gradients of its key head, which stay in cache for the sum over value heads",
        lambda s, a: 6 * CHUNK * 4),
    "StochasticAdamWGroup": Body(256, lambda s: 16, lambda s, a: 4 + 4 + 4 * s, lambda s, a: 4 + 4 + 4 * s,
        "reads and writes a bfloat16 value and two moments, reads a gradient"),
}
# Kernels that may move more than 1.1 times the least bytes, and the reason.
ALLOWED = {("CrossEntropyRow", "float"):
           "a float32 row of 151936 logits is 2.6 times as large as the shared memory (in bfloat16 the L2 cache holds "
           "the rest)",
           ("ConvBackward, 16 taps", "bfloat16"):
           "a block has a sum per tap and channel (the kernels of the families have 4 taps)"}


def bodies_of(symbol):
    """Returns the body and the element type from a kernel's mangled name, such as in_warps<RotateHead<Bf16>>."""
    match = re.match(r"_ZN4lehr3ops4cuda\d+in_(?:warps|blocks)INS1_(\d+)(\w+)", symbol)
    if not match:
        sys.exit(f"kernel_table.py: {symbol}: expected a kernel of in_warps or in_blocks")
    length = int(match[1])
    body, rest = match[2][:length], match[2][length:]
    moment = rest[1:] if rest.startswith("I") else ""
    return body, "bfloat16" if moment.startswith(("NS0_4Bf16E", "S4_")) else "float", rest


def code_sizes(path):
    """Returns the machine instructions of each kernel of a cubin, an ELF file with one section of code per kernel."""
    with open(path, "rb") as file:
        data = file.read()
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    sizes = {}
    for name, _, _, _, _, bytes_of_code in sections:
        begin = sections[names][4] + name
        text = data[begin:data.index(b"\0", begin)].decode()
        if text.startswith(".text."):
            sizes[text[len(".text."):]] = bytes_of_code // 16
    return sizes


Numbers = namedtuple("Numbers", "symbol registers spill stack shared code")


def compile_file(nvcc, source, arch, folder):
    """Returns the resources of the kernels of a file, as ptxas reports them."""
    cubin = os.path.join(folder, f"{os.path.basename(os.path.dirname(source))}.{arch}.cubin")
    result = subprocess.run(
        [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", f"-I{ROOT}", "-cubin", f"-arch={arch}",
         "-Xptxas=-v", source, "-o", cubin], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"kernel_table.py: {source} does not compile for {arch}:\n{result.stderr}")
    code = code_sizes(cubin)
    found = []
    for block in result.stderr.split("Compiling entry function '")[1:]:
        symbol = block[:block.index("'")]
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block).groups())
        shared = re.search(r"(\d+) bytes smem", block)
        found.append(Numbers(symbol, int(re.search(r"Used (\d+) registers", block)[1]), stores + loads, stack,
                             int(shared[1]) if shared else 0, code[symbol]))
    return found


def occupancy(threads, registers, shared):
    """Returns the share of a multiprocessor's warps that blocks of a kernel occupy."""
    def resident(arch):
        warps = (threads + 31) // 32
        of_warp = -(-registers * 32 // 256) * 256
        by_registers = REGISTERS // of_warp // 4 * 4 // warps
        return warps * min(WARPS // warps, by_registers, arch.shared // (shared + 1024), BLOCKS) / WARPS
    return resident


def number(x):
    return f"{x:.2f}".rstrip("0").rstrip(".")


def make_table(nvcc, arches):
    """Returns the lines of the page, and the problems."""
    def says(option):
        return subprocess.run([nvcc, option], capture_output=True, text=True).stdout
    version = re.search(r"release (\S+),", says("--version"))[1]
    known = says("--list-gpu-code").split()
    arches = [arch for arch in arches if arch.name.rstrip("a") in known]
    sources = sorted(glob.glob(os.path.join(ROOT, "lehr/ops/*/kernel.cu")))
    jobs = [(source, arch) for arch in arches for source in sources]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: compile_file(nvcc, job[0], job[1].name, folder), jobs))
    lines, problems = [f"Compiled by nvcc {version}."], []
    for arch in arches:
        lines += ["", f"**{arch.name}** ({arch.gpu})", "",
                  "| kernel | registers | spilled | shared | threads | occupancy | instructions | per element | "
                  "bytes | least |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        rows = []
        for numbers in (n for job, found in zip(jobs, results) if job[1] is arch for n in found):
            name, element, rest = bodies_of(numbers.symbol)
            taps = re.search(r"Li(\d+)E", rest)
            name += f", {taps[1]} taps" if taps else ""
            if name not in BODIES:
                sys.exit(f"kernel_table.py: {name}: add the kernel to BODIES, with the bytes that it moves")
            body, size = BODIES[name], TYPES[element]
            shared = numbers.shared + body.scratch(size, arch)
            moved, least = body.moved(size, arch), body.least(size, arch)
            label = f"{name} {element}" if rest.startswith("I") else name
            if taps:
                label = label.replace(f", {taps[1]} taps {element}", f" {element}, {taps[1]} taps")
            if name == "StochasticAdamWGroup":
                label += ", gradients " + ("float" if rest.endswith("fEEEEvT_li") else "bfloat16")
                moved, least = (x - (0 if label.endswith("float") else 2) for x in (moved, least))
            if name.startswith("RmsNorm"):
                label += ", warp" if "in_warps" in numbers.symbol else ", block"
            threads = 256 if "in_warps" in numbers.symbol else body.threads
            filled = occupancy(threads, numbers.registers, shared)(arch)
            if numbers.spill or numbers.stack:
                problems.append(f"{label}, {arch.name}: spills {numbers.spill} bytes, stack {numbers.stack}")
            if moved > MOST_RATIO * least and (name, element) not in ALLOWED:
                problems.append(f"{label}, {arch.name}: moves {number(moved)} bytes per element, but must move "
                                f"only {number(least)}")
            rows.append(f"| {label} | {numbers.registers} | {numbers.spill} | {shared} | {threads} | {filled:.0%} | "
                        f"{numbers.code} | {number(numbers.code / body.elements(size))} | {number(moved)} | "
                        f"{number(least)} |")
        lines += sorted(set(rows))  # a body that two operators launch is compiled twice
    lines += ["", "| kernel | bytes |", "| --- | --- |"]
    lines += [f"| {name} | {body.why} |" for name, body in sorted(BODIES.items())]
    allowed = ", and ".join(f"`{name.split(', ')[0]}` in {' with '.join([element, *name.split(', ')[1:]])}, because {why}"
                            for (name, element), why in ALLOWED.items())
    lines += ["", *textwrap.wrap(f"These kernels move more than 1.1 times the least: {allowed}.", 120)]
    return lines, problems


def tables_of(lines, names):
    """Returns the lines of a page without the tables of other architectures."""
    kept, taken = [], True
    for line in lines:
        if line.startswith("**"):
            taken = re.match(r"\*\*(\w+)\*\*", line)[1] in names
        elif line == "| kernel | bytes |":
            taken = True
        if taken:
            kept.append(line)
    return kept


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvcc", help="the compiler; empty for none",
                        default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--left-out", help="a file that is there if the build left the kernels out, with the reason")
    parser.add_argument("--arch", nargs="*", default=[arch.name for arch in ARCHES])
    parser.add_argument("--brief", action="store_true")
    args = parser.parse_args()
    if args.brief and not os.environ.get("LEHR_ALL_MESHES"):
        args.arch = ["sm_90a"]
    if args.left_out and os.path.exists(args.left_out):
        print("skipped: there is no nvcc that compiles the kernels:", open(args.left_out).read())
        return 77
    if not args.nvcc or not os.path.exists(args.nvcc):
        print("skipped: there is no nvcc")
        return 77
    lines, problems = make_table(args.nvcc, [arch for arch in ARCHES if arch.name in args.arch])
    with open(PAGE, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN + "\n")
    old, after = rest.split(END)
    if args.check:
        was, now = tables_of(old.strip("\n").splitlines(), args.arch), lines
        if was[0] != now[0]:
            print(f"kernel_table.py: the page has '{was[0]}', this is '{now[0]}'; only spills and bytes are checked")
        else:
            problems += [f"docs/kernels.md differs: '{line}' is new; run script/kernel_table.py"
                         for line in now if line not in was]
            problems += [f"docs/kernels.md differs: '{line}' is gone; run script/kernel_table.py"
                         for line in was if line not in now]
    else:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)
    for problem in problems:
        print(f"kernel_table.py: {problem}", file=sys.stderr)
    if args.check and not problems:
        print("docs/kernels.md agrees" if was[0] == now[0] else "no kernel spills, or moves more bytes than docs/kernels.md allows")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
