"""Whether algorithms take the steps that Stable-Baselines3 and sb3-contrib take.

Both sides start from the same weights, are given the same transitions and the same noise, and learn
from them several times. What is reported is how far the weights are apart afterwards, as a share of
how far they moved: rounding leaves some 1e-6, another equation anywhere leaves a large part of 1.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.machine import machine_line
from bench.markdown import PAGE, table, write_block
from bench.parity_data import Found
from bench.parity_onpolicy import compare_a2c, compare_ppo, compare_trpo
from bench.parity_replay import compare_ddpg, compare_dqn, compare_sac, compare_td3

_TOLERANCE = 1e-3

_COMPARISONS: dict[str, Callable[[], list[Found]]] = {
    "ppo": lambda: compare_ppo(is_discrete=False) + compare_ppo(is_discrete=True),
    "a2c": compare_a2c,
    "trpo": lambda: compare_trpo(is_discrete=False) + compare_trpo(is_discrete=True),
    "dqn": compare_dqn,
    "ddpg": compare_ddpg,
    "td3": compare_td3,
    "sac": compare_sac,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parity", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="the algorithm of this name")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else list(_COMPARISONS)
    if unknown := set(names) - set(_COMPARISONS):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(_COMPARISONS)}")
    torch.set_num_threads(1)
    found: list[Found] = []
    for name in names:
        found += _COMPARISONS[name]()
    content = _table(found)
    print(content)
    if not (options.only or options.no_page):
        write_block(options.page, "parity", content)
        print(f"wrote the table into {options.page.name}")
    return int(any(value > _TOLERANCE for each in found for value in each.apart.values()))


def _table(found: Sequence[Found]) -> str:
    rows = [
        [each.algorithm, str(each.updates), part, f"{value:.1e}"]
        for each in found
        for part, value in each.apart.items()
    ]
    header = ["algorithm", "updates", "part", "apart"]
    return f"{table(header, rows, left=1)}\n\nOn {machine_line(1)}."


if __name__ == "__main__":
    raise SystemExit(main())
