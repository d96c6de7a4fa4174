"""How far ours and Stable-Baselines3 are apart, step by step, when nothing is left to chance.

Both learn in the same short episodes from the same weights. Minibatches take what is stored in
turn, and every normal number that either draws is zero, so that actions are means; those of PPO,
which learns nothing from them, have the same noise. What moves the two apart is then a difference
between them.

    python tools/bench/lockstep.py
    python tools/bench/lockstep.py td3 HalfCheetah-v5 --as-ours

With ``--as-ours`` Stable-Baselines3 has our ways, those of `bench.as_ours`. The table has the first
step before which anything is apart by more than a ten-thousandth.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import ours, peers
from bench.as_ours import TRIFLES, WAYS
from bench.episodes import make_env
from bench.machine import machine_line
from bench.markdown import PAGE, table, write_block
from bench.parity_data import Weights, apart_by_part
from bench.parity_onpolicy import on_policy_weights
from bench.parity_replay import replay_weights
from bench.plan import Run
from rl_core.algorithm import AnyAlgorithm
from rl_core.nn.normalization import RunningNorm
from rl_storages.sampling.uniform import UniformSampler

_ID = "Traced-v0"
_EPISODE_STEPS = 5
"""After which episodes are cut off."""
_MINIBATCH = 32
_ROLLOUT, _PART = 8, 4

_HIDDEN = [64, 64]
_RATE = 1e-3

_REPLAYING: Mapping[str, Mapping[str, Any]] = {
    "ours": {
        "actor": {"hidden_sizes": _HIDDEN},
        "algorithm": {
            "policy_learning_rate": _RATE,
            "critic_learning_rate": _RATE,
            "minibatch_size": _MINIBATCH,
            "start_steps": 0,
            "update_after": 1,
        },
        "trainer": {"compile": "off"},
    },
    "sb3": {
        "learning_rate": _RATE,
        "learning_starts": 0,
        "batch_size": _MINIBATCH,
        "policy_kwargs": {"net_arch": _HIDDEN},
    },
}
_GREEDY: Mapping[str, Mapping[str, Any]] = {
    "ours": {
        "actor": {"hidden_sizes": _HIDDEN, "num_critics": 1},
        "storage": {"n_step": 1},
        "algorithm": {
            "learning_rate": _RATE,
            "minibatch_size": _MINIBATCH,
            "update_after": 1,
            "update_every": 2,
            "num_minibatches": 2,
            "tau": 1.0,
            "target_update_every": 5,
            "epsilon": 0.0,
            "double": False,
        },
        "trainer": {"compile": "off"},
    },
    "sb3": {
        "learning_rate": _RATE,
        "learning_starts": 0,
        "batch_size": _MINIBATCH,
        "train_freq": 2,
        "gradient_steps": -1,
        "tau": 1.0,
        "target_update_interval": 5,
        "exploration_initial_eps": 0.0,
        "exploration_final_eps": 0.0,
        "policy_kwargs": {"net_arch": _HIDDEN},
    },
}
_ROLLING: Mapping[str, Mapping[str, Any]] = {
    "ours": {
        "env": {"num_envs": 1},
        "actor": {"normalize_observations": True},
        "trainer": {"scale_rewards": True, "compile": "off"},
        "storage": {"num_steps": _ROLLOUT},
        "algorithm": {"minibatch_size": _PART, "value_loss_coef": 1.0, "num_epochs": 10},
    },
    "sb3": {"normalize": True, "n_steps": _ROLLOUT, "batch_size": _PART, "vf_coef": 0.5},
}
_WAYS: Mapping[str, Sequence[str]] = {
    "ppo": (
        "statistics begin with nothing",
        "statistics once per update",
        "population's standard deviation",
    ),
    "sac": (),
    "td3": (),
    "ddpg": (),
    "dqn": ("targets move after gradient steps",),
}
_ENVS: Mapping[str, Sequence[str]] = {
    "ppo": ("Pendulum-v1", "HalfCheetah-v5", "Hopper-v5"),
    **dict.fromkeys(("sac", "td3", "ddpg"), ("Pendulum-v1", "HalfCheetah-v5")),
    "dqn": ("CartPole-v1", "Acrobot-v1"),
}
_FALLS_BEFORE = {"Hopper-v5": 15}
"""Steps within which most episodes end by themselves; those of other environments are cut off."""
_STEPS = 25  # rounding grows, and reaches a thousandth after 60 steps of DDPG on HalfCheetah
_TOLERANCE = 1e-4


class Traced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Starts each episode from the next seed, whatever is asked for, and looks before each step.

    Args:
        env: what is learned in.
        look: called with the observation and the action.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], look: Callable[[Any, Any], None]) -> None:
        super().__init__(env)
        self._look = look
        self._episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        self._episodes += 1
        self._observation, info = self.env.reset(seed=self._episodes, options=options)
        return self._observation, info

    def step(self, action: Any) -> Any:
        """Look, and step."""
        self._look(self._observation, action)
        outcome = self.env.step(action)
        self._observation = outcome[0]
        return outcome


@contextmanager
def traced_env(env: str, look: Callable[[Any, Any], None], episode_steps: int) -> Iterator[str]:
    """Register an environment of short episodes that is looked at as `Traced` says, by an id."""

    def make(**_: Any) -> gymnasium.Env[Any, Any]:
        return Traced(gymnasium.wrappers.TimeLimit(make_env(env).unwrapped, episode_steps), look)

    gymnasium.register(_ID, make)
    try:
        yield _ID
    finally:
        gymnasium.registry.pop(_ID)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a system is like before an environment step.

    Attributes:
        action: that it is about to take.
        weights: by our names.
    """

    action: Any
    weights: Weights


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lockstep", description=__doc__)
    parser.add_argument("algorithm", nargs="?", choices=tuple(_WAYS), help="all, into the page")
    parser.add_argument("env", nargs="?", help="such as Pendulum-v1, or CartPole-v1 for dqn")
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument("--as-ours", action="store_true", help="give Stable-Baselines3 our ways")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.algorithm is None:
        return _compare_all(options)
    env = options.env or _ENVS[options.algorithm][0]
    found = _apart(options.algorithm, env, options.steps, options.as_ours)
    parts = list(dict.fromkeys(name for each in found for name in each))
    rows = [
        [str(number), *(f"{each[n]:.0e}" if n in each else "-" for n in parts)]
        for number, each in enumerate(found)
    ]
    print(table(["step", *parts], rows, left=1))
    return 0


