#!/usr/bin/env python3
"""Mutation testing: applies the mutants in test/mutants one at a time, and checks that the test given for each fails.

Uses the objects of a finished build (build/): a mutant is a copy of one source with a bug, compiled separately and linked
instead of the original into a copy of the test. Sources and tests of the build are not changed. Needs only Python's
standard library.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "test" / "mutants"
BUILD = ROOT / "build"
WORK = BUILD / "mutants"
HOST_KERNELS = "test/ops/host_kernels.cpp"  # includes all kernel.cu
SECONDS = 120  # least time limit of a test, unless the mutant is expected to hang it
SLOWDOWN = 10  # a test with a bug may take this many times as long as without


class ListError(Exception):
    """An error in the list; the message names the mutant and the remedy."""


@dataclass
class Mutant:
    place: str  # "test/mutants/ops.txt:12"
    name: str
    file: str = ""
    find: str = ""
    put: str = ""
    test: str = ""  # "ops_test RmsNorm.*"
    hangs: int = 0  # if set, the bug counts as caught when the test hangs for this many seconds

    def fail(self, what):
        raise ListError(f"{self.place}: '{self.name}': {what}")

    @property
    def binary(self):
        return self.test.split()[0]

    @property
    def filter(self):
        return self.test.split()[1]


def read_list(path):
    """Returns the mutants of one file. Each begins with its name in brackets."""
    mutants = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        key, _, value = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{path.relative_to(ROOT)}:{number}"
        if line.startswith("["):
            if not line.endswith("]"):
                raise ListError(f"{place}: expected a name in brackets, found: {line}")
            mutants.append(Mutant(place, line[1:-1]))
        elif not mutants:
            raise ListError(f"{place}: expected the name of a mutant in brackets first, found: {line}")
        elif key in ("in", "by"):
            setattr(mutants[-1], {"in": "file", "by": "test"}[key], value.strip())
        elif key in ("-", "+"):
            setattr(mutants[-1], {"-": "find", "+": "put"}[key], value)
        elif key == "hangs":
            mutants[-1].hangs = int(value)
        else:
            raise ListError(f"{place}: expected a line that begins with in, -, +, by or hangs, found: {line}")
    return mutants


def read_lists():
    mutants = [mutant for path in sorted(LISTS.glob("*.txt")) for mutant in read_list(path)]
    names = set()
    for mutant in mutants:
        if mutant.name in names:
            mutant.fail("another mutant has this name")
        names.add(mutant.name)
        if not (mutant.file and mutant.find and mutant.test):
            mutant.fail("expected a file (in), a text to find (-) and a test (by)")
        if mutant.find == mutant.put:
            mutant.fail("the replacement (+) is the text itself")
        if len(mutant.test.split()) != 2:
            mutant.fail(f"expected 'by BINARY FILTER', found: by {mutant.test}")
        if mutant.file.endswith(".h"):
            mutant.fail("expected a bug in a .cpp, .inl or .cu file; a header is part of too many objects")
    return mutants


def planted(mutant):
    """Returns the text of the file with the bug."""
    path = ROOT / mutant.file
    if not path.is_file():
        mutant.fail(f"the list is stale: there is no {mutant.file}")
    text = path.read_text("utf-8")
    if (count := text.count(mutant.find)) != 1:
        mutant.fail(f"the list is stale: {mutant.file} has this text {count} times, expected once: {mutant.find}")
    return text.replace(mutant.find, mutant.put)


class Tests:
    """The test binaries of test/CMakeLists.txt, and the names in their sources."""

    def __init__(self):
        cmake = re.sub(r"#.*", "", (ROOT / "test" / "CMakeLists.txt").read_text("utf-8"))
        self.sources = {}
        for kind, name, rest in re.findall(r"(lehr_test|add_executable)\((\w+)\s([^)]*)\)", cmake):
            self.sources[name + ("_test" if kind == "lehr_test" else "")] = re.findall(r"\S+\.cpp", rest)
        self.names = {}

    def names_of(self, binary):
        """Returns the pairs of a suite and a test."""
        if binary not in self.names:
            text = "".join((ROOT / "test" / source).read_text("utf-8") for source in self.sources[binary])
            self.names[binary] = re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text, re.M)
        return self.names[binary]

    def check(self, mutant):
        if mutant.binary not in self.sources:
            mutant.fail(f"test/CMakeLists.txt has no test binary {mutant.binary}")
        for pattern in mutant.filter.split(":"):
            suite, dot, test = pattern.partition(".")
            # Instantiations add a name and a number with slashes: Meshes/EveryMesh.Computes/3.
            found = dot and any(
                any(fnmatchcase(a, part) for part in suite.split("/")) and fnmatchcase(b, test.split("/")[0])
                for a, b in self.names_of(mutant.binary))
            if not found:
                mutant.fail(f"the sources of {mutant.binary} have no test {pattern}")


def check_all(mutants):
    """Returns whether the whole list fits the sources. Builds nothing, and reports every problem."""
    tests = Tests()
    problems = []
    for mutant in mutants:
        for look in (lambda: planted(mutant), lambda: tests.check(mutant)):
            try:
                look()
            except ListError as problem:
                problems.append(str(problem))
    return problems


@dataclass
class Call:
    """A call of the compiler for a source, or for several as a group."""
    directory: str
    command: list
    sources: list

    def compile(self, source, output, first_folder=None):
        """Compiles one of the sources by itself; files in `first_folder` are included instead of those of the tree.
        Returns None, or what the compiler says if it fails."""
        call = list(self.command)
        call[call.index("-o") + 1] = str(output)
        place = call.index("-c") + 1
        call[place] = str(source)
        if first_folder:
            call[place - 1:place - 1] = ["-iquote", str(first_folder)]
        done = subprocess.run(call, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        return done.stdout if done.returncode else None


@dataclass
class Single:
    """A source of a group without a bug, compiled by itself."""
    object: Path
    is_compiled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Build:
    """The finished build: the commands that compile its sources and link its tests."""

    def __init__(self):
        self.compiles = {}
        self.links = {}
        self.singles = {}
        self.lock = threading.Lock()
        for entry in json.loads((BUILD / "compile_commands.json").read_text("utf-8")):
            call = Call(entry["directory"], without_dependencies(shlex.split(entry["command"])),
                        grouped_sources(Path(entry["file"])))
            for source in call.sources:
                self.compiles.setdefault(os.path.relpath(source, ROOT), []).append(call)

    def make(self, targets):
        """Builds the tests without bugs."""
        done = subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count()), "--target", *targets],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            sys.exit(done.stdout + "mutants: the tree does not compile")
        for target in targets:
            said = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", f"bin/{target}"], check=True,
                                  capture_output=True, text=True).stdout
            self.links[target] = shlex.split(said.splitlines()[-1].removeprefix(": && ").split(" && ")[0])

    def sources_with(self, name):
        """Returns the sources that are this file or include it, directly or through another .inl or a .cu, which the
        tests compile for the host."""
        if name.endswith(".cpp"):
            return [name]
        line = f'#include "{name}"'
        among = {source: ROOT / source for source in self.compiles if source.startswith(("lehr/", HOST_KERNELS))}
        for root in (ROOT, BUILD / "generated"):  # CMake writes the list of the operators' kernels
            for kind in ("*.inl", "*.cu"):
                among.update((str(path.relative_to(root)), path) for path in (root / "lehr").rglob(kind))
        holders = [file for file, path in among.items() if line in path.read_text("utf-8")]
        return sorted({source for holder in holders for source in self.sources_with(holder)})

    def compile(self, mutant, folder):
        """Compiles the source with the bug and returns the objects that replace its group; None if it does not compile."""
        tree = folder / "planted"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / mutant.file).parent.mkdir(parents=True)
        (tree / mutant.file).write_text(planted(mutant), "utf-8")
        with_bug = {ROOT / source for source in self.sources_with(mutant.file)}
        calls = []
        for source in with_bug:
            calls += [call for call in self.compiles.get(os.path.relpath(source, ROOT), []) if call not in calls]
        if not calls:
            mutant.fail("the build has no such source")
        objects = []
        for call in calls:
            for source in call.sources:
                if source not in with_bug:
                    objects.append(self.without_bug(call, source))
                    continue
                objects.append(folder / f"{len(objects)}.o")
                in_tree = tree / mutant.file
                said = call.compile(in_tree if source == ROOT / mutant.file else source, objects[-1], first_folder=tree)
                if said is not None:
                    print(said)
                    return None
        return objects

    def without_bug(self, call, source):
        """Returns the object of a source beside one with a bug in a group. It is compiled once, by itself."""
        with self.lock:
            place = self.singles.setdefault((id(call), source), Single(WORK / f"single_{len(self.singles)}.o"))
        with place.lock:
            if not place.is_compiled:
                said = call.compile(source, place.object)
                if said is not None:
                    sys.exit(said + f"mutants: {source.relative_to(ROOT)} does not compile by itself")
                place.is_compiled = True
        return place.object

    def link(self, mutant, objects, folder):
        """Links the test with these objects first, so that the linker does not take the libraries' versions of them."""
        call = list(self.links[mutant.binary])
        call[call.index("-o") + 1] = str(folder / mutant.binary)
        first = next(i for i, word in enumerate(call) if word.endswith(".a"))
        call[first:first] = map(str, objects)
        done = subprocess.run(call, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        if done.returncode:
            print(done.stdout)
            return None
        return folder / mutant.binary


def grouped_sources(file):
    """Returns the sources that a file of CMake's unity build includes; else the file itself (lehr_unity in cmake/)."""
    if file.parent.name != "Unity":
        return [file]
    return [Path(line.split('"')[1]) for line in file.read_text("utf-8").splitlines() if line.startswith("#include")]


def without_dependencies(command):
    """Returns the command without -MD, -MT and -MF, which would overwrite the build's dependency files."""
    kept = []
    words = iter(command)
    for word in words:
        if word in ("-MT", "-MF"):
            next(words)
        elif word != "-MD":
            kept.append(word)
    return kept


def run_test(program, mutant, seconds):
    """Runs the test; returns its exit code (None for a hang) and its output."""
    with tempfile.TemporaryFile("w+", errors="replace", dir=WORK) as log:
        child = subprocess.Popen(
            [program, f"--gtest_filter={mutant.filter}"], cwd=ROOT, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # kills its children too
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        log.seek(0)
        return code, log.read()


def require_green(mutants, build, jobs):
    """Builds and runs the tests without bugs, as a failing test would seem to catch every bug. Returns their seconds; a
    test that was skipped here is not among them."""
    print(f"building the tests of {len(mutants)} mutants", flush=True)
    build.make(sorted({mutant.binary for mutant in mutants}))
    of_test = {mutant.test: mutant for mutant in mutants}
    print(f"running their {len(of_test)} tests without a bug", flush=True)
    seconds = {}

    def run(test):
        mutant = of_test[test]
        before = time.monotonic()
        code, text = run_test(BUILD / "bin" / mutant.binary, mutant, SECONDS * SLOWDOWN)
        elapsed = time.monotonic() - before
        if code != 0:
            return f"{text}mutants: {test}: fails without a bug" + (", by taking too long" if code is None else "")
        passed = re.search(r"PASSED  \] (\d+) test", text)
        if passed and passed[1] != "0":
            seconds[test] = elapsed
        elif not re.search(r"SKIPPED \] \d+ test", text):
            return f"mutants: {mutant.place}: '{mutant.name}': '{test}' runs no test here, so it can catch nothing"
        return None

    with ThreadPoolExecutor(jobs) as pool:
        problems = list(filter(None, pool.map(run, of_test)))
    if problems:
        sys.exit("\n".join(problems))
    return seconds


def verdict_on(mutant, build, folder, seconds):
    """Compiles the bug, links the test, and runs it; without the bug, it takes so many seconds. Returns 'caught', or a key
    of ADVICE."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = build.compile(mutant, folder)
    program = objects and build.link(mutant, objects, folder)
    if not program:
        return "does not compile"
    code, _ = run_test(program, mutant, max(mutant.hangs or SECONDS, SLOWDOWN * seconds))
    program.unlink()
    return ("caught" if mutant.hangs else "hung") if code is None else "caught" if code else "survived"


ADVICE = {
    "survived": "the test does not see the bug. Sharpen it, or name the test that does",
    "does not compile": "no bug was planted. Write the replacement so that it compiles",
    "hung": f"the test took longer than {SECONDS} s, and {SLOWDOWN} times as long as without the bug. If that is how the bug "
            "shows, say so: hangs SECONDS",
}


def run_all(mutants, build, jobs, seconds):
    """Runs all mutants; returns whether all were caught."""
    start = time.monotonic()
    verdicts = {}
    folders = [WORK / str(number) for number in range(jobs)]

    def run(mutant):
        folder = folders.pop()
        before = time.monotonic()
        try:
            verdicts[mutant.name] = verdict_on(mutant, build, folder, seconds[mutant.test])
        finally:
            folders.append(folder)
        now = time.monotonic()
        left = (now - start) / len(verdicts) * (len(mutants) - len(verdicts))
        print(f"{len(verdicts):3}/{len(mutants)}  {verdicts[mutant.name]:8}  {now - before:5.1f} s  {mutant.name}"
              f"  [{mutant.test}]  {left / 60:.0f} min left", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, mutants))
    bad = [mutant for mutant in mutants if verdicts[mutant.name] != "caught"]
    print()
    for mutant in bad:
        verdict = verdicts[mutant.name]
        print(f"{verdict}: '{mutant.name}' ({mutant.place}), in {mutant.file}, by {mutant.test}: {ADVICE[verdict]}.")
    others = [verdict for verdict in verdicts.values() if verdict in ("does not compile", "hung")]
    survived = list(verdicts.values()).count("survived")
    print(f"{len(mutants) - len(bad)} caught, {survived} survived" +
          (f", {len(others)} neither" if others else "") + f", in {(time.monotonic() - start) / 60:.1f} min")
    return not bad


def share_of(text):
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected K/N with K from 1 to N, found {text}")
    return int(match[1]), int(match[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that the list fits the sources; builds nothing")
    parser.add_argument("--list", action="store_true", help="only list the mutants and their tests")
    parser.add_argument("--share", type=share_of, default=(1, 1), metavar="K/N",
                        help="run every N-th mutant from the K-th on, so that N runs cover all")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="run mutants whose name, file or test matches")
    parser.add_argument("--skip", type=int, default=0, metavar="N",
                        help="leave out the first N of those that are selected, to go on after a run that was stopped")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of mutants to run in parallel")
    options = parser.parse_args()

    mutants = read_lists()
    first, step = options.share
    mutants = mutants[first - 1::step]
    if options.only:
        mutants = [m for m in mutants if any(map(options.only.search, (m.name, m.file, m.test)))]
    mutants = mutants[max(options.skip, 0):]
    if problems := check_all(mutants):
        print("\n".join(problems))
        return 1
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}\n    {mutant.file}, by {mutant.test}")
    if options.list or options.check:
        print(f"{len(mutants)} mutants")
        return 0
    if not mutants:
        print("mutants: --share, --only and --skip select none")
        return 1
    if not (BUILD / "compile_commands.json").is_file():
        sys.exit("mutants: there is no build; run `make test` first")
    WORK.mkdir(parents=True, exist_ok=True)
    for module in BUILD.glob("liblehr_*.so"):  # found beside a program's folder
        (WORK / module.name).unlink(missing_ok=True)
        (WORK / module.name).symlink_to(module)
    build = Build()
    seconds = require_green(mutants, build, options.jobs)
    for mutant in mutants:
        if mutant.test not in seconds:
            print(f"not run: '{mutant.name}' ({mutant.place}): {mutant.test} is skipped here")
    mutants = [mutant for mutant in mutants if mutant.test in seconds]
    return 0 if run_all(mutants, build, options.jobs, seconds) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except ListError as error:
        sys.exit(f"mutants: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
