#!/usr/bin/env python3
"""Plants the bugs of test/mutants/*.txt one at a time and demands that the test named beside each catches it.

Works on a copy of the tree with a build folder of its own, both in build/mutants/, so that the user's tree and build
stay as they are, even when this script is killed. Needs nothing but Python's standard library.
"""
import argparse
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "test" / "mutants"
WORK = ROOT / "build" / "mutants"
SOURCE = WORK / "source"
BUILD = WORK / "build"
SECONDS = 120  # for a test, unless its mutant hangs it


class ListError(Exception):
    """Something in the list is wrong; the message names the mutant and says what to do."""


@dataclass
class Mutant:
    place: str  # "test/mutants/ops.txt:12"
    name: str
    file: str = ""
    find: str = ""
    put: str = ""
    test: str = ""  # "ops_test RmsNorm.*" or "ctest launch"
    hangs: int = 0  # a test that hangs is a catch, after so many seconds

    def fail(self, what):
        raise ListError(f"{self.place}: '{self.name}': {what}")

    @property
    def binary(self):
        return self.test.split()[0]

    @property
    def filter(self):
        return self.test.split()[1]

    @property
    def targets(self):
        return ["lehr", "mesh_ranks"] if self.binary == "ctest" else [self.binary]


def read_list(path):
    """The mutants of one file. Each begins with its name in brackets."""
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
            mutant.fail(f"expected 'by BINARY FILTER' or 'by ctest NAME', found: by {mutant.test}")
    return mutants


def planted(mutant, root):
    """The text of the file with the bug in it."""
    path = root / mutant.file
    if not path.is_file():
        mutant.fail(f"the list is stale: there is no {mutant.file}")
    text = path.read_text("utf-8")
    if (count := text.count(mutant.find)) != 1:
        mutant.fail(f"the list is stale: {mutant.file} has this text {count} times, expected once: {mutant.find}")
    return text.replace(mutant.find, mutant.put)


class Tests:
    """The test binaries and program tests of test/CMakeLists.txt, and the names in their sources."""

    def __init__(self):
        cmake = re.sub(r"#.*", "", (ROOT / "test" / "CMakeLists.txt").read_text("utf-8"))
        self.sources = {}
        for kind, name, rest in re.findall(r"(lehr_test|add_executable)\((\w+)\s([^)]*)\)", cmake):
            self.sources[name + ("_test" if kind == "lehr_test" else "")] = re.findall(r"\S+\.cpp", rest)
        self.programs = set(re.findall(r"lehr_(?:program|python)_test\((\w+)", cmake)) - {"name"}
        self.names = {}

    def names_of(self, binary):
        """The pairs of a suite and a test."""
        if binary not in self.names:
            text = "".join((ROOT / "test" / source).read_text("utf-8") for source in self.sources[binary])
            self.names[binary] = re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text, re.M)
        return self.names[binary]

    def check(self, mutant):
        if mutant.binary == "ctest":
            if mutant.filter not in self.programs:
                mutant.fail(f"test/CMakeLists.txt has no program test {mutant.filter}")
            return
        if mutant.binary not in self.sources:
            mutant.fail(f"test/CMakeLists.txt has no test binary {mutant.binary}")
        for pattern in mutant.filter.split(":"):
            suite, dot, test = pattern.partition(".")
            # Instantiations put their names and numbers beside a slash: Meshes/EveryMesh.Computes/3.
            found = dot and any(
                any(fnmatchcase(a, part) for part in suite.split("/")) and fnmatchcase(b, test.split("/")[0])
                for a, b in self.names_of(mutant.binary))
            if not found:
                mutant.fail(f"the sources of {mutant.binary} have no test {pattern}")


def check_all(mutants):
    """Whether all of the list fits the tree. Builds nothing, and reports every problem."""
    tests = Tests()
    problems = []
    for mutant in mutants:
        for look in (lambda: planted(mutant, ROOT), lambda: tests.check(mutant)):
            try:
                look()
            except ListError as problem:
                problems.append(str(problem))
    return problems