def _compare_all(options: argparse.Namespace) -> int:
    """Write the table of all algorithms, and return 1 if any is apart in spite of our ways."""
    rows, status = [], 0
    for algorithm, envs in _ENVS.items():
        for env in envs:
            plain = _apart(algorithm, env, options.steps, as_ours=False)
            has_ways = bool(_WAYS[algorithm])
            same = _apart(algorithm, env, options.steps, as_ours=True) if has_ways else plain
            apart = (str(n) for n, each in enumerate(plain) if max(each.values()) > _TOLERANCE)
            worst = max(max(each.values()) for each in same)
            status |= worst > _TOLERANCE
            ways = ", ".join(_WAYS[algorithm]) or "-"
            largest = max(plain[-1].values())
            row = [algorithm.upper(), f"`{env}`", next(apart, "never"), f"{largest:.0e}", ways]
            rows.append([*row, f"{worst:.0e}"])
    head = ("algorithm", "environment", "apart from step", "apart at the end")
    content = table([*head, "with our ways", "then at most"], rows, left=2)
    content = f"{content}\n\n{options.steps} steps on {machine_line(1)}."
    print(content)
    if not options.no_page:
        write_block(options.page, "lockstep", content)
    return status


def _apart(algorithm: str, env: str, steps: int, as_ours: bool) -> list[dict[str, float]]:
    """Return how far the two are apart before each step, by part.

    Actions are apart by their largest difference, networks by a share of how far they moved.
    """
    mine, theirs = moments(algorithm, env, steps, as_ours)
    start = theirs[0].weights
    return [
        {
            "action": float(np.abs(one.action - other.action).max()),
            **apart_by_part(start, other.weights, one.weights),
        }
        for one, other in zip(mine[:steps], theirs[:steps], strict=True)
    ]


