"""What replayed sequences say is what was known while acting, as long as no weight has changed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_algos_offpolicy import (
    DQN,
    SAC,
    TD3,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor import obs_and_next_obs_inputs
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_algos_offpolicy.recurrent import RecurrentInputs
from rl_core.actor import ActionOutput
from rl_core.algorithm import AnyAlgorithm
from rl_core.env import VecEnv
from rl_core.types import State
from rl_envs import make_gym_vec
from rl_storages import PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_train import Trainer, TrainerConfig
from rl_train.collecting.collector import random_step
from rl_train.demonstrations import fill_storage

NUM_ENVS, N_STEP = 3, 2
IDLE: dict[str, Any] = {"update_after": 10**6, "start_steps": 150}


def _dqn(actor: OffPolicyActor) -> DQN:
    return DQN(actor, DQNConfig(**IDLE, epsilon=0.2))


def _sac(actor: OffPolicyActor) -> SAC:
    return SAC(actor, SACConfig(**IDLE))


def _td3(actor: OffPolicyActor) -> TD3:
    return TD3(actor, TD3Config(**IDLE))


class _Diary:
    """Keeps the states before and after each observation that is acted on."""

    def __init__(self, algorithm: AnyAlgorithm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: dict[bytes, State] = {}
        self.after: dict[bytes, State] = {}
        monkeypatch.setattr(algorithm, "acting_step", self._noted(algorithm.acting_step))
        random = self._noted(partial(random_step, algorithm))

        def noted_random(
            _: AnyAlgorithm,
            observation: Tensor,
            state: State,
            noise: Tensor,
            generator: torch.Generator,
            episode_start: Tensor,
        ) -> ActionOutput:
            return random(observation, state, noise, generator, episode_start=episode_start)

        monkeypatch.setattr("rl_train.collecting.collector.random_step", noted_random)

    def _noted(self, step: Callable[..., ActionOutput]) -> Callable[..., ActionOutput]:
        def noted(
            observation: Tensor, state: State, *rest: Any, episode_start: Tensor, **more: Any
        ) -> ActionOutput:
            output = step(observation, state, *rest, episode_start=episode_start, **more)
            for env, key in enumerate(map(_key, observation)):
                kept = ~episode_start[env]
                self.before[key] = {name: part[env] * kept for name, part in state.items()}
                self.after[key] = {name: part[env].clone() for name, part in output.state.items()}
            return output

        return noted


def _key(observation: Tensor) -> bytes:
    return np.asarray(observation).tobytes()


@pytest.mark.parametrize("lengths", [(6, 0.5), (5, 0.0), (40, 0.3)], ids=str)
@pytest.mark.parametrize(
    ("make", "policy", "env"),
    [
        (_dqn, "greedy", "CartPole-v1"),
        (_sac, "stochastic", "Pendulum-v1"),
        (_td3, "deterministic", "Pendulum-v1"),
    ],
)
def test_replayed_states_are_those_of_acting(
    make: Callable[[OffPolicyActor], AnyAlgorithm],
    policy: PolicyKind,
    env: str,
    lengths: tuple[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = partial(gymnasium.make, env, max_episode_steps=23)
    envs = make_gym_vec(limited, NUM_ENVS, seed=0)
    actor = _actor(envs, policy)
    algorithm = make(actor)
    diary = _Diary(algorithm, monkeypatch)
    length, overlap = lengths
    storage = ReplayBuffer(
        240,  # so that the oldest half is overwritten
        n_step=N_STEP,
        sequences=SequenceConfig(length=length, overlap=overlap),
        prioritized=PrioritizedConfig(),
    )
    options = TrainerConfig(compile="off", num_threads=1)
    Trainer(envs, algorithm, storage, config=options, seed=0).train(total_steps=480)
    envs.close()

    _check_states(storage, actor, diary)


def test_demonstrations_are_remembered_by_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor that learns would have done something else, which the critics must not see."""
    envs = make_gym_vec(partial(gymnasium.make, "Pendulum-v1", max_episode_steps=23), 3, seed=0)
    actor = _actor(envs, "deterministic")
    algorithm = _td3(actor)
    diary = _Diary(algorithm, monkeypatch)
    storages = [
        ReplayBuffer(500, n_step=N_STEP, sequences=SequenceConfig(length=length, overlap=overlap))
        for length, overlap in ((40, 0.0), (6, 0.5))
    ]
    options = TrainerConfig(compile="off", num_threads=1)
    Trainer(envs, algorithm, storages[0], config=options, seed=0).train(total_steps=300)
    envs.close()
    spec = storages[0].spec
    assert spec is not None
    storages[1].allocate(spec, torch.Generator().manual_seed(0))
    assert fill_storage(storages[1], storages[0], actor) == 300
    _check_states(storages[1], actor, diary)


def _actor(envs: VecEnv, policy: PolicyKind) -> OffPolicyActor:
    torch.manual_seed(0)
    return OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(
            policy=policy, hidden_sizes=(8,), recurrent_net="lstm", recurrent_hidden_size=4
        ),
    )


def _check_states(storage: ReplayBuffer, actor: OffPolicyActor, diary: _Diary) -> None:
    (batch,) = storage.generate_batches(1, 400)
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    rows = torch.cat([batch.observation, batch.next_observation])
    places = batch.mask.nonzero().tolist()
    assert len(places) > 100
    for name in actor.state_sizes:
        with torch.no_grad():
            now, after = obs_and_next_obs_inputs(getattr(actor, name), batch)
        assert isinstance(now, RecurrentInputs)
        assert isinstance(after, RecurrentInputs)
        before, later = [], []
        for row, sequence in places:
            last = row + int(batch.num_steps[row, sequence]) - 1
            before.append(diary.before[_key(rows[row, sequence])][name])
            later.append(diary.after[_key(rows[last, sequence])][name])
        is_there = batch.mask > 0.0
        torch.testing.assert_close(now.state[is_there], torch.stack(before))
        torch.testing.assert_close(after.state[is_there], torch.stack(later))
