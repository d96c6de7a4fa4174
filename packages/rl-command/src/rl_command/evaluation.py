"""The command ``rl eval``."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rl_command.errors import UsageError, held_warnings
from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_command.run_directory import Run, open_run, warn_of_skipped
from rl_core.config import ComponentSpec, decode
from rl_core.seeding import spawn_seed
from rl_core.stateful import StateReader
from rl_train import EvaluationResult, evaluate_policy
from rl_train.builder import build_algorithm, build_envs, resolve_device
from rl_train.checkpoint import Checkpoint, latest_checkpoint
from rl_train.evaluation import draws_actions


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalArguments:
    """Arguments of ``rl eval``.

    Attributes:
        run_dir: Directory of the run.
        episodes: Number of episodes, divided evenly among the environments (>= 1).
        seed: Seed of the environments and of sampled actions (>= 0).
        stochastic: Sample actions from the policy instead of taking the most likely ones; an error
            for deterministic policies, such as those of dqn, rainbow, ddpg and td3.
        json: Print one JSON object and nothing else.
        best: Use the weights of the best evaluation during training instead of the newest.
        device: Device of the networks, in place of the one the run was started on.
    """

    run_dir: str
    episodes: int = 100
    seed: int = 0
    stochastic: bool = False
    json: bool = False
    best: bool = False
    device: str | None = None


def evaluate(words: Sequence[str]) -> int:
    """Evaluate the policy of a run's newest checkpoint, by default deterministically.

    Args:
        words: the arguments after ``rl eval``.

    Returns:
        The exit status.
    """
    options = command_options(
        EvalArguments,
        positional={"run_dir": "RUN_DIR"},
        placeholders={"device": "auto|cpu|cuda"},
    )
    summary = "Evaluate the policy of a run's newest checkpoint."
    command = Command("rl eval", summary, options, required=1)
    arguments = decode(EvalArguments, parse(command, words))
    if arguments.episodes < 1:
        raise UsageError(f"--episodes must be at least 1, got {arguments.episodes}")
    if arguments.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {arguments.seed}")
    with _stdout_kept_clean() if arguments.json else contextlib.nullcontext():
        run = open_run(arguments.run_dir)
        checkpoint, result = _evaluate(run, arguments)
    if arguments.json:
        facts = {
            "checkpoint": str(checkpoint.path),
            "step": checkpoint.step,
            "seed": arguments.seed,
            "stochastic": arguments.stochastic,
        }
        print(json.dumps({**facts, **result.as_dict()}, allow_nan=False))
    else:
        kind = "stochastic" if arguments.stochastic else "deterministic"
        names = f"{run.recipe.algorithm.name} on {run.recipe.env.name}"
        print(f"{names}, step {checkpoint.step:,}, {kind}: {result}")
    return 0


def _evaluate(run: Run, arguments: EvalArguments) -> tuple[Checkpoint, EvaluationResult]:
    with held_warnings():
        checkpoint = _chosen(run, arguments)
        device = resolve_device(arguments.device or run.recipe.device)
        envs = build_envs(
            _with_fewer_envs(run.recipe.env, arguments.episodes),
            spawn_seed(arguments.seed, "test"),
            testing=True,
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
        warn_of_skipped(checkpoint)
        result = evaluate_policy(
            algorithm,
            envs,
            arguments.episodes,
            deterministic=not arguments.stochastic,
            seed=arguments.seed,
        )
    finally:
        envs.close()
    return checkpoint, result


def _chosen(run: Run, arguments: EvalArguments) -> Checkpoint:
    if not arguments.best:
        newest = latest_checkpoint(run.checkpoints)
        assert newest is not None
        return newest
    best = latest_checkpoint(run.path / "best")
    if best is None:
        raise UsageError(
            f"{run.path} has no best weights, because it was never evaluated during training; "
            "train with --trainer.test-every, or leave --best out"
        )
    return best


def _with_fewer_envs(env: ComponentSpec, episodes: int) -> ComponentSpec:
    """Leave out environments that would run no episode."""
    num_envs = env.get("num_envs")
    if not isinstance(num_envs, int) or num_envs <= episodes:
        return env
    return ComponentSpec("env", env.name, {**env.kwargs, "num_envs": episodes})


@contextlib.contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Redirect what environments print within a block to standard error."""
    sys.stdout.flush()
    kept = None
    with contextlib.suppress(io.UnsupportedOperation):
        kept = os.dup(1) if sys.stdout.fileno() == 1 else None
    try:
        if kept is not None:
            os.dup2(2, 1)  # also for libraries in C, and for worker processes
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