def moments(
    algorithm: str, env: str, steps: int, as_ours: bool
) -> tuple[list[Moment], list[Moment]]:
    """Train both systems, and return what ours and the peer's were like before each step."""
    on_policy = algorithm == "ppo"
    weights_of = on_policy_weights if on_policy else replay_weights
    # The mean action has no gradient of PPO's, which draws for actions alone.
    draw = _same_numbers if on_policy else lambda: torch.zeros
    mine: list[Moment] = []
    theirs: list[Moment] = []

    def run(system: str, env_id: str) -> Run:
        options = dict({"ppo": _ROLLING, "dqn": _GREEDY}.get(algorithm, _REPLAYING)[system])
        if (system, algorithm) == ("ours", "sac"):
            options["algorithm"] = {**options["algorithm"], "temperature_learning_rate": _RATE}
        return Run(
            system=system, algorithm=algorithm, env=env_id, steps=steps, seed=0, options=options
        )

    def look_at_theirs(_observation: Any, action: Any) -> None:
        theirs.append(Moment(np.array(action, np.float64), weights_of(model)))

    def look_at_mine(_observation: Any, action: Any) -> None:
        state: Mapping[str, Tensor] = agent.actor.state_dict()
        weights = {name: state[name].clone() for name in start}
        mine.append(Moment(np.array(action, np.float64), weights))

    episode_steps = _FALLS_BEFORE.get(env, _EPISODE_STEPS)
    with traced_env(env, look_at_theirs, episode_steps) as env_id:
        model = peers.make_model(run("sb3", env_id))
        start = weights_of(model)
        for way in _WAYS[algorithm] if as_ours else ():
            {**WAYS, **TRIFLES}[way](model)
        if on_policy:  # ours likewise, below
            model.get_vec_normalize_env().obs_rms.count = 1.0
        with _without_chance(draw()):
            model.learn(steps)
    with traced_env(env, look_at_mine, episode_steps) as env_id:
        agent = ours.make_agent(run("ours", env_id))
        _take_over(agent.algorithm, start)
        if on_policy:
            _include_one_observation(agent.algorithm)
        with _without_chance(draw()):
            agent.train(steps, progress=False)
    return mine, theirs


def _take_over(algorithm: AnyAlgorithm, weights: Weights) -> None:
    """Give an algorithm the peer's weights, and its targets copies of them."""
    algorithm.actor.load_state_dict(weights, strict=False)
    for target in algorithm.target_networks():
        source = algorithm.actor.get_submodule(target.source.removeprefix("actor."))
        algorithm.modules[target.module].load_state_dict(source.state_dict())


def _include_one_observation(algorithm: AnyAlgorithm) -> None:
    """Begin with statistics of one observation, as if an update had been made before.

    Our first update begins with its statistics, as no other does.
    """
    for module in algorithm.actor.modules():
        if isinstance(module, RunningNorm):
            module.count.fill_(1.0)
    algorithm.gradients.count = 1


def _same_numbers() -> Callable[[tuple[int, ...]], Tensor]:
    """Return what takes the next of a fixed row of normal numbers."""
    numbers = np.random.default_rng(0)
    return lambda shape: torch.from_numpy(numbers.normal(size=shape).astype(np.float32))


@contextmanager
def _without_chance(take: Callable[[tuple[int, ...]], Tensor]) -> Iterator[None]:
    """Let a system take its normal numbers from a function, and what is stored in turn."""

    def in_turn(low: int, high: int | None = None, size: Any = None) -> Any:
        low, high = (0, low) if high is None else (low, high)
        return low + np.arange(np.prod(size)).reshape(size) % (high - low)

    def draw(sampler: UniformSampler, num_batches: int, size: int) -> Iterator[Tensor]:
        ring = sampler.rows
        there = (ring.flags[: ring.write_positions.used_slots] & ring.drawn).nonzero()[0]
        slots = there[np.arange(size) % len(there)]
        yield torch.from_numpy(slots).repeat(num_batches, 1)

    def normal(*shape: Any, **_: Any) -> Tensor:  # of numbers, or one of a tuple and more
        return take(tuple(shape if isinstance(shape[0], int) else shape[0]))

    def in_place(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        return tensor.copy_(mean + std * take(tuple(tensor.shape)))

    with (
        mock.patch("numpy.random.randint", in_turn),
        mock.patch("numpy.random.permutation", np.arange),
        mock.patch("torch.randperm", lambda n, **_: torch.arange(n)),
        mock.patch("torch.distributions.normal._standard_normal", normal),
        mock.patch.object(torch.Tensor, "normal_", in_place),
        mock.patch("torch.randn", normal),
        mock.patch.object(UniformSampler, "draw", draw),
    ):
        yield


if __name__ == "__main__":
    sys.exit(main())
