"""Meta-learning: how long a meta-update takes, and how much of the gap adaptation closes.

By default it times a meta-update of maml-trpo on point navigation, 20 tasks with 20 episodes of 100
steps before and after adaptation, beside a plain loop over the tasks. With ``--learning`` it makes
the record runs that are not in the results yet, one after the other. Run nothing else meanwhile.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.func import grad

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import rl_train
from bench.child import Json
from bench.machine import machine_line
from bench.markdown import table
from bench.measurement import Found, Measurement, ratio_cell, read_results
from bench.suite import Part, run_suite, suite_parser
from rl_core.batch import RolloutBatch
from rl_core.gradients.trust_region import Parameters, constrained_step
from rl_core.nn.distributions import from_columns
from rl_core.seeding import spawn_generators
from rl_core.types import Observation
from rl_envs import make_vec
from rl_envs.tasks import PointNavigation
from rl_meta import MAMLTRPO, collect_episodes
from rl_meta.rollouts import as_batch, task_columns
from rl_train.builder import build_trainer

_ENV = "PointNavigation-v0"
_NUM_TASKS, _NUM_EPISODES, _NUM_STEPS = 20, 20, 100
_SPEED = "update"
_SIDES = {"ours": "all tasks at once", "loop": "a loop over the tasks"}


@dataclass(frozen=True, slots=True)
class Learner:
    """A record run, but for its seed.

    Attributes:
        algorithm: its registered name.
        env: the environment's.
        updates: how many; two of them are a meta-update of MAML or an iteration of PEARL.
        num_seeds: how many runs.
        num_test_tasks: in the evaluation.
        options: of the recipe, by section.
    """

    algorithm: str
    env: str = _ENV
    updates: int = 200
    num_seeds: int = 5
    num_test_tasks: int = 100
    options: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)

    @property
    def is_navigation(self) -> bool:
        """Whether the best return on a task is known."""
        return self.env == _ENV


_NAVIGATING: Mapping[str, Mapping[str, Json]] = {
    "actor": {"inner_options": {"hidden_sizes": [64, 64]}, "encoder_hidden_sizes": [64, 64]},
    "algorithm": {
        "num_minibatches": 100,
        "kl_coef": 0.01,
        "encoder_learning_rate": 1e-3,
        "inner_options": {
            "gamma": 0.9,
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
        },
    },
}


def _running(algorithm: str, env: str, **env_kwargs: Json) -> Learner:
    """Return runs of the half-cheetah, by the protocols of the papers."""
    options: dict[str, dict[str, Json]] = {"env": {"vectorization": "sync"}}
    if algorithm == "pearl":
        options["storage"] = {"num_steps": 200, "capacity": 20_000}
    else:
        env_kwargs["max_episode_steps"] = 100
        options["algorithm"] = {"meta_batch_size": 40, "num_exploration_episodes": 20}
        options["env"]["num_envs"] = 800
    options["env"]["env_kwargs"] = env_kwargs
    updates = 405 if algorithm == "pearl" else 200
    return Learner(algorithm, env, updates, 3, 30, options)


LEARNERS: Mapping[str, Learner] = {
    "maml-vpg": Learner("maml-vpg"),
    "maml-ppo": Learner("maml-ppo"),
    "maml-trpo": Learner("maml-trpo"),
    "pearl": Learner("pearl", updates=205, options=_NAVIGATING),
    "maml-trpo/direction": _running("maml-trpo", "HalfCheetahDirection-v0"),
    "maml-trpo/velocity": _running("maml-trpo", "HalfCheetahVelocity-v0", high=2),
    "pearl/direction": _running("pearl", "HalfCheetahDirection-v0"),
    "pearl/velocity": _running("pearl", "HalfCheetahVelocity-v0", high=3),
}
"""All record runs. PEARL has five updates more, in which it sees each of its tasks once."""


def main(arguments: Sequence[str] | None = None) -> int:
    parts: dict[str, Part] = {_SPEED: _measure_update}
    for name in LEARNERS:
        for seed in range(LEARNERS[name].num_seeds):
            parts[f"{name}/{seed}"] = partial(learn, name, seed)
    parser = suite_parser("meta", __doc__, parts)
    parser.add_argument("--learning", action="store_true", help="make the runs that are missing")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.only is None:
        known = read_results(options.results)
        missing = [part for part in parts if part != _SPEED and part not in known]
        options.only = missing if options.learning else [_SPEED]
        options.table = options.table or not options.only
    torch.set_num_threads(options.threads)
    return run_suite("meta", parts, render, options)


def _measure_update(options: argparse.Namespace) -> Found:
    sides = {"ours": batched_update(), "loop": looped_update()}
    for update in sides.values():
        update()  # the first one of a process takes longer
    rounds = []
    for number in range(1, options.rounds + 1):
        one = {}
        for side, update in sides.items():
            start = time.perf_counter()
            update()
            seconds = time.perf_counter() - start
            one[side] = {"rate": 1.0 / seconds, "seconds": seconds}
            print(f"{_SPEED} round {number}: {_SIDES[side]} {seconds:.2f} s", flush=True)
        rounds.append(one)
    return Found(Measurement(rounds, 0.0, machine_line(options.threads)).as_dict(), True)


def batched_update() -> Callable[[], None]:
    """Return a function that collects and learns as a run does."""
    agent = rl_train.make("maml-trpo", _ENV, seed=1)
    trainer = build_trainer(agent.parts)

    def update() -> None:
        for _ in range(2):
            trainer.collector.collect(_NUM_TASKS * _NUM_EPISODES * _NUM_STEPS, trainer.storage)
            trainer.algorithm.update(trainer.storage)

    return update


def looped_update() -> Callable[[], None]:
    """Return a function that does the same task by task."""
    algorithm = cast("MAMLTRPO", rl_train.make("maml-trpo", _ENV, seed=1).algorithm)
    envs = PointNavigation(_NUM_EPISODES)
    generator = torch.Generator().manual_seed(1)

    def update() -> None:
        tasks = [
            _collect_task(algorithm, envs, goal, generator)
            for goal in envs.sample_tasks(_NUM_TASKS, generator)
        ]
        named = algorithm.named_parameters()
        parameters = {name: named[name] for name in algorithm.policy_parameters()}

        def objective(at: Parameters) -> tuple[Tensor, Tensor]:
            each = [_adapted_loss(algorithm, at, *rollouts) for rollouts in tasks]
            losses, divergences = zip(*each, strict=True)
            return torch.stack(losses).mean(), torch.stack(divergences).mean()

        constrained_step(objective, parameters, float(algorithm.hyper["max_kl"]))

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
        by_task = task_columns(rollout, columns, 1)
        batches.append(as_batch({name: column[0] for name, column in by_task.items()}))
        with torch.no_grad():
            policy = algorithm.adapt(policy, as_batch(by_task))
    return batches[0], batches[1]


def _adapted_loss(
    algorithm: MAMLTRPO, at: Parameters, first: RolloutBatch, second: RolloutBatch
) -> tuple[Tensor, Tensor]:
    """Return the surrogate loss and the divergence of a policy adapted to the first rollout."""
    gradients = grad(algorithm.inner_loss)(dict(at), first)
    adapted = {name: p - algorithm.hyper["inner_lr"] * gradients[name] for name, p in at.items()}
    now = algorithm.distribution_at(adapted, second.observation)
    ratio = (now.log_prob(second.action) - second.log_prob).exp()
    divergence = from_columns(now, second.extras).kl_divergence(now)
    return -(ratio * second.advantage).mean(), divergence.mean()


def learn(name: str, seed: int, options: argparse.Namespace) -> Found:
    """Make one record run, and evaluate it on test tasks."""
    learner = LEARNERS[name]
    start = time.perf_counter()
    agent = rl_train.make(learner.algorithm, learner.env, seed=seed, options=learner.options)
    trained = agent.train(total_updates=learner.updates)
    seconds = time.perf_counter() - start
    env_kwargs = cast("Mapping[str, Json]", learner.options.get("env", {}).get("env_kwargs"))
    with make_vec(learner.env, 20, env_kwargs=env_kwargs) as envs:
        result = rl_train.evaluate_policy(agent, envs, learner.num_test_tasks, seed=seed)
    stages = {stage: statistics.fmean(values) for stage, values in result.stages.items()}
    print(f"{name} seed {seed}: {stages}, {seconds:.0f} s", flush=True)
    values: dict[str, Json] = {
        "stages": cast("dict[str, Json]", stages),
        "steps": trained.total_steps,
        "seconds": seconds,
        "machine": machine_line(options.threads),
    }
    if learner.is_navigation:
        values["oracle"] = oracle_return(seed, learner.num_test_tasks)
    return Found(values, True)


def oracle_return(seed: int, num_tasks: int) -> float:
    """Return the mean return of moving straight to the goal, on an evaluation's test tasks."""
    generator = spawn_generators(seed, ["tasks"])["tasks"]
    goals = PointNavigation().sample_tasks(num_tasks, generator, "test")
    place, total = torch.zeros_like(goals), torch.zeros(len(goals))
    for _ in range(_NUM_STEPS):
        place = place + (goals - place).clamp(-0.1, 0.1)
        total -= (place - goals).square().sum(1)
    return float(total.mean())


