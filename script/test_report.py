#!/usr/bin/env python3
"""Prints the summary of a test run: the numbers of tests that passed, failed and were skipped, with names and reasons.

Usage: test_report.py BUILD_FOLDER
Reads what ctest (results/ctest.xml) and the test programs (results/<binary>.xml) wrote. Exit code 1: a test failed, no test
ran, or a test was skipped that test/expected_skips.txt does not list.
"""
import fnmatch, sys
import xml.etree.ElementTree as xml
from pathlib import Path

root = Path(__file__).resolve().parents[1]
build = Path(sys.argv[1])
results = build / "results"


def last_lines(text, count=25):
    """Returns what a program said of its failed expectations ("FAILS ...", with details indented below), or its last lines."""
    lines = (text or "").strip().splitlines()
    found, failing = [], False
    for line in lines:
        failing = line.startswith("FAILS") or failing and line.startswith(" ")
        found += [line] if failing else []
    return "\n".join("    " + line for line in (found or lines)[-count:])


def first_lines(text, count=25):
    return "\n".join("    " + line for line in (text or "").strip().splitlines()[:count])


def expected_skips():
    """Returns the expected skips: pairs of a test's name (with wildcards) and a part of its reason."""
    for line in (root / "test/expected_skips.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, reason = line.split(None, 1)
            yield name, reason


def first_line(message):
    """Returns the file, line and text of a GoogleTest message, in one line."""
    lines = [line.strip() for line in (message or "").strip().splitlines() if line.strip()]
    return " ".join(lines[:3])


passed, failed, skipped, slowest = 0, [], [], []
of_googletest = set((build / "gtest_entries.txt").read_text().split())
try:
    entries = xml.parse(results / "ctest.xml").getroot().iter("testcase")
except (OSError, xml.ParseError) as problem:
    print(f"test report: ctest left no results: {problem}")
    sys.exit(1)
for entry in entries:
    name, output = entry.get("name"), entry.findtext("system-out")
    slowest.append((float(entry.get("time") or 0), name))
    try:
        cases = list(xml.parse(results / f"{name}.xml").getroot().iter("testcase"))
    except (OSError, xml.ParseError):
        cases = []  # not a GoogleTest program, or it ended before it wrote its results
    before = len(failed)
    for case in cases:
        label = f"{name}: {case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None:
            messages = "\n".join(first_lines(found.get("message")) for found in case.findall("failure")[:4])
            failed.append((label, messages.strip()))
        elif case.find("skipped") is not None:
            skipped.append((label, first_line(case.find("skipped").get("message")).split(" ", 1)[-1]))
        elif case.get("status") == "run":
            passed += 1
        else:
            skipped.append((label, "it is disabled"))
    if entry.find("skipped") is not None:
        lines = [line for line in (output or "").splitlines() if line.startswith("skipped: ")]
        skipped.append((name, lines[0][len("skipped: "):] if lines else "no reason given"))
    elif entry.get("status") != "run" and len(failed) == before:
        reason = entry.find("failure")
        why = (reason.get("message") if reason is not None else "") or "it exited with an error"
        failed.append((name, f"{why}\n{last_lines(output)}"))
    elif name in of_googletest and not cases:
        failed.append((name, f"it ended before it wrote its results\n{last_lines(output)}"))
    elif not cases:
        passed += 1

listed = list(expected_skips())
unlisted = [
    (name, reason) for name, reason in skipped
    if not any(fnmatch.fnmatch(name.replace(": ", "."), pattern) and part in reason for pattern, part in listed)]

print("\nSlowest:", ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(slowest, reverse=True)[:6]))
reasons = {}
for name, reason in skipped:
    reasons.setdefault(reason, []).append(name)
for reason, names in sorted(reasons.items()):
    shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    print(f"Skipped: {shown}: {reason}")
for name, reason in unlisted:
    print(f"FAILED: {name} was skipped ({reason}), but test/expected_skips.txt does not list it")
for name, reason in failed:
    print(f"FAILED: {name}: {reason}")
if passed == 0:
    print("FAILED: no test ran")
if failed:
    print(f"All that the failed tests printed: {build}/Testing/Temporary/LastTest.log")
print(f"\n{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
sys.exit(1 if failed or unlisted or passed == 0 else 0)
