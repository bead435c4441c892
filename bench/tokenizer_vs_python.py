#!/usr/bin/env python3
"""Compares tokenizer_bench with the Python package `tokenizers`: same text, one thread each, alternating.

usage: bench/tokenizer_vs_python.py TOKENIZER_FOLDER FILE... [--lines] [--rounds N] [--bench PATH]

The package is called in each of its forms: `encode` per document, `encode_batch`, and `encode_batch_fast`, which leaves
out the offsets of tokens. All are printed, and the ratio is to the fastest. All alternate in each round, so that load on
the machine affects them alike; ratios are computed per round. All keep their caches between rounds (the package has a
cache of words). If `tokenizers` is not installed, only the speed of tokenizer_bench is printed.
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


def forms_of(package):
    """Returns the ways to encode documents that this version of the package has: name, and documents -> encodings."""
    forms = {"encode": lambda documents: [package.encode(d, add_special_tokens=False) for d in documents]}
    for name in ("encode_batch", "encode_batch_fast"):
        if batch := getattr(package, name, None):
            forms[name] = lambda documents, batch=batch: batch(documents, add_special_tokens=False)
    return forms


def fastest(rates):
    """Returns the name whose median rate is highest. `rates`: name -> MB/s of every round."""
    return max(rates, key=lambda name: statistics.median(rates[name]))


def summary(name, unit, values):
    print(f"{name:<32} median {statistics.median(values):8.2f}  min {min(values):8.2f}  max {max(values):8.2f}  {unit}")


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

    forms = forms_of(package) if package else {}
    ours, theirs = [], {name: [] for name in forms}
    for index in range(args.rounds + 1):  # the first round warms all up
        bench.stdin.write("\n")
        bench.stdin.flush()
        row = json.loads(bench.stdout.readline())
        ours.append(row["mb_per_second"])
        for name, encode in forms.items():
            begin = time.perf_counter()
            tokens = sum(len(encoding.ids) for encoding in encode(documents))
            theirs[name].append(size / 1e6 / (time.perf_counter() - begin))
            if tokens != row["tokens"]:
                sys.exit(f"not the same work: {row['tokens']} tokens here, {tokens} by {name} in the package")
    bench.stdin.close()
    bench.wait()
    print(f"{size} bytes, {row['documents']} documents, {row['tokens']} tokens, loaded in {load:.3f} s, one thread")
    summary("lehr", "MB/s", ours[1:])
    theirs = {name: rates[1:] for name, rates in theirs.items()}
    for name, rates in theirs.items():
        summary(f"tokenizers {name}", "MB/s", rates)
    if theirs:
        best = fastest(theirs)
        summary(f"ratio to {best}", "times", [a / b for a, b in zip(ours[1:], theirs[best])])


if __name__ == "__main__":
    main()
