"""Installs the wheel of a build folder, as users do."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install_wheel(build, folder):
    """Installs it into `folder`, by the pip of this Python or else of .venv."""
    wheel = Path(build, "wheel", "wheel.txt").read_text().strip()
    pip = next((python for python in (sys.executable, ROOT / ".venv/bin/python")
                if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0), None)
    if pip is None:
        sys.exit(f"{sys.executable}: has no pip")
    subprocess.run([pip, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile",
                    "--disable-pip-version-check", "--target", folder, wheel], check=True)
