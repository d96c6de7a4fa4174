"""When ours and Stable-Baselines3 do what, environment step by environment step.

Both learn in the same short episodes, with a warm-up or rollouts of a few steps. Before every step
the trace looks which networks and statistics have moved since the step before. The first line says
how far the initial policy's action is from zero.

    python tools/bench/trace.py td3 HalfCheetah-v5
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":  # run by path: make the package importable instead of its modules
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import ours, peers
from bench.episodes import Predict, make_env
from bench.markdown import table
from bench.plan import Run

_ID = "Traced-v0"
_WARM_UP = 4
EPISODE_STEPS = 5
"""After which episodes are cut off."""
_OPTIONS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "off-policy": {
        "ours": {"algorithm": {"start_steps": _WARM_UP, "update_after": _WARM_UP}},
        "sb3": {"learning_starts": _WARM_UP},
    },
    "on-policy": {
        "ours": {
            "env": {"num_envs": 1},
            "actor": {"normalize_observations": True},
            "trainer": {"scale_rewards": True},
            "storage": {"num_steps": _WARM_UP},
            "algorithm": {"minibatch_size": _WARM_UP},
        },
        "sb3": {"normalize": True, "n_steps": _WARM_UP, "batch_size": _WARM_UP},
    },
}


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
def traced_env(
    env: str, look: Callable[[Any, Any], None], episode_steps: int = EPISODE_STEPS
) -> Iterator[str]:
    """Register an environment of short episodes that is looked at as `Traced` says, by an id."""

    def make(**_: Any) -> gymnasium.Env[Any, Any]:
        return Traced(gymnasium.wrappers.TimeLimit(make_env(env).unwrapped, episode_steps), look)

    gymnasium.register(_ID, make)
    try:
        yield _ID
    finally:
        gymnasium.registry.pop(_ID)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trace", description=__doc__)
    parser.add_argument("algorithm", choices=("ppo", "sac", "td3", "ddpg"))
    parser.add_argument("env", help="with real actions")
    parser.add_argument("--steps", type=int, default=14)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    traces = {system: _trace(options, system) for system in ("ours", "sb3")}
    rows = [
        ["" if mine == theirs else "apart", str(number), mine, theirs]
        for number, (mine, theirs) in enumerate(zip(*traces.values(), strict=False))
    ]
    print(table(["", "step", "ours", "Stable-Baselines3"], rows, left=4))
    return 0


def _trace(options: argparse.Namespace, system: str) -> list[str]:
    """Return what happened before each step."""
    events: list[str] = []
    before: dict[str, Tensor] = {}

    def look(observation: Any, _action: Any) -> None:
        now = read()
        if not before:
            action, _ = predict(observation[None], None, np.ones(1, dtype=np.bool_))
            events.append(f"initial policy {np.abs(action).mean():.4f}")
        else:
            moved = [name for name in now if not torch.equal(now[name], before[name])]
            events.append(", ".join(moved) or "-")
        before.update(now)

    kind = "on-policy" if options.algorithm == "ppo" else "off-policy"
    read: Callable[[], Mapping[str, Tensor]]
    predict: Predict
    with traced_env(options.env, look) as env_id:
        run = Run(
            system=system,
            algorithm=options.algorithm,
            env=env_id,
            steps=options.steps,
            seed=0,
            options=_OPTIONS[kind][system],
        )
        if system == "ours":
            agent = ours.make_agent(run)
            read = partial(_ours, agent.algorithm)
            predict = agent.predict
            agent.train(options.steps)
        else:
            model = peers.make_model(run)
            read = partial(_theirs, model)
            predict = peers.predictor(model)
            model.learn(options.steps)
    return events


def _ours(algorithm: Any) -> dict[str, Tensor]:
    state = dict(algorithm.state_dict()["modules"])
    means = [state[name] for name in state if name.endswith("norm.mean")]
    for name in [name for name in state if ".norm." in name]:
        del state[name]
    if means:
        state["statistics"] = means[0]
    return _joined(
        state,
        {
            "policy": ("actor.policy", "actor.action_head"),
            "critics": ("actor.critics", "actor.value"),
            "targets": ("target",),
            "temperature": ("temperature",),
            "statistics": ("statistics",),
        },
    )


def _theirs(model: Any) -> dict[str, Tensor]:
    state = dict(model.policy.state_dict())
    if getattr(model, "log_ent_coef", None) is not None:
        state["temperature"] = model.log_ent_coef.detach()
    if (normalizer := model.get_vec_normalize_env()) is not None:
        state["statistics"] = torch.as_tensor(normalizer.obs_rms.mean)
    return _joined(
        state,
        {
            "policy": ("actor.", "action_net", "mlp_extractor.policy", "log_std"),
            "critics": ("critic.", "value_net", "mlp_extractor.value"),
            "targets": ("actor_target", "critic_target"),
            "temperature": ("temperature",),
            "statistics": ("statistics",),
        },
    )


def _joined(
    state: Mapping[str, Tensor], prefixes: Mapping[str, tuple[str, ...]]
) -> dict[str, Tensor]:
    """Return everything whose name starts with some prefix in one vector; none of none."""
    found: dict[str, Tensor] = {}
    for name, starts in prefixes.items():
        parts = [
            tensor.flatten().double() for key, tensor in state.items() if key.startswith(starts)
        ]
        if parts:
            found[name] = torch.cat(parts)
    return found


if __name__ == "__main__":
    sys.exit(main())