def render(results: Mapping[str, Json]) -> str:
    """Render everything that was measured."""
    blocks = []
    if _SPEED in results:
        found = Measurement.from_dict(cast("Mapping[str, Json]", results[_SPEED]))
        rows = [
            [
                title,
                f"{found.median(side, 'seconds'):.2f} s",
                ratio_cell(found.ratios(side, "loop")),
            ]
            for side, title in _SIDES.items()
        ]
        head = ["meta-update of `maml-trpo`", "time", "times as fast as the loop"]
        blocks += [
            table(head, rows, left=1),
            f"Rounds: {len(found.rounds)}; medians on {found.machine}.",
        ]
    rows = [_navigation_row(name, runs) for name, runs in _runs(results, True).items()]
    if rows:
        head = [
            "algorithm",
            "seeds",
            "before",
            "after one step",
            "oracle",
            "gap closed (at least 60 %)",
        ]
        blocks.append(table(head, rows, left=1))
    rows = [_running_row(name, runs) for name, runs in _runs(results, False).items()]
    if rows:
        head = ["algorithm", "tasks", "seeds", "steps", "before", "after", "gained"]
        blocks.append(table(head, rows, left=2))
    return "\n\n".join(blocks) or "Nothing was measured yet."


def _runs(results: Mapping[str, Json], is_navigation: bool) -> dict[str, list[Mapping[str, Json]]]:
    """Return the recorded runs of each learner that has any."""
    runs: dict[str, list[Mapping[str, Json]]] = {}
    for name, learner in LEARNERS.items():
        keys = [f"{name}/{seed}" for seed in range(learner.num_seeds)]
        found = [cast("Mapping[str, Json]", results[key]) for key in keys if key in results]
        if found and learner.is_navigation is is_navigation:
            runs[name] = found
    return runs