def write_if_other(path, data):
    """Leaves the time of a file with the same content alone, so that it is not compiled again."""
    if not path.is_file() or path.is_symlink() or path.read_bytes() != data:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def sync():
    """Makes the copy equal to the tree: what git tracks, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
        capture_output=True).stdout
    names = {name.decode() for name in listed.split(b"\0") if name and os.path.isfile(ROOT / name.decode())}
    for path in list(SOURCE.rglob("*")):
        if not path.is_dir() and str(path.relative_to(SOURCE)) not in names:
            path.unlink()
    for name in names:
        write_if_other(SOURCE / name, (ROOT / name).read_bytes())
        shutil.copymode(ROOT / name, SOURCE / name)


def configure():
    torch = sorted(ROOT.glob(".venv/lib/python3*/site-packages/torch"))
    options = [f"-DLEHR_TORCH_DIR={torch[0].resolve()}"] if torch else []  # else CMake looks for it
    log = WORK / "configure.log"
    with log.open("w") as out:
        done = subprocess.run(
            ["cmake", "-G", "Ninja", "-S", SOURCE, "-B", BUILD, "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1",
             "-DLEHR_WERROR=OFF", "-DLEHR_TESTS=ON", "-DLEHR_CUDA=OFF", "-DLEHR_NCCL=OFF", *options],
            stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(log.read_text() + "mutants: the copy of the tree cannot be configured; run `make setup` first")


def build(targets, jobs):
    """Nothing, or what the compiler said."""
    done = subprocess.run(
        ["ninja", "-C", BUILD, "-j", str(jobs), *targets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", close_fds=False)  # holds the lock, too, should this script be killed
    return done.stdout if done.returncode else None


def run_test(mutant, seconds):
    """The exit code, None for a hang, and what the test wrote."""
    if mutant.binary == "ctest":
        command = ["ctest", "--test-dir", BUILD, "--no-tests=error", "--output-on-failure", "-R", f"^{mutant.filter}$"]
    else:
        command = [BUILD / "bin" / mutant.binary, f"--gtest_filter={mutant.filter}"]
    with (WORK / "test.log").open("w+", errors="replace") as log:
        child = subprocess.Popen(
            command, cwd=SOURCE, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # its children too
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        log.seek(0)
        return code, log.read()


def require_green(mutants, jobs):
    """Builds the tests of the mutants as they are, and runs them: a red test would catch anything."""
    print(f"building the tests of {len(mutants)} mutants in {BUILD.relative_to(ROOT)}", flush=True)
    if said := build(sorted({target for mutant in mutants for target in mutant.targets}), jobs):
        sys.exit(said + "mutants: the tree does not compile")
    of_test = {mutant.test: mutant for mutant in mutants}
    print(f"running their {len(of_test)} tests without a bug", flush=True)
    for test, mutant in of_test.items():
        code, text = run_test(mutant, SECONDS)
        if code != 0:
            sys.exit(f"{text}mutants: {test}: fails without a bug" + (", by taking too long" if code is None else ""))
        passed = re.search(r"PASSED  \] (\d+) test" if mutant.binary != "ctest" else r"1/1 Test .* (Passed)", text)
        if not passed or passed[1] == "0":
            mutant.fail(f"'{test}' runs no test here, so it can catch nothing")


def verdict_on(mutant, jobs):
    """Plants the bug, builds, runs its test and takes the bug out again. 'caught', or what went wrong."""
    path = SOURCE / mutant.file
    original = path.read_bytes()
    path.write_text(planted(mutant, SOURCE), "utf-8")
    try:
        if said := build(mutant.targets, jobs):
            print(said)
            return "does not compile"
        code, _ = run_test(mutant, mutant.hangs or SECONDS)
        return ("caught" if mutant.hangs else "hung") if code is None else "caught" if code else "survived"
    finally:
        path.write_bytes(original)  # with the present time, so that the next build compiles it again


ADVICE = {
    "survived": "the test does not see the bug. Sharpen it, or name the test that does",
    "does not compile": "no bug was planted. Write the replacement so that it compiles",
    "hung": f"the test took longer than {SECONDS} s. If that is how the bug shows, say so: hangs SECONDS",
}


def run_all(mutants, jobs):
    """True if all were caught."""
    start = time.monotonic()
    # Those of a binary, and of a file, one behind the other: less is compiled.
    mutants = sorted(mutants, key=lambda mutant: (mutant.binary, mutant.file))
    verdicts = {}
    for number, mutant in enumerate(mutants, 1):
        before = time.monotonic()
        verdicts[mutant.name] = verdict_on(mutant, jobs)
        now = time.monotonic()
        left = (now - start) / number * (len(mutants) - number)
        print(f"{number:3}/{len(mutants)}  {verdicts[mutant.name]:8}  {now - before:5.1f} s  {mutant.name}"
              f"  [{mutant.test}]  {left / 60:.0f} min left", flush=True)
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
    parser.add_argument("--check", action="store_true", help="only see whether the list fits the tree; builds nothing")
    parser.add_argument("--list", action="store_true", help="only show the mutants and their tests")
    parser.add_argument("--share", type=share_of, default=(1, 1), metavar="K/N",
                        help="every N-th mutant from the K-th on, so that N runs cover all")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="mutants whose name, file or test has this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files to compile at once")
    options = parser.parse_args()

    mutants = read_lists()
    first, step = options.share
    mutants = mutants[first - 1::step]
    if options.only:
        mutants = [m for m in mutants if any(map(options.only.search, (m.name, m.file, m.test)))]
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
        print("mutants: none is chosen by --share and --only")
        return 1
    SOURCE.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("mutants: another run works in build/mutants; wait for it")
        os.set_inheritable(lock.fileno(), True)
        sync()
        configure()
        require_green(mutants, options.jobs)
        return 0 if run_all(mutants, options.jobs) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except ListError as error:
        sys.exit(f"mutants: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
