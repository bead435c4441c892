"""What the tests of the program expect: a line for each, and a count of those that failed at the end."""

import sys

TINY = "test/program/tiny.toml"  # The run of most tests, whose command lines override keys of it.
failures = []  # the names of what did not hold


def expect(name, ok, detail=""):
    """Prints whether `name` holds; if not, also `detail`, such as the output of a program."""
    print(f"{'ok   ' if ok else 'FAILS'} {name}", flush=True)
    if not ok:
        failures.append(name)
        print("      " + str(detail).strip().replace("\n", "\n      "), flush=True)


def exit_with_failures():
    """Ends the test with their number."""
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)
