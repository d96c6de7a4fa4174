"""List the files of ours that run in one environment step and in one update of SAC.

Whoever wants to follow a step opens these and no others; so there should be few, and none too long.

    python tools/files_per_step.py
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from rl_train.builder import build, build_trainer, compose

ROOT = Path(__file__).resolve().parents[1]
MOST_FILES = {"environment step": 15, "update": 20}
MOST_LINES = 400


def files_of(call: Callable[[], object]) -> list[Path]:
    """Return the files of packages whose functions run in a call, in the order of their names."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    source = ROOT / "packages"
    return sorted(path for name in seen if (path := Path(name)).is_relative_to(source))


def main() -> int:
    """Print the files with their lines; the status is 1 where there are too many, or long ones."""
    argparse.ArgumentParser(prog="files_per_step", description=__doc__).parse_args()
    torch.set_num_threads(1)
    sections = {"algorithm": {"start_steps": 10, "update_after": 10}}
    recipe = compose("sac", "Pendulum-v1", sections, seed=0, device="cpu")
    trainer = build_trainer(build(recipe))
    trainer.train(total_steps=300, progress=False)  # what happens once is over
    collector, storage, algorithm = trainer.collector, trainer.storage, trainer.algorithm
    found = {
        "environment step": files_of(lambda: collector.collect(1, storage)),
        "update": files_of(lambda: algorithm.update(storage)),
    }
    trainer.envs.close()
    is_bad = False
    for name, files in found.items():
        print(f"{name}: {len(files)} files (at most {MOST_FILES[name]})")
        is_bad |= len(files) > MOST_FILES[name]
        for path in files:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            is_bad |= lines > MOST_LINES
            mark = f": at most {MOST_LINES} lines" if lines > MOST_LINES else ""
            print(f"  {lines:4} {path.relative_to(ROOT / 'packages')}{mark}")
    return int(is_bad)


if __name__ == "__main__":
    raise SystemExit(main())
