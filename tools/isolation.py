"""Install each package's wheel with only its declared dependencies and run its own tests there.

Of each parametrized test only the first case runs: a dependency that is missing shows there.
Every package gets a virtual environment of its own. They share one installation of torch, which is
large; whatever else a package needs must be declared by it.

    python tools/isolation.py [PACKAGE ...]
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
TEST_REQUIREMENTS = ("pytest>=8.3", "pytest-xdist>=3.6")
TOOLS = "tools"
KIT = "rl-testing"
"""What the tests of every package may use besides."""


def main() -> int:
    """Check the packages named on the command line, or all."""
    known = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    parser = argparse.ArgumentParser(description="Test each package's wheel on its own.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of: {', '.join(known)}")
    chosen = parser.parse_args().packages or known
    unknown = set(chosen) - set(known)
    if unknown:
        parser.error(f"unknown package {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
        workspace = Path(folder)
        wheels = workspace / "wheels"
        venv.create(workspace / TOOLS, with_pip=True, symlinks=True)
        tools = workspace / TOOLS / "bin" / "python"
        install(tools, "hatchling")
        options = ("-q", "--no-deps", "--no-build-isolation", "-w", wheels)
        for package in known:
            pip(tools, "wheel", *options, ROOT / "packages" / package)
        shared = create(workspace / "torch")
        install(shared, TORCH)
        failed = [name for name in chosen if not check(workspace, wheels, shared, name)]
    if failed:
        print(f"isolation: failed for {', '.join(failed)}")
        return 1
    print(f"isolation: {len(chosen)} packages stand alone: {', '.join(chosen)}")
    return 0


def check(workspace: Path, wheels: Path, shared: Path, package: str) -> bool:
    """Install one package's wheel beside the shared torch and run the package's tests."""
    python = create(workspace / package)
    site = site_packages(python)
    (site / "shared_torch.pth").write_text(f"{site_packages(shared)}\n", encoding="utf-8")
    known = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    needed = declared(package, known) | declared(KIT, known)
    # By path, because the package index may know other projects by these names.
    install(python, *(wheel(wheels, name) for name in sorted(needed)), *TEST_REQUIREMENTS)
    others = known - needed
    listed = pip(python, "list", "--format=freeze")
    intruders = others & {line.partition("==")[0] for line in listed.splitlines()}
    if intruders:
        print(f"isolation: {package} drags in {', '.join(sorted(intruders))}")
        return False
    tests = ROOT / "tests" / package.replace("-", "_")
    print(f"isolation: {package}", flush=True)
    # Compiling takes most of the time, and says nothing about what a package depends on.
    options = (
        "-q",
        "-n",
        "auto",
        "-p",
        "no:cacheprovider",
        "-p",
        "first_case",
        "-k",
        "not compile",
    )
    command: list[str | Path] = [python, "-m", "pytest", *options, tests]
    search = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    return subprocess.run(command, cwd=ROOT, check=False, env=search).returncode == 0


def declared(package: str, known: Collection[str]) -> set[str]:
    """Return a package of ours with all those of ours that it declares, and that they declare."""
    text = (ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
    names = {
        re.split(r"[^\w-]", line)[0] for line in tomllib.loads(text)["project"]["dependencies"]
    }
    found = {package}
    for name in names & set(known):
        found |= declared(name, known)
    return found


def wheel(wheels: Path, package: str) -> Path:
    """Find a package's wheel."""
    (found,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    return found


def create(folder: Path) -> Path:
    """Create a virtual environment and return its interpreter."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    """Return where an environment keeps its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parent.parent / "lib" / version / "site-packages"


def install(python: Path, *requirements: str | Path) -> None:
    """Install requirements, which compile to bytecode when they are imported."""
    pip(python, "install", "-q", "--no-compile", *requirements)


def pip(python: Path, *arguments: str | Path) -> str:
    """Run the one pip of the workspace for an environment, and return what it prints."""
    own = python.parents[2] / TOOLS / "bin" / "python"
    command = [own, "-m", "pip", "--python", python, "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