def _stage(runs: Sequence[Mapping[str, Json]], name: str) -> list[float]:
    """Return the mean return of each run at a stage; the last stage for an empty name."""
    stages = [cast("Mapping[str, float]", run["stages"]) for run in runs]
    return [one[name or list(one)[-1]] for one in stages]


def _running_row(name: str, runs: Sequence[Mapping[str, Json]]) -> list[str]:
    """Render the means over seeds, and what each seed gains by all steps of adaptation."""
    learner = LEARNERS[name]
    before, after = _stage(runs, "before adaptation"), _stage(runs, "")
    gained = [a - b for a, b in zip(after, before, strict=True)]
    means = (f"{statistics.fmean(values):.1f}" for values in (before, after))
    each = ", ".join(f"{gain:+.1f}" for gain in gained)
    steps = statistics.fmean(cast("float", run["steps"]) for run in runs)
    return [
        f"`{learner.algorithm}`",
        _tasks_of(learner),
        str(len(runs)),
        f"{steps:,.0f}",
        *means,
        f"**{statistics.fmean(gained):+.1f}** ({each})",
    ]


def _tasks_of(learner: Learner) -> str:
    """Name the environment, with the range of velocities."""
    kwargs = cast("Mapping[str, Json]", learner.options["env"]["env_kwargs"])
    return f"{learner.env}, 0 to {kwargs['high']} m/s" if "high" in kwargs else learner.env


def _navigation_row(name: str, runs: Sequence[Mapping[str, Json]]) -> list[str]:
    """Render the means over seeds, and the share of the gap that each seed closes."""
    before, after = _stage(runs, "before adaptation"), _stage(runs, "after step 1")
    oracle = [cast("float", run["oracle"]) for run in runs]
    closed = [(a - b) / (best - b) for a, b, best in zip(after, before, oracle, strict=True)]
    means = (f"{statistics.fmean(values):.1f}" for values in (before, after, oracle))
    each = ", ".join(f"{share:.0%}" for share in closed)
    return [f"`{name}`", str(len(runs)), *means, f"**{statistics.fmean(closed):.0%}** ({each})"]


if __name__ == "__main__":
    sys.exit(main())
