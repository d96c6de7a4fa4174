"""The command ``rl eval``."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from rl_command.errors import UsageError, held_warnings, print_warning, stdout_kept_clean
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.run_directory import BEST, Run, open_run, runs_in, without_checkpoint
from rl_command.train_arguments import import_modules
from rl_core.config import Config, Count, NonNegativeInt, Without, decode
from rl_core.env import TaskVecEnv
from rl_core.seeding import spawn_seed
from rl_core.stateful import StateReader
from rl_core.types import Json
from rl_train import EvaluationResult, TrainerConfig, evaluate_policy
from rl_train.builder import build_algorithm, build_envs, resolve_device
from rl_train.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    step_of,
)
from rl_train.evaluation import draws_actions, has_custom_evaluation, in_words, summarize

_EVERY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class EvalArguments(Config):
    """Options of ``rl eval``.

    Attributes:
        episodes: Number of episodes of each run, divided evenly among the environments; for
            algorithms that adapt to tasks, the number of test tasks.
        seed: Seed of the environments and of sampled actions.
        stochastic: Sample actions from the policy instead of taking the most likely ones; an error
            for deterministic policies, such as those of dqn, rainbow, ddpg and td3.
        json: Print one JSON object and nothing else.
        best: Use the weights of the best evaluation during training instead of the newest.
        step: Use the checkpoint of this step instead of the newest.
        device: Device of the networks, in place of the one the run was started on.
        imports: Module to import first, which registers environments; may be repeated.
    """

    episodes: Count = 100
    seed: NonNegativeInt = 0
    stochastic: bool = False
    json: bool = False
    best: bool = False
    step: Annotated[NonNegativeInt | None, Without("best")] = None
    device: str | None = None
    imports: tuple[str, ...] = ()


def evaluate(words: Sequence[str]) -> int:
    """Evaluate the policy of a run's newest checkpoint, by default deterministically.

    Of a directory with several seeds, all runs are evaluated; the statistics are over their means.

    Args:
        words: the arguments after ``rl eval``.

    Returns:
        The exit status.
    """
    options = command_options(EvalArguments)
    summary = "Evaluate the policy of a run's newest checkpoint, or those of several seeds."
    given = parse(Command("rl eval", summary, options, ("RUN_DIR",), required=1), words)
    arguments = given.into(EvalArguments)
    import_modules(given.tables)
    kind = "stochastic" if arguments.stochastic else "deterministic"
    results: list[EvaluationResult] = []
    tables: list[dict[str, Json]] = []
    for directory in runs_in(Path(given.names[0])):
        with stdout_kept_clean() if arguments.json else contextlib.nullcontext():
            run = open_run(str(directory), learns=False)
            checkpoint, result = _evaluate(run, arguments)
        results.append(result)
        table: dict[str, Json] = {
            "checkpoint": str(checkpoint.path),
            "step": checkpoint.step,
            "run_seed": run.recipe.seed,
            "seed": arguments.seed,
            "stochastic": arguments.stochastic,
        }
        tables.append({**table, **result.as_dict()})
        if not arguments.json:
            names = f"{run.recipe.algorithm.name} on {run.recipe.env.name}"
            which = "" if directory == Path(given.names[0]) else f", seed {run.recipe.seed}"
            print(f"{names}{which}, step {checkpoint.step:,}, {kind}: {result}")
    facts = tables[0] if len(tables) == 1 else _over_runs(results, tables, arguments)
    if arguments.json:
        print(json.dumps(facts, allow_nan=False))
    return 0


def _over_runs(
    results: Sequence[EvaluationResult], tables: list[dict[str, Json]], arguments: EvalArguments
) -> dict[str, Json]:
    """Print statistics of several runs, of each stage too, and return them with those of each."""
    steps = [cast("int", table["step"]) for table in tables]
    if min(steps) < 0.9 * max(steps) and not arguments.best:
        print_warning(f"the runs have {min(steps):,} to {max(steps):,} steps")
    means = {"": [result.mean for result in results]}
    means |= {stage: [one.stages[stage].mean for one in results] for stage in results[0].stages}
    found: dict[str, dict[str, Json]] = {}
    for stage, each in means.items():
        result = summarize(each, seed=arguments.seed)
        if not arguments.json:
            print(f"{stage}: " if stage else "", described_over_runs(result), sep="")
        table = result.as_dict()
        names = ("mean", "std", "iqm", "ci95")
        found[stage] = {"num_runs": len(each), **{name: table[name] for name in names}}
    episodes = sum(result.num_episodes for result in results)
    facts = {**found.pop(""), "num_episodes": episodes, "runs": cast("Json", tables)}
    return {**facts, "stages": cast("Json", found)} if found else facts


def described_over_runs(result: EvaluationResult) -> str:
    """Return statistics of several runs' mean returns, of which each is one sample, as text."""
    iqm, mean, std, low, high = in_words(result.iqm, result.mean, result.std, *result.ci95)
    return (
        f"{result.num_episodes} seeds: IQM {iqm}, 95 % interval {low} to {high} "
        f"(mean {mean} ± {std})"
    )


def _evaluate(run: Run, arguments: EvalArguments) -> tuple[Checkpoint, EvaluationResult]:
    with held_warnings():
        checkpoint = _chosen(run, arguments)
        device = resolve_device(arguments.device or run.recipe.device)
        envs = build_envs(
            run.recipe.env,
            spawn_seed(arguments.seed, "test"),
            num_test_episodes=arguments.episodes,
        )
    try:
        with held_warnings():
            algorithm = build_algorithm(run.recipe, envs, device, is_saved=True)
            saved = StateReader(checkpoint.state, str(checkpoint.path))
            algorithm.load_modules(saved.tree("algorithm"))
        if arguments.stochastic and not draws_actions(algorithm.actor):
            raise UsageError(
                f"--stochastic: the policy of {run.recipe.algorithm.name} takes one action for "
                "each observation; leave the option out"
            )
        adapts = has_custom_evaluation(algorithm) and isinstance(envs, TaskVecEnv)
        result = evaluate_policy(
            algorithm,
            envs,
            arguments.episodes,
            deterministic=not arguments.stochastic,
            seed=arguments.seed,
            max_episode_steps=decode(TrainerConfig, run.recipe.trainer).max_test_steps,
            on_step=_counter(arguments.episodes, "tasks" if adapts else "episodes"),
        )
    finally:
        envs.close()
    return checkpoint, result


def _counter(total: int, what: str) -> Callable[[int, int], None]:
    """Return what says every few seconds how many episodes or tasks are done, in how many steps."""
    last = time.monotonic()

    def count(finished: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_SECONDS:
            last = time.monotonic()
            print(f"{finished} of {total} {what}, {steps:,} steps", file=sys.stderr)

    return count


def _chosen(run: Run, arguments: EvalArguments) -> Checkpoint:
    paths = list_checkpoints(run.checkpoints)
    if not (arguments.best or paths):
        raise UsageError(f"{run.path} cannot be evaluated: it {without_checkpoint(run.path)}")
    if arguments.step is not None:
        found = {step_of(path): path for path in paths}
        if arguments.step not in found:
            known = ", ".join(path.name for path in paths)
            raise UsageError(f"--step {arguments.step}: {run.checkpoints} holds only {known}")
        return load_checkpoint(found[arguments.step])
    if not arguments.best:
        newest = latest_checkpoint(run.checkpoints)
        assert newest is not None
        return newest
    best = latest_checkpoint(run.path / BEST)
    if best is None:
        raise UsageError(
            f"{run.path} has no best weights, because it was never evaluated during training; "
            "train with --trainer.test-every, or leave --best out"
        )
    return best
