"""Build the wheel and the sources, install the wheel elsewhere, and use it away from the sources.

Usage: python tools/package.py [--python ENVIRONMENT/bin/python]: with an environment that holds the
dependencies already, the wheel is installed there without asking for any.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIAL = """
import hyperribbon as hr, torch
assert {root!r} not in hr.__file__, hr.__file__
data = hr.load_data("digits", limit=100).flat()
model = hr.training.mlp((64, 8, 10), seed=0)
found = hr.eigsh(hr.Hessian(model, torch.nn.CrossEntropyLoss(), data), k=2)
assert found.converged.all(), found
print(hr.__version__, torch.__version__, found.eigenvalues.tolist())
hr.inspect(model, torch.nn.CrossEntropyLoss(), data, k=2, budget=5).report("report.html")
assert "<script" in open("report.html").read()
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the archive of sources; the wheel is built from the archive."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def check_contents(wheel: Path, sources: Path) -> None:
    """Refuse packages in which files of the library are missing."""
    inside = zipfile.ZipFile(wheel).namelist()
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    missing = sorted({str(path.relative_to(ROOT / "src")) for path in files} - set(inside))
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing += [name for name in ("pyproject.toml", "README.md", "LICENSE") if name not in names]
    if missing:
        sys.exit(f"missing from the packages: {missing}")


def main() -> None:
    """Build, install and try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, help="an environment with the dependencies")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sources = build(folder / "dist")
        check_contents(wheel, sources)
        python = options.python
        if python is None:
            subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
            python = folder / "env" / "bin" / "python"
        wanted = ["--force-reinstall", "--no-deps", wheel] if options.python else [wheel]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        elsewhere = {"cwd": folder, "check": True}
        subprocess.run([python, "-c", TRIAL.format(root=str(ROOT))], **elsewhere)
        subprocess.run([python, "-m", "hyperribbon", "doctor"], **elsewhere)
        subprocess.run([python, "-m", "hyperribbon", "list", "--paper", "ribbons"], **elsewhere)
    print("wheel and sources are whole")


if __name__ == "__main__":
    main()
