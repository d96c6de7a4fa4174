"""Meta-learning: how long a meta-update takes, and how much of the gap adaptation closes.

By default it times meta-updates on point navigation, 20 tasks with 20 episodes of 100 steps before
and after adaptation: that of maml-trpo beside a plain loop over the tasks, and that of maml-vpg
compiled and not; run nothing else meanwhile.
With ``--learning`` it makes the record runs that are not in the results yet. Runs are kept with
their checkpoints: the same command goes on where it was stopped, and makes no finished run again.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import grad
from torch.utils._pytree import tree_map

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import rl_train
from bench.child import Json
from bench.curve import Numbers
from bench.learning_curves import Band, Style, band, draw_figure
from bench.machine import machine_line, measured_on
from bench.markdown import table, write_block
from bench.measurement import (
    Found,
    Measurement,
    measure_in_turn,
    ratio_cell,
    read_results,
    timed,
)
from bench.suite import Part, run_suite, suite_parser
from rl_command.main import main as rl
from rl_core.batch import RolloutBatch
from rl_core.compile.function import CompileMode
from rl_core.config import Recipe
from rl_core.gradients.trust_region import Parameters, constrained_step
from rl_core.nn.distributions import from_columns, to_columns
from rl_core.types import Observation
from rl_envs.tasks import PointNavigation
from rl_meta import MAMLTRPO, collect_episodes
from rl_meta.rollouts import task_batch
from rl_train.builder import build_trainer, compose
from rl_train.evaluation import stratified_bootstrap_interval
from rl_train.loggers import read_metrics
from rl_train.presets import read_preset
from rl_train.recipe_files import save_recipe
from rl_train.trainer.setup import reuse_freed_memory

_ENV = "PointNavigation-v0"
_NUM_TASKS, _NUM_EPISODES, _NUM_STEPS = 20, 20, 100
NUM_EVALUATIONS = 20
_INTERRUPTED = 128
_FIGURES = Path("figures", "meta")
_RUNS = Path(__file__).resolve().parent / "results" / "runs" / "meta"
_SPEED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "update": ("maml-trpo", {"ours": "all tasks at once", "loop": "a loop over the tasks"}),
    "compiled": ("maml-vpg", {"compiled": "compiled", "uncompiled": "not compiled"}),
}
"""Which sides of a meta-update are timed, by part: the last one is what the others are beside."""


@dataclass(frozen=True, slots=True)
class Learner:
    """Record runs of a preset, one for each seed.

    Attributes:
        algorithm: its registered name.
        env: the environment's.
        num_seeds: how many runs.
        num_test_tasks: in the evaluation.
    """

    algorithm: str
    env: str = _ENV
    num_seeds: int = 5
    num_test_tasks: int = 100

    @property
    def tasks(self) -> str:
        """The environment, with the range of velocities."""
        kwargs = read_preset(self.algorithm, self.env)[1].get("env", {}).get("env_kwargs", {})
        high = cast("Mapping[str, Json]", kwargs).get("high")
        return self.env if high is None else f"{self.env}, 0 to {high} m/s"

    def recipe(self, num_threads: int) -> Recipe:
        """Return the preset, with evaluations on the way."""
        preset = compose(self.algorithm, self.env, preset=True)
        total_steps = cast("int", preset.resolved["total_steps"])
        num_envs, num_steps = preset.env.kwargs["num_envs"], preset.storage.kwargs["num_steps"]
        num_updates = total_steps // (cast("int", num_envs) * cast("int", num_steps))
        trainer: dict[str, Json] = {
            "test_every": max(1, num_updates // NUM_EVALUATIONS),
            "num_test_episodes": self.num_test_tasks // 2,
            "final_test_episodes": self.num_test_tasks,
            "keep_best": False,
            "keep_checkpoints": 1,
            "num_threads": num_threads,
        }
        return replace(preset, trainer={**preset.trainer, **trainer})


LEARNERS: Mapping[str, Learner] = {
    "maml-vpg": Learner("maml-vpg"),
    "maml-ppo": Learner("maml-ppo"),
    "maml-trpo": Learner("maml-trpo"),
    "pearl": Learner("pearl"),
    "maml-trpo/direction": Learner("maml-trpo", "HalfCheetahDir-v0", 3, 30),
    "maml-trpo/velocity": Learner("maml-trpo", "HalfCheetahVel-v0", 3, 30),
    "pearl/direction": Learner("pearl", "HalfCheetahDir-v0", 3, 30),
    "pearl/velocity": Learner("pearl", "HalfCheetahVel-v0", 3, 30),
}
"""All record runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {
        "update": partial(_measure, "update", {"ours": batched_update, "loop": looped_update}),
        "compiled": partial(
            _measure,
            "compiled",
            {name: partial(batched_update, "maml-vpg", mode) for name, mode in _MODES.items()},
        ),
    }
    parts |= {name: partial(learn, name) for name in LEARNERS}
    parser = suite_parser("meta", __doc__, parts)
    parser.add_argument("--learning", action="store_true", help="make the runs that are missing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="seeds of a learner side by side")
    parser.add_argument("--runs", type=Path, default=_RUNS, help="where runs are kept")
    options = parser.parse_args(arguments)
    if options.only is None:
        known = read_results(options.results)
        missing = [name for name in LEARNERS if len(_runs(name, known)) < LEARNERS[name].num_seeds]
        options.only = missing if options.learning else list(_SPEED)
        options.table = options.table or not options.only
    torch.set_num_threads(options.threads)
    status = run_suite("meta", parts, render, options, overview=None)
    draw_curves(read_results(options.results), options.page.parent)
    return status


_MODES: Mapping[str, CompileMode] = {"compiled": "on", "uncompiled": "off"}


def _measure(
    part: str,
    makers: Mapping[str, Callable[[], Callable[[], None]]],
    options: argparse.Namespace,
) -> Found:
    reuse_freed_memory()  # as a run does; all sides profit
    sides = {side: make() for side, make in makers.items()}
    for update in sides.values():
        update()  # the first one of a process takes longer, and compiles
    return measure_in_turn(
        part,
        {side: partial(timed, update) for side, update in sides.items()},
        options.rounds,
        0.0,
        machine_line(options.threads),
        lambda figures: f"{figures['seconds']:.2f} s",
    )


def batched_update(
    algorithm: str = "maml-trpo", compile_mode: CompileMode = "on"
) -> Callable[[], None]:
    """Return a function that collects and learns as a run does.

    Args:
        algorithm: its registered name.
        compile_mode: of acting, and of gradient steps, which ``maml-trpo`` has none of.
    """
    agent = rl_train.make(algorithm, _ENV, seed=1)
    trainer = build_trainer(agent.parts)
    agent.algorithm.compiled.set_mode(compile_mode)

    def update() -> None:
        for _ in range(2):
            trainer.collector.collect(_NUM_TASKS * _NUM_EPISODES * _NUM_STEPS, trainer.storage)
            trainer.algorithm.update(trainer.storage)

    return update


def looped_update() -> Callable[[], None]:
    """Return a function that does the same, task by task, by the same equations."""
    algorithm = cast("MAMLTRPO", rl_train.make("maml-trpo", _ENV, seed=1).algorithm)
    envs = PointNavigation(_NUM_EPISODES)
    generator = torch.Generator().manual_seed(1)
    config = algorithm.config

    def update() -> None:
        tasks = [
            _collect_task(algorithm, envs, goal, generator)
            for goal in envs.sample_tasks(_NUM_TASKS, generator)
        ]
        named = algorithm.named_parameters()
        parameters = {name: named[name] for name in algorithm.policy_parameters()}
        judged = [after for _, after in tasks]
        with torch.no_grad():
            like = [algorithm.distribution_at(parameters, one.observation) for one in judged]

        def policies(at: Parameters) -> Parameters:
            each = [_adapted_policy(algorithm, at, *rollouts) for rollouts in tasks]
            return {f"{name}/{i}": part for i, one in enumerate(each) for name, part in one.items()}

        def objective(columns: Parameters) -> tuple[Tensor, Tensor]:
            each = []
            for i, after in enumerate(judged):
                own = {name: columns[f"{name}/{i}"] for name in after.extras}
                now, before = (from_columns(like[i], part) for part in (own, after.extras))
                ratio = (now.log_prob(after.action) - after.log_prob).exp()
                divergence = before.kl_divergence(now)
                each.append((-(ratio * after.advantage).mean(), divergence.mean()))
            losses, divergences = zip(*each, strict=True)
            return torch.stack(losses).mean(), torch.stack(divergences).mean()

        constrained_step(
            objective,
            parameters,
            float(algorithm.hyper["max_kl"]),
            adapt=policies,
            damping=config.cg_damping,
            num_cg_steps=config.cg_steps,
            num_backtracks=config.num_backtracks,
        )

    return update


def _collect_task(
    algorithm: MAMLTRPO, envs: PointNavigation, goal: Tensor, generator: torch.Generator
) -> tuple[RolloutBatch, RolloutBatch]:
    """Collect before and after adaptation to one task."""
    envs.set_tasks(goal.expand(_NUM_EPISODES, -1))
    policy: Parameters = algorithm.unadapted(1)
    batches = []
    for _ in range(2):

        def choose(observation: Observation, at: Parameters = policy) -> tuple[Tensor, Tensor]:
            noise = algorithm.actor.draw_noise((_NUM_EPISODES,), generator)
            return algorithm.act(at, observation, noise)

        rollout = collect_episodes(envs, choose, 1, algorithm.device)
        columns, _ = algorithm.estimate(policy, rollout)
        by_task = task_batch(rollout, columns, 1)
        batches.append(tree_map(lambda column: column[0], by_task))  # of the only task
        with torch.no_grad():
            policy = algorithm.adapt(policy, by_task)
    return batches[0], batches[1]


def _adapted_policy(
    algorithm: MAMLTRPO, at: Parameters, first: RolloutBatch, second: RolloutBatch
) -> Parameters:
    """Return the columns, in the second rollout, of a policy adapted to the first."""
    gradients = grad(algorithm.inner_loss)(dict(at), first)
    adapted = {name: p - algorithm.hyper["inner_lr"] * gradients[name] for name, p in at.items()}
    now = algorithm.distribution_at(adapted, second.observation)
    return to_columns(now, tuple(second.log_prob.shape))


def learn(name: str, options: argparse.Namespace) -> Found:
    """Make a learner's record runs by the command line, as far as they are not made yet."""
    learner, folder = LEARNERS[name], options.runs / name.replace("/", "-")
    options.runs.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".toml")
    save_recipe(learner.recipe(options.threads), file)
    words = [f"--config={file}", "--progress=log"]
    words += [f"--seeds=0..{learner.num_seeds - 1}", f"--jobs={options.jobs}"]
    status = rl(["train", *words, f"--run-dir={folder}"])
    if status > _INTERRUPTED:
        raise KeyboardInterrupt
    runs = {seed: _record(folder / f"seed-{seed}") for seed in range(learner.num_seeds)}
    found = {
        **_runs(name, read_results(options.results)),
        **{str(seed): run for seed, run in runs.items() if run is not None},
    }
    return Found(
        {"machine": machine_line(options.threads), "runs": cast("dict[str, Json]", found)},
        status == 0,
    )


