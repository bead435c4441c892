#!/usr/bin/env python3
"""Compares tokenizer_bench with the Python package `tokenizers`: same text, one thread each, alternating.

usage: bench/tokenizer_vs_python.py TOKENIZER_FOLDER FILE... [--lines] [--rounds N] [--bench PATH]

The two alternate in each round, so that load on the machine affects both; the ratio is computed per round. Both keep
their caches between rounds (the package has a cache of words). If `tokenizers` is not installed, only the speed of
tokenizer_bench is printed.
"""
import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as f:
        return f.read()


def lines_of(text):
    """Splits text into lines as tokenizer_bench does: at "\n" only, which is kept."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]


def load_package(folder):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("the Python package `tokenizers` is not installed: no comparison", file=sys.stderr)
        return None
    plain = os.path.join(folder, "tokenizer.json")
    return Tokenizer.from_str(read(plain if os.path.exists(plain) else plain + ".gz").decode())


def summary(name, unit, values):
    print(f"{name:<22} median {statistics.median(values):8.2f}  min {min(values):8.2f}  max {max(values):8.2f}  {unit}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--lines", action="store_true", help="each line is a document, not each file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bench", default=f"{ROOT}/build/bin/tokenizer_bench")
    args = parser.parse_args()

    texts = [read(path).decode() for path in args.files]
    size = sum(len(text.encode()) for text in texts)
    documents = [line for text in texts for line in lines_of(text)] if args.lines else texts
    package = load_package(args.tokenizer)
    command = [args.bench, args.tokenizer, *args.files, f"--rounds={args.rounds + 1}", "--step"]
    bench = subprocess.Popen(command + ["--lines"] * args.lines, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    load = json.loads(bench.stdout.readline())["load_seconds"]

    ours, theirs = [], []
    for index in range(args.rounds + 1):  # the first round warms both up
        bench.stdin.write("\n")
        bench.stdin.flush()
        row = json.loads(bench.stdout.readline())
        ours.append(row["mb_per_second"])
        if package:
            begin = time.perf_counter()
            tokens = sum(len(package.encode(d, add_special_tokens=False).ids) for d in documents)
            theirs.append(size / 1e6 / (time.perf_counter() - begin))
            if tokens != row["tokens"]:
                sys.exit(f"not the same work: {row['tokens']} tokens here, {tokens} in the package")
    bench.stdin.close()
    bench.wait()
    print(f"{size} bytes, {row['documents']} documents, {row['tokens']} tokens, loaded in {load:.3f} s, one thread")
    summary("lehr", "MB/s", ours[1:])
    if package:
        summary("tokenizers (Python)", "MB/s", theirs[1:])
        summary("ratio", "times", [a / b for a, b in zip(ours[1:], theirs[1:])])


if __name__ == "__main__":
    main()
