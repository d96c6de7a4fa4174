"""Noise that is a process: what it adds to the actions of deterministic policies in a run."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy import (
    DDPG,
    TD3,
    DDPGConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    TD3Config,
)
from rl_core.algorithm import AnyAlgorithm
from rl_core.env import EnvStep
from rl_core.types import ArrayLike
from rl_storages import ReplayBuffer
from rl_testing.scripted import WalkVecEnv
from rl_testing.stateful import check_same_state, copy_state
from rl_train import Trainer, TrainerConfig

NUM_ENVS = 3
STD = 0.05
NEVER = 10**6


class Steered(WalkVecEnv):
    """Takes two numbers, writes them down, and walks wherever it wants."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.actions: list[Tensor] = []
        self.ended: list[Tensor] = []

    @property
    def single_action_space(self) -> spaces.Box:  # type: ignore[override]  # other actions
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action: ArrayLike) -> EnvStep:
        self.actions.append(torch.as_tensor(np.array(action)))
        taken = super().step(np.zeros(self.num_envs))
        self.ended.append(torch.as_tensor(taken.terminated) | torch.as_tensor(taken.truncated))
        return taken


Options = Mapping[str, float]


def _trainer(kind: str, options: Options, *, is_still: bool = False) -> tuple[Trainer, Steered]:
    """Explore with a process; a policy that is still answers 0 everywhere."""
    envs = Steered(NUM_ENVS)
    torch.manual_seed(0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(
            policy="deterministic", hidden_sizes=(4,), num_critics=1 if kind == "ddpg" else 2
        ),
    )
    assert actor.policy is not None
    for parameter in actor.policy.parameters() if is_still else ():
        parameter.data.zero_()
    chosen = {"exploration_noise": "ou", "exploration_std": STD, "start_steps": 0, **options}
    algorithm: AnyAlgorithm = (
        DDPG(actor, DDPGConfig(**chosen))  # type: ignore[arg-type]  # each of its own type
        if kind == "ddpg"
        else TD3(actor, TD3Config(**chosen))  # type: ignore[arg-type]  # likewise
    )
    config = TrainerConfig(compile="off", num_threads=1)
    storage = ReplayBuffer(500)
    return Trainer(envs, algorithm, storage, config=config, test_envs=Steered(1), seed=0), envs


def _process(increments: Tensor, ended: list[Tensor], theta: float, dt: float) -> list[Tensor]:
    """Work out the process number by number, each from the one before it."""
    place, answer = torch.zeros(increments.shape[1:]), []
    for increment, ends in zip(increments, ended, strict=True):
        place = place - theta * place * dt + math.sqrt(dt) * increment
        answer.append(place)
        place = torch.where(ends[:, None], 0.0, place)
    return answer


@pytest.mark.parametrize(
    ("options", "theta", "dt"),
    [({}, 0.15, 0.01), ({"ou_theta": 0.5, "ou_dt": 0.25}, 0.5, 0.25), ({"ou_dt": 0.1}, 0.15, 0.1)],
)
@pytest.mark.parametrize("kind", ["ddpg", "td3"])
def test_a_process_goes_on_through_an_episode_and_begins_anew_with_the_next(
    kind: str, options: Options, theta: float, dt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, envs = _trainer(kind, {"update_after": NEVER, **options}, is_still=True)
    drawn: list[Tensor] = []
    draw = trainer.algorithm.draw_noise

    def remembered(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        drawn.append(draw(shape, generator))
        return drawn[-1]

    monkeypatch.setattr(trainer.algorithm, "draw_noise", remembered)
    trainer.train(total_steps=20 * NUM_ENVS)
    trainer.evaluate(num_episodes=2)  # which explores nothing, and leaves the process alone
    trainer.train(total_steps=60 * NUM_ENVS)
    increments = torch.cat(drawn)[: len(envs.actions)]
    assert len(torch.unique(increments)) == 60 * NUM_ENVS * 2  # each number has its own
    expected = torch.stack(_process(increments, envs.ended, theta, dt))
    torch.testing.assert_close(torch.stack(envs.actions), STD * expected)
    alone = torch.stack(envs.ended).sum(1) == 1
    assert alone.sum() > 10  # episodes end at times of their own


@pytest.mark.parametrize("kind", ["ddpg", "td3"])
def test_a_process_comes_back_in_the_middle_of_its_episodes(kind: str) -> None:
    options = {"update_after": 30, "minibatch_size": 4, "ou_theta": 0.5, "ou_dt": 0.25}
    (whole, acted), (saved, first), (resumed, second) = (_trainer(kind, options) for _ in range(3))
    whole.train(total_steps=40 * NUM_ENVS)
    saved.train(total_steps=20 * NUM_ENVS)
    assert not first.ended[-1].all()
    state = copy_state(saved.state_dict())
    assert isinstance(state, Mapping)
    resumed.load_state_dict(state)
    resumed.train(total_steps=40 * NUM_ENVS)
    assert torch.equal(torch.stack(first.actions + second.actions), torch.stack(acted.actions))
    check_same_state(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize("kind", ["ddpg", "td3"])
def test_acting_without_exploring_leaves_the_process_as_it_is(kind: str) -> None:
    trainer, _ = _trainer(kind, {"update_after": NEVER})
    trainer.train(total_steps=2 * NUM_ENVS)
    algorithm = trainer.algorithm
    state, observation = copy_state(algorithm.state_dict()), torch.zeros(NUM_ENVS, 2)
    begins = torch.zeros(NUM_ENVS, dtype=torch.bool)
    noise = torch.ones(NUM_ENVS, 2)
    quiet = algorithm.acting_step(observation, {}, None, True)
    told = algorithm.acting_step(observation, {}, noise, True, begins)
    assert torch.equal(quiet.action, told.action)
    check_same_state(algorithm.state_dict(), state)
    loud = algorithm.acting_step(observation, {}, noise, False, begins)
    assert not torch.equal(loud.action, quiet.action)


@pytest.mark.parametrize("kind", ["ddpg", "td3"])
def test_exploring_beside_a_run_has_a_process_of_its_own(kind: str) -> None:
    trainer, _ = _trainer(kind, {"update_after": NEVER}, is_still=True)
    trainer.train(total_steps=2 * NUM_ENVS)
    algorithm = trainer.algorithm
    state, begins = copy_state(algorithm.state_dict()), torch.zeros(NUM_ENVS, dtype=torch.bool)
    noise = torch.ones(NUM_ENVS, 2)
    action = algorithm.explorer()(torch.zeros(NUM_ENVS, 2), {}, noise, begins).action
    torch.testing.assert_close(action, STD * 0.1 * noise)  # begins at 0, and √dt is 0.1
    check_same_state(algorithm.state_dict(), state)