def _record(run: Path) -> Mapping[str, Json] | None:
    """Read what a run found out; None while it is not finished."""
    summary = run / "summary.json"
    kept = read_results(summary)
    evaluation = cast("dict[str, Json] | None", kept.get("final_evaluation"))
    if evaluation is None:
        return None
    stages = cast("dict[str, dict[str, Json]]", evaluation["stages"])
    curves: dict[str, list[Json]] = {stage: [] for stage in stages}
    for line in read_metrics(run / "metrics.jsonl"):
        for stage, points in curves.items():
            value = line.get(f"test/return_{stage.replace(' ', '_')}")
            if value is not None:
                points.append([line["step"], round(value, 4)])
    return {
        "steps": kept["total_steps"],
        "stages": {stage: found["returns"] for stage, found in stages.items()},
        "curves": cast("dict[str, Json]", curves),
    }


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    blocks = []
    for part, (algorithm, sides) in _SPEED.items():
        if part not in results:
            continue
        found = Measurement.from_dict(cast("Mapping[str, Json]", results[part]))
        base = list(sides)[-1]
        rows = [
            [
                title,
                f"{found.median(side, 'seconds'):.2f} s",
                ratio_cell(found.ratios(side, base)),
            ]
            for side, title in sides.items()
        ]
        head = [f"meta-update of `{algorithm}`", "time", "speed beside the last row"]
        blocks += [
            table(head, rows, left=1),
            f"Medians of {len(found.rounds)} rounds. {measured_on([found.machine])}",
        ]
    recorded = {name: runs for name in LEARNERS if (runs := _runs(name, results))}
    if recorded:
        rows = [_row(LEARNERS[name], runs) for name, runs in recorded.items()]
        blocks.append(table([*_HEAD, *_STAGES, "gained by the first step"], rows, left=2))
        blocks.append(
            measured_on(
                str(cast("Mapping[str, Json]", results[name])["machine"]) for name in recorded
            )
        )
    return "\n\n".join(blocks) or "Nothing was measured yet."


