"""Whole runs in environments whose masks change from step to step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rl_algos_onpolicy import (
    A2C,
    PPO,
    RND,
    RNDPPO,
    TRPO,
    VPG,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDConfig,
    RNDPPOConfig,
    TRPOConfig,
)
from rl_core.algorithm import AnyAlgorithm
from rl_core.env import VecEnv
from rl_core.errors import DataError, SpaceError
from rl_envs import as_vec_env, make_gym_vec
from rl_testing.reference import ReferenceRolloutStorage
from rl_train import Trainer, TrainerConfig, evaluate_policy


class Roulette(gymnasium.Env[Any, Any]):
    """Forbids another choice in every step; taking it is an error.

    Args:
        sizes: of the choices, side by side.
        dead_end: the step whose mask forbids everything; None has none.
        first_dead: the first episode in which it does.
    """

    def __init__(
        self, sizes: tuple[int, ...], dead_end: int | None = None, first_dead: int = 0
    ) -> None:
        self.sizes, self.dead_end, self.first_dead = sizes, dead_end, first_dead
        self.action_space = (
            spaces.Discrete(sizes[0]) if len(sizes) == 1 else spaces.MultiDiscrete(list(sizes))
        )
        mask = spaces.MultiBinary(sum(sizes))
        position = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"action_mask": mask, "position": position})
        self.step_number, self.episode = 0, -1

    def _forbidden(self) -> list[int]:
        return [(self.step_number + index) % size for index, size in enumerate(self.sizes)]

    def _observe(self) -> dict[str, NDArray[Any]]:
        masks = [np.ones(size, np.int8) for size in self.sizes]
        for mask, action in zip(masks, self._forbidden(), strict=True):
            mask[action] = 0
        mask = np.concatenate(masks)
        if self.step_number == self.dead_end and self.episode >= self.first_dead:
            mask[:] = 0
        return {"action_mask": mask, "position": np.zeros(2, np.float32)}

    def reset(self, **_: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        self.step_number = 0
        self.episode += 1
        return self._observe(), {}

    def step(
        self, action: Any
    ) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        taken = np.atleast_1d(np.asarray(action)).tolist()
        pairs = zip(taken, self._forbidden(), strict=True)
        assert all(one != forbidden for one, forbidden in pairs)
        self.step_number += 1
        return self._observe(), float(taken[0] == 0), self.step_number == 7, False, {}


CURIOUS = RNDConfig(hidden_sizes=(4,), num_features=2, pre_normalization_steps=64)
CUT = PPOConfig(num_minibatches=2)
MAKERS: dict[str, Callable[[OnPolicyActor], AnyAlgorithm]] = {
    "vpg": VPG,
    "a2c": A2C,
    "ppo": lambda actor: PPO(actor, CUT),
    "ppo-penalty": lambda actor: PPO(actor, replace(CUT, surrogate="kl-penalty")),
    "trpo": lambda actor: TRPO(actor, TRPOConfig(num_minibatches=2)),
    "ppo-rnd": lambda actor: PPO(actor, CUT, add_ons=RND(rnd=CURIOUS)),
    "rnd-ppo": lambda actor: RNDPPO(actor, RNDPPOConfig(num_minibatches=2, rnd=CURIOUS)),
}


def _actor(sizes: tuple[int, ...], *, intrinsic: bool = False) -> OnPolicyActor:
    torch.manual_seed(0)
    env = Roulette(sizes)
    config = OnPolicyActorConfig(
        hidden_sizes=(4,), normalize_observations=True, intrinsic_value=intrinsic
    )
    return OnPolicyActor(env.observation_space, env.action_space, config)


@pytest.mark.parametrize("sizes", [(3,), (2, 3)])
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_forbidden_is_neither_taken_nor_learned(name: str, sizes: tuple[int, ...]) -> None:
    algorithm = MAKERS[name](_actor(sizes, intrinsic=name == "rnd-ppo"))
    envs = make_gym_vec(lambda: Roulette(sizes), 4, seed=0)
    config = TrainerConfig(compile="off", num_threads=1)
    trainer = Trainer(envs, algorithm, ReferenceRolloutStorage(8), config=config, seed=0)
    trainer.train(total_updates=3)
    rollout_entropies = []
    with torch.no_grad():
        for step in range(7):
            env = Roulette(sizes)
            env.step_number = step
            seen = {key: torch.from_numpy(part)[None] for key, part in env._observe().items()}
            policy, _ = algorithm.actor.distribution(seen, {})
            assert not policy.log_prob(torch.tensor([env._forbidden()]).squeeze(-1)).exp().any()
            rollout_entropies.append(float(policy.entropy()))
    most = sum(np.log(size - 1) for size in sizes)
    assert max(rollout_entropies) <= most + 1e-5


def test_a_mask_that_forbids_everything_ends_training_and_evaluation(tmp_path: Path) -> None:
    algorithm = PPO(_actor((3,)), CUT)
    envs = make_gym_vec(lambda: Roulette((3,), dead_end=4), 2, seed=0)
    config = TrainerConfig(compile="off", num_threads=1)
    trainer = Trainer(
        envs, algorithm, ReferenceRolloutStorage(2), config=config, seed=0, run_dir=tmp_path / "run"
    )
    fault = r"environment \[0, 1\] forbids every action; expected.*the state before it is in .*run"
    with pytest.raises(DataError, match=fault):
        trainer.train(64)
    for dead_end in (0, 4):
        envs = make_gym_vec(lambda dead_end=dead_end: Roulette((3,), dead_end), 2, seed=0)
        with pytest.raises(DataError, match="forbids every action"):
            evaluate_policy(algorithm, envs, 2)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_the_first_mask_of_a_later_episode_is_looked_at(mode: AutoresetMode) -> None:
    def envs(dead_end: int) -> VecEnv:
        makers = [lambda: Roulette((3,), dead_end, first_dead=1)] * 2
        return as_vec_env(SyncVectorEnv(makers, autoreset_mode=mode))

    config = TrainerConfig(compile="off", num_threads=1)
    for work in (
        lambda trainer: trainer.train(64),
        lambda trainer: trainer.collector.warm_up(32),
        lambda trainer: evaluate_policy(trainer.algorithm, envs(0), 4),
        lambda trainer: evaluate_policy(trainer.algorithm, envs(0), 4, max_episode_steps=2),
    ):
        algorithm = PPO(_actor((3,)), CUT, add_ons=RND(rnd=CURIOUS))
        trainer = Trainer(envs(0), algorithm, ReferenceRolloutStorage(8), config=config, seed=0)
        with pytest.raises(DataError, match=r"environment \[0, 1\] forbids every action"):
            work(trainer)
    assert evaluate_policy(algorithm, envs(7), 4).returns  # the last mask of an episode may


@pytest.mark.parametrize(("dead_end", "rows"), [(4, 32), (0, 2)])  # in a step, and at a reset
def test_the_warm_up_looks_at_masks(dead_end: int, rows: int) -> None:
    algorithm = PPO(_actor((3,)), CUT, add_ons=RND(rnd=CURIOUS))
    envs = make_gym_vec(lambda: Roulette((3,), dead_end), 2, seed=0)
    config = TrainerConfig(compile="off", num_threads=1)
    trainer = Trainer(envs, algorithm, ReferenceRolloutStorage(8), config=config, seed=0)
    with pytest.raises(DataError, match="forbids every action"):
        trainer.collector.warm_up(rows)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(3,), (2, 3)])
def test_masks_of_another_size_are_refused(sizes: tuple[int, ...], size: int) -> None:
    env = Roulette(sizes)
    position = spaces.Box(-1.0, 1.0, (2,), np.float32)
    space = spaces.Dict({"action_mask": spaces.MultiBinary(size), "position": position})
    with pytest.raises(SpaceError, match=rf"'action_mask' has shape \({size},\).*{sum(sizes)}"):
        OnPolicyActor(space, env.action_space)


@pytest.mark.parametrize("actions", [spaces.MultiBinary(3), spaces.Box(-1.0, 1.0, (3,))])
def test_actions_that_cannot_be_masked_are_refused(actions: spaces.Space[Any]) -> None:
    with pytest.raises(SpaceError, match="cannot be masked; expected Discrete or MultiDiscrete"):
        OnPolicyActor(Roulette((3,)).observation_space, actions)
