"""Packs a build for a machine that has only Python with torch: programs, libraries, recipes and test data."""
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from correctness import GPU_PROGRAMS

LIMIT_MB = 64
# The C library belongs to the system; LibTorch and CUDA are installed on the target machine.
SYSTEM = re.compile(r"^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil|libnsl)[-.]")
FOLDERS = ["recipe", "test/data", "script/gpu_check"]


def libraries_of(file, torch):
    """Yields the shared libraries that a program loads, except those of the C library, LibTorch and CUDA."""
    told = subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", told, re.MULTILINE):
        place = Path(path)
        ours = str(place.resolve())
        if not SYSTEM.match(name) and not ours.startswith(str(torch.parent.resolve())) and "cuda" not in ours:
            yield name, place


def strip(source, target):
    shutil.copy2(source, target)
    subprocess.run(["strip", "--strip-unneeded", str(target)], capture_output=True)  # a failure only leaves it larger


def make_pack(root, build, torch, folder):
    """Fills `folder` and writes folder.tar.xz beside it. Returns the archive; raises if it is larger than LIMIT_MB."""
    lehr = build / "lehr"
    if not lehr.exists():
        raise RuntimeError(f"{lehr} does not exist; run make build first")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "build/bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    files = [lehr, *sorted(build.glob("liblehr_*.so"))]
    tests = [p for p in (build / "bin" / name for name in GPU_PROGRAMS) if p.exists()]
    for file in files + tests:
        strip(file, folder / "build" / file.relative_to(build))
    for file in files + tests:
        for name, place in libraries_of(file, torch):
            # Newer systems have these two. Older ones need ours, which the check uses if the program does not start.
            where = folder / "lib" / ("newer" if name.startswith(("libstdc++", "libgcc_s")) else "")
            where.mkdir(exist_ok=True)
            if not (where / name).exists():
                shutil.copy2(place.resolve(), where / name)
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    commit = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True)
    (folder / "PACKED").write_text((commit.stdout.strip() or "unknown") + "\n")
    archive = Path(f"{folder}.tar.xz")
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        tar.add(folder, arcname=folder.name)
    size = archive.stat().st_size / 1e6
    unpacked = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6
    names = ", ".join([f.name for f in files] + [t.name for t in tests])
    print(f"gpu pack: {archive}: {size:.1f} MB ({unpacked:.1f} MB unpacked): {names}; "
          f"{len(list((folder / 'lib').rglob('*.so*')))} libraries")
    print(f"gpu pack: on the GPU machine: tar xf {archive.name} && python3 {folder.name}/script/gpu_check")
    if size > LIMIT_MB:
        raise RuntimeError(f"{archive}: {size:.1f} MB, but a pack may have at most {LIMIT_MB} MB")
    return archive
