"""How long a user waits from the command to the evaluated policy, beside Stable-Baselines3.

Each round runs the whole command in turn: the first time on a machine, whose cache of compiled
graphs is empty; later, when it is filled; uncompiled; and a script with Stable-Baselines3 that
trains with the same hyper-parameters and evaluates as many episodes. Run nothing else meanwhile.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.child import ChildError, Json, thread_environment
from bench.machine import machine_line
from bench.markdown import table
from bench.measurement import (
    Figures,
    Found,
    measure_in_turn,
    measurements_of,
    overview_cell,
    ratio_cell,
    settings_lines,
    timed,
)
from bench.suite import Part, processor_table, run_suite, suite_parser

SIDES: Mapping[str, str] = {
    "first": "the first time",
    "later": "later",
    "uncompiled": "uncompiled",
    "sb3": "Stable-Baselines3",
}
"""What is timed, in the order of a round; a title for each."""

_NUM_EPISODES = 5
"""Episodes of the final evaluation, as by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRun:
    """A run with the defaults of an algorithm.

    Attributes:
        algorithm: name.
        env: Gymnasium id.
        steps: environment steps.
        peer: arguments of Stable-Baselines3's algorithm that make it learn as often and from as
            much; its own defaults are ours for the rest.
        num_envs: environments.
    """

    algorithm: str
    env: str
    steps: int
    peer: Mapping[str, object] = field(default_factory=dict)
    num_envs: int = 1


_REPLAY: Mapping[str, object] = {"train_freq": 1, "gradient_steps": 1, "learning_starts": 1000}

RUNS: Mapping[str, CommandRun] = {
    "ppo-cartpole": CommandRun(
        algorithm="ppo",
        env="CartPole-v1",
        steps=100_000,
        num_envs=8,
        peer={"n_steps": 256, "batch_size": 64, "n_epochs": 10, "vf_coef": 0.5},
    ),
    "dqn-cartpole": CommandRun(
        algorithm="dqn",
        env="CartPole-v1",
        steps=50_000,
        peer={
            **_REPLAY,
            "learning_rate": 1e-3,
            "batch_size": 128,
            "n_steps": 3,
            "tau": 0.01,
            "target_update_interval": 1,
            "policy_kwargs": {"net_arch": [120, 84]},
        },
    ),
    "sac-pendulum": CommandRun(
        algorithm="sac", env="Pendulum-v1", steps=20_000, peer={**_REPLAY, "batch_size": 256}
    ),
    "td3-pendulum": CommandRun(
        algorithm="td3",
        env="Pendulum-v1",
        steps=20_000,
        peer={
            **_REPLAY,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
}
"""By the name that the command line takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {name: partial(measure_run, name) for name in RUNS}
    parser = suite_parser("start", __doc__, parts)
    return run_suite("start", parts, render, parser.parse_args(arguments), overview)


def measure_run(name: str, options: argparse.Namespace) -> Found:
    """Time all sides of a run, one after the other, round by round."""
    with tempfile.TemporaryDirectory() as directory:
        sides = {side: partial(_time, name, side, Path(directory)) for side in SIDES}
        machine = machine_line(1)
        return measure_in_turn(
            name, sides, options.rounds, 0.0, machine, lambda figures: f"{figures['seconds']:.1f} s"
        )


def command(name: str, side: str, directory: Path) -> list[str]:
    """Return what one side of a run is started with.

    Args:
        name: of the run.
        side: one of `SIDES`.
        directory: for its files.
    """
    if side == "sb3":
        return [sys.executable, str(Path(__file__).resolve()), "--peer", name]
    run = RUNS[name]
    words = ["train", run.algorithm, run.env, "--total-steps", str(run.steps), "--seed", "1"]
    options = ["--run-dir", str(directory / side)]
    if side == "uncompiled":
        options += ["--trainer.compile", "off"]
    return [sys.executable, "-m", "rl_command", *words, *options]


def _time(name: str, side: str, directory: Path) -> Figures:
    """Time one side of a run.

    Raises:
        ChildError: when it fails.
    """
    if side == "first":  # of a round, without cache and runs
        shutil.rmtree(directory)
        directory.mkdir()
    environment = thread_environment(os.environ, 1) | {"RL_CACHE_DIR": str(directory / "cache")}
    words, output = command(name, side, directory), subprocess.DEVNULL
    try:
        return timed(partial(subprocess.run, words, env=environment, stdout=output, check=True))
    except subprocess.CalledProcessError as error:
        raise ChildError(f"it ended with exit status {error.returncode}") from error


def train_peer(name: str) -> None:
    """Train and evaluate with Stable-Baselines3."""
    run = RUNS[name]
    library = importlib.import_module("stable_baselines3")
    make_vec_env = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
    evaluate = importlib.import_module("stable_baselines3.common.evaluation").evaluate_policy
    algorithm = getattr(library, run.algorithm.upper())
    envs = make_vec_env(run.env, n_envs=run.num_envs, seed=1)
    model = algorithm("MlpPolicy", envs, seed=1, device="cpu", **run.peer)
    model.learn(run.steps)
    evaluate(model, make_vec_env(run.env, seed=2), _NUM_EPISODES)


def overview(results: Mapping[str, Mapping[str, Json]]) -> str:
    """Render how every processor's parts of Stable-Baselines3's time compare, and the commands."""
    columns = {
        processor: {
            f"`{name}`, {SIDES[side]}": overview_cell(found.get(name), "sb3", side)
            for name in RUNS
            for side in ("first", "later")
        }
        for processor, kept in results.items()
        for found in [measurements_of(kept, RUNS)]
    }
    titles = [
        f"- `{name}`: `rl train {run.algorithm} {run.env} --total-steps {run.steps}`."
        for name, run in RUNS.items()
    ]
    return "\n\n".join((processor_table("run", columns), "\n".join(titles)))


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    found = measurements_of(results, RUNS)
    if not found:
        return "Nothing was measured yet."
    rows = [
        [f"`{name}`", SIDES[side], f"{seconds:.1f} s", ratio_cell(measured.ratios("sb3", side))]
        for name, measured in found.items()
        for side in SIDES
        if (seconds := measured.median(side, "seconds")) is not None
    ]
    head = table(["run", "system", "time", "part of SB3's time"], rows, left=2)
    return "\n\n".join((head, settings_lines(found)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        train_peer(sys.argv[2])
    else:
        sys.exit(main())
