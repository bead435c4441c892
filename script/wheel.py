#!/usr/bin/env python3
"""Packs build/wheel/lehr-VERSION-py3-none-manylinux_2_XX_x86_64.whl: the program, the module, and the package lehr.

Usage: wheel.py --build=build --version=0.1.0 --torch=2.11.0 --torch-dir=.../site-packages/torch
The build calls it (python/CMakeLists.txt). LibTorch and the OpenMP runtime stay outside: the wheel uses those of the
installed torch. Other libraries that a machine may lack are packed, under lehr/lib. The wheel is also unpacked, into
build/wheel/unpacked, for tests. Needs only Python's standard library, readelf, ldd and strip.
"""
import argparse, base64, hashlib, os, re, shutil, subprocess, sys, zipfile
from pathlib import Path

root = Path(__file__).resolve().parents[1]

# Libraries of every manylinux system, and those of the installed torch.
OF_SYSTEM = re.compile(r"ld-linux-.*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|z)\.so\..*")
OF_TORCH = re.compile(r"lib(torch|c10|gomp|cu|nv|shm).*")

# The first glibc of a manylinux system whose libstdc++ has these symbols.
GLIBC_OF_GLIBCXX = {29: 34, 30: 35, 31: 38, 32: 38, 33: 39}

SCRIPT = '''#!python
# Starts the program without importing the package, which would import torch.
import importlib.util, os, runpy
folder = importlib.util.find_spec("lehr").submodule_search_locations[0]
runpy.run_path(os.path.join(folder, "_program.py"), run_name="__main__")
'''


def output_of(*command, **environment):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", str(file)))


def libraries_to_pack(files, torch_lib):
    """Returns the paths of the libraries that `files` need, directly or not, and that are neither the system's nor
    torch's."""
    found = {}
    waiting = [(file, name) for file in files for name in needed(file)]
    places = {}
    for file in files:
        listed = output_of("ldd", str(file), LD_LIBRARY_PATH=str(torch_lib))
        places.update(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.M))
    while waiting:
        user, name = waiting.pop()
        if name in found or OF_SYSTEM.fullmatch(name) or OF_TORCH.fullmatch(name):
            continue
        if name not in places:
            sys.exit(f"wheel: {user}: needs {name}, which was not found")
        found[name] = Path(places[name]).resolve()
        waiting += [(name, other) for other in needed(found[name])]
    return found


def platform_tag(files):
    """Returns the tag of the oldest manylinux system that has the symbols of these files."""
    glibc, glibcxx = 17, 0
    for file in files:
        symbols = output_of("readelf", "-V", str(file))
        glibc = max([glibc, *(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols))])
        glibcxx = max([glibcxx, *(int(patch) for patch in re.findall(r"GLIBCXX_3\.4\.(\d+)", symbols))])
    if glibcxx > max(GLIBC_OF_GLIBCXX):
        sys.exit(f"wheel: GLIBCXX_3.4.{glibcxx} is newer than this script knows; add its manylinux system")
    glibc = max(glibc, GLIBC_OF_GLIBCXX.get(glibcxx, 0))
    return f"manylinux_2_{glibc}_{os.uname().machine}"


def pyarrow_of(module):
    """Returns the versions of pyarrow, as pip writes them, whose libraries the module for tables needs: a version's are
    named after its first two numbers."""
    number = int(re.search(r"libarrow\.so\.(\d+)", "\n".join(needed(module)))[1])
    return f"{number // 100}.{number % 100}.*"


def metadata(version, torch, pyarrow):
    readme = (root / "README.md").read_text()
    arrow = f"Provides-Extra: arrow\nRequires-Dist: pyarrow=={pyarrow}; extra == \"arrow\"\n" if pyarrow else ""
    return f"""Metadata-Version: 2.1
Name: lehr
Version: {version}
Summary: A white-box system for training large language models: the program lehr, and a Python module
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
{arrow}Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Description-Content-Type: text/markdown

{readme}"""


def collect(build, options):
    """Writes the tree of the wheel, without its RECORD, and returns its platform tag."""
    made, tree = build / "wheel", build / "wheel/unpacked"
    shutil.rmtree(tree, ignore_errors=True)
    package = tree / "lehr"
    shutil.copytree(root / "python/lehr", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_version.py").write_text(
        f'"""Versions of this wheel."""\nversion = "{options.version}"\ntorch = "{options.torch}"\n')
    binaries = {package / name: made / name for name in ("bin/lehr", "lib/liblehr_module.so")}
    packed = libraries_to_pack(binaries.values(), Path(options.torch_dir) / "lib")
    binaries |= {package / "lib" / name: path for name, path in packed.items()}
    # Optional: opened on demand, one folder above bin and lib.
    for file in (made / "liblehr_arrow.so", build / "liblehr_cuda.so", build / "liblehr_nccl.so"):
        if file.exists():
            binaries[package / file.name] = file
    for target, source in binaries.items():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
    tag = platform_tag(binaries)
    scripts, info = tree / f"lehr-{options.version}.data/scripts", tree / f"lehr-{options.version}.dist-info"
    scripts.mkdir(parents=True)
    (scripts / "lehr").write_text(SCRIPT)
    (scripts / "lehr").chmod(0o755)
    info.mkdir()
    arrow = made / "liblehr_arrow.so"
    (info / "METADATA").write_text(
        metadata(options.version, options.torch, pyarrow_of(arrow) if arrow.exists() else ""))
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: script/wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n")
    shutil.copyfile(root / "LICENSE", info / "LICENSE")
    return tag


def write_wheel(tree, path):
    """Zips `tree` with its RECORD; the same files give the same bytes."""
    record, name_of_record = [], f"{next(tree.glob('*.dist-info')).name}/RECORD"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(name, content, mode):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
        for file in sorted(path for path in tree.rglob("*") if path.is_file()):
            name, content = file.relative_to(tree).as_posix(), file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}")
            add(name, content, file.stat().st_mode & 0o777)
        add(name_of_record, "\n".join([*record, f"{name_of_record},,", ""]), 0o644)


def main():
    parser = argparse.ArgumentParser()
    for option in ("build", "version", "torch", "torch-dir"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    build = Path(options.build).resolve()
    tag = collect(build, options)
    for old in (build / "wheel").glob("*.whl"):
        old.unlink()
    wheel = build / "wheel" / f"lehr-{options.version}-py3-none-{tag}.whl"
    write_wheel(build / "wheel/unpacked", wheel)
    (build / "wheel/wheel.txt").write_text(f"{wheel}\n")
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB; install it with pip")


main()