_HEAD = ("algorithm", "tasks", "seeds", "steps")
_STAGES: Mapping[str, Style] = {
    "before adaptation": ("before adaptation", "#e8820c", "--"),
    "after step 1": ("after one step", "#3b82f6", "-"),
    "after step 2": ("after two steps", "#16a34a", "-"),
    "oracle": ("oracle", "#808080", ":"),
}
"""Stages of an evaluation, and how their curves are drawn."""


def _runs(name: str, results: Mapping[str, Json]) -> Mapping[str, Mapping[str, Json]]:
    """Return the recorded runs of a learner by seed."""
    kept = cast("Mapping[str, Json]", results.get(name, {"runs": {}}))
    return cast("Mapping[str, Mapping[str, Json]]", kept["runs"])


def _row(learner: Learner, runs: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """Render the stages' means over seeds, with intervals, and what each seed gains."""
    means: dict[str, list[float]] = {}
    for run in runs.values():
        for stage, returns in cast("Mapping[str, list[float]]", run["stages"]).items():
            means.setdefault(stage, []).append(statistics.fmean(returns))
    gained = [a - b for a, b in zip(means["after step 1"], means["before adaptation"], strict=True)]
    each = [f"{gain:+.1f}" for gain in gained]
    whole = f"{statistics.fmean(gained):+.1f}"
    if "oracle" in means:
        gaps = (
            best - b for best, b in zip(means["oracle"], means["before adaptation"], strict=True)
        )
        shares = [gain / gap for gain, gap in zip(gained, gaps, strict=True)]
        each, whole = [f"{share:.0%}" for share in shares], f"{statistics.fmean(shares):.0%}"
    steps = statistics.fmean(cast("float", run["steps"]) for run in runs.values())
    return [
        f"`{learner.algorithm}`",
        learner.tasks,
        str(len(runs)),
        f"{steps:,.0f}",
        *(_with_interval(means[stage]) if stage in means else "-" for stage in _STAGES),
        f"**{whole}** ({', '.join(each)})",
    ]


def _with_interval(means: Sequence[float]) -> str:
    """Render a mean over seeds, and its 95 % interval where there are several."""
    text = f"{statistics.fmean(means):.1f}"
    if len(means) == 1:
        return text
    low, high = stratified_bootstrap_interval(
        [np.array(means)], _mean, generator=np.random.default_rng(0)
    )
    return f"{text} ({low:.1f} to {high:.1f})"


def _mean(values: Numbers) -> Numbers:
    return np.asarray(values.mean(axis=-1))


_CAPTION = """\
Mean returns over test tasks before and after adaptation, of policies that take their modes. Lines
are means over seeds, bands reach from the lowest seed to the highest. The command below a figure
makes its runs; `hatch run bench:meta --table` draws it."""


def draw_curves(results: Mapping[str, Json], pages: Path) -> None:
    """Draw a figure for each learner, and write the block ``curves`` of the algorithms' pages.

    Args:
        results: by part.
        pages: folder of the pages, with ``algorithms`` in it.
    """
    folder = pages / _FIGURES
    texts: dict[str, list[str]] = {"maml.md": [], "pearl.md": []}
    for name, learner in LEARNERS.items():
        curves = [
            cast("Mapping[str, list[list[float]]]", run["curves"])
            for run in _runs(name, results).values()
        ]
        bands: dict[Style, Band] = {}
        for stage, style in _STAGES.items():
            found = band([np.array(one[stage]) for one in curves if stage in one])
            if found is not None:
                bands[style] = found
        if not bands:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name.replace('/', '-')}.svg"
        title = f"{learner.algorithm.upper()} on {learner.tasks}"
        draw_figure(bands, title, "return on a test task", path)
        ends = "; ".join(
            f"{style[0]} from {made.mean[0]:.4g} to {made.mean[-1]:.4g}"
            for style, made in bands.items()
        )
        figure = f"![Returns of {title}: {ends}](../{(_FIGURES / path.name).as_posix()})"
        page = f"{learner.algorithm.partition('-')[0]}.md"
        texts[page].append(f"{figure}\n\n`hatch run bench:meta --only {name}`")
    for page, figures in texts.items():
        content = "\n\n".join([_CAPTION, *figures]) if figures else "No run is recorded yet."
        write_block(pages / "algorithms" / page, "curves", content)


if __name__ == "__main__":
    sys.exit(main())
