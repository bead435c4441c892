#!/usr/bin/env python3
"""Makes a release up to the point of publishing: version, changelog, wheel, source, site, SBOM and checksums.

    script/release.py 0.2.0          sets version and date, commits them, builds, and writes build/release/
    script/release.py --rehearse     the same for the version in the tree, which it leaves as it is

Nothing is tagged, pushed or uploaded: the last lines say which commands would. docs/releasing.md has the checks that come before.
Standard library only.
"""
import argparse
import datetime
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build/release"
VERSION = re.compile(r"^(project\(lehr VERSION )(\d+\.\d+\.\d+)", re.MULTILINE)


def fail(message):
    sys.exit(f"release: {message}")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def as_numbers(version):
    return [int(part) for part in version.split(".")]


def section_of(changelog, version):
    """Returns (heading, text) of a version in CHANGELOG.md."""
    match = re.search(rf"^(## \[{re.escape(version)}\] - ([^\n]+))\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not match:
        fail(f"CHANGELOG.md has no heading '## [{version}] - unreleased'")
    return match[1], match[3].strip() + "\n"


def released(cmake, changelog, version, today):
    """Returns CMakeLists.txt and CHANGELOG.md of this release."""
    before = VERSION.search(cmake)[2]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or as_numbers(version) < as_numbers(before):
        fail(f"expected a version X.Y.Z from {before} on, found '{version}'")
    heading, text = section_of(changelog, version)
    if not heading.endswith("- unreleased"):
        fail(f"CHANGELOG.md says that {version} was released: {heading}")
    if "- " not in text:
        fail(f"CHANGELOG.md names no change of {version}")
    return (VERSION.sub(rf"\g<1>{version}", cmake, count=1),
            changelog.replace(heading, f"## [{version}] - {today.isoformat()}", 1))


def debian_package(*query):
    """Returns (name, version) of the Debian package that owns a file or has this name; None if there is none."""
    done = subprocess.run(["dpkg-query", *query], capture_output=True, text=True)
    return done.stdout.split()[:2] if done.returncode == 0 and done.stdout.strip() else None


def sbom(version, wheel):
    """Returns a CycloneDX bill of materials: what the wheel needs, what it has packed, and what was compiled into it."""
    components = []
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
        for need in re.findall(r"^Requires-Dist: (\S+)==(\S+)$", metadata, re.MULTILINE):
            components.append({"type": "library", "name": need[0], "version": need[1], "scope": "required",
                               "purl": f"pkg:pypi/{need[0]}@{need[1]}", "description": "installed beside the wheel, not in it"})
        for name in sorted(archive.namelist()):
            if re.match(r"lehr/lib/(?!liblehr).*\.so", name):
                library = {"type": "library", "name": Path(name).name, "description": "packed as " + name,
                           "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(archive.read(name)).hexdigest()}]}
                owner = debian_package("-S", f"*/{Path(name).name}")
                if package := owner and debian_package("-W", owner[0].rstrip(":").partition(":")[0]):
                    library |= {"version": package[1], "purl": f"pkg:deb/debian/{package[0].partition(':')[0]}@{package[1]}"}
                components.append(library)
    for name in sorted(set(re.findall(r"\b[\w.+-]+-dev\b", (ROOT / "script/setup.sh").read_text()))):
        if package := debian_package("-W", name):
            components.append({"type": "library", "name": name, "version": package[1], "purl": f"pkg:deb/debian/{name}@{package[1]}",
                               "description": "headers or static code compiled into the program, or its tests"})
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": {"type": "application", "name": "lehr", "version": version,
                                       "licenses": [{"license": {"id": "Apache-2.0"}}]}},
            "components": components}


def write_site(path):
    """Packs build/site as a folder that opens without a server."""
    with tarfile.open(path, "w:gz") as archive:
        archive.add(ROOT / "build/site", arcname=path.name.removesuffix(".tar.gz"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if (options.version is None) != options.rehearse:
        parser.error("expected a version, or --rehearse")
    cmake, changelog = ROOT / "CMakeLists.txt", ROOT / "CHANGELOG.md"
    version = options.version or VERSION.search(cmake.read_text())[2]
    changed = output_of("git", "status", "--porcelain")
    if changed and not options.rehearse:
        fail("commit or remove these changes first:\n" + changed)
    texts = released(cmake.read_text(), changelog.read_text(), version, datetime.date.today())
    if not options.rehearse:
        cmake.write_text(texts[0])
        changelog.write_text(texts[1])
        subprocess.run(["git", "commit", "--quiet", "-m", f"all: release {version}", "--", cmake, changelog], check=True, cwd=ROOT)

    subprocess.run(["make", "wheel", "docs", "ARROW=1"], check=True, cwd=ROOT)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    wheel = OUT / Path((ROOT / "build/wheel/wheel.txt").read_text().strip()).name
    shutil.copyfile(ROOT / "build/wheel" / wheel.name, wheel)
    if not wheel.name.startswith(f"lehr-{version}-"):
        fail(f"the wheel is {wheel.name}, not of version {version}")
    subprocess.run(["git", "archive", "--format=tar.gz", f"--prefix=lehr-{version}/", f"--output={OUT}/lehr-{version}.tar.gz", "HEAD"],
                   check=True, cwd=ROOT)
    write_site(OUT / f"lehr-{version}-site.tar.gz")
    (OUT / f"lehr-{version}-sbom.json").write_text(json.dumps(sbom(version, wheel), indent=1) + "\n")
    (OUT / "notes.md").write_text(section_of(texts[1], version)[1])
    files = sorted(path for path in OUT.iterdir() if path.name != "notes.md")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (OUT / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    print(f"release: {version} is in build/release, and nothing is published. When .ci/run has passed on this commit:\n\n"
          f"  git tag -a v{version} -m \"Lehr {version}\"\n  git push origin HEAD v{version}\n\n"
          "and attach the files to the release on the hosting site, with notes.md as its text.")


if __name__ == "__main__":
    main()
