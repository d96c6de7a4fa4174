"""What a measurement was made on."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

_LIBRARIES = (
    "torch",
    "stable-baselines3",
    "sb3-contrib",
    "sbx-rl",
    "jax",
    "cpprb",
    "gymnasium",
    "gymnasium-robotics",
    "ale-py",
    "mujoco",
    "numpy",
)

_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}
_ZEN = {"25": "Zen 4", "26": "Zen 5"}
"""Generations of AMD's processors with AVX-512, by family: virtual machines name both alike."""


def machine_line(threads: int, device: str = "cpu") -> str:
    """Describe processor, interpreter, libraries and thread setting in one line.

    Args:
        threads: what every system was given.
        device: where the networks are.
    """
    parts = [f"{hardware(device)}, {_num_cores()} cores", f"Python {platform.python_version()}"]
    parts += [f"{name} {version}" for name in _LIBRARIES if (version := _version(name))]
    parts.append(f"threads {threads}")
    return "; ".join(parts)


def measured_on(lines: Iterable[str]) -> str:
    """Describe several machines in one sentence, each processor and each version once.

    Args:
        lines: of `machine_line`.
    """
    machines: dict[str, None] = {}
    versions: dict[str, dict[str, None]] = {}
    for line in lines:
        machine, *others = line.split("; ")
        machines[machine.replace(", ", " with ")] = None
        for name, version in (other.rsplit(" ", 1) for other in others):
            versions.setdefault(name, {})[version] = None
    told = [" ".join((name, " or ".join(each))) for name, each in versions.items()]
    return f"Measured on {'; '.join((', '.join(machines), *told))}."


def hardware(device: str) -> str:
    """Name what a benchmark runs on: the processor, and the card if the networks are on one.

    Args:
        device: ``cpu``, or one of PyTorch's other devices.
    """
    if device == "cpu":
        return processor()
    import torch  # which most benchmarks leave to their children

    return f"{torch.cuda.get_device_name(device)} with {processor()}"


def processor() -> str:
    """Name the processor and its widest vector instructions, by which libraries choose kernels."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = info.read_text(encoding="utf-8").splitlines()
    fields = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    model = " ".join(fields.get("model name", platform.machine()).split())
    flags = fields.get("flags", "").split()
    width = next((title for flag, title in _VECTORS.items() if flag in flags), None)
    family = fields.get("cpu family", "").strip()
    if width == "AVX-512" and family in _ZEN:
        model = f"{model} {_ZEN[family]}"
    return model if width is None else f"{model} ({width})"


def source_version() -> str:
    """Return the abbreviated commit, with ``+`` where files differ from it, or the empty text."""
    root = Path(__file__).parents[2]
    try:
        commit = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "packages", "tools")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}+" if changed else commit


def peak_memory_mb() -> float:
    """Return the most memory this process has held so far, in 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would also count the process that started this one.
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return answer.stdout.strip()
