"""The replay buffer in runs: stacks of frames, memory, and draws that follow how training goes."""

from collections.abc import Mapping
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation
from torch import Tensor

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_core.batch import ReplayBatch
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.types import Array
from rl_envs import SyncVecEnv, make_gym_vec
from rl_storages import PrioritizedConfig, RecentConfig, ReplayBuffer, SequenceConfig
from rl_testing.scripted import CountingEnv
from rl_testing.storages import seeded
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import Callback, Collector, Trainer, TrainerConfig


class _Fading(gymnasium.Env[Array, np.int64]):
    """Each frame is as bright as the steps that were taken, in all three colors."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        self._brightness = 1
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, object]]:
        self._brightness += 1
        return self._frame(), 1.0, self._brightness == 8, False, {}

    def _frame(self) -> Array:
        return np.full((36, 36, 3), self._brightness, np.uint8)


@pytest.mark.parametrize("keep_dim", [False, True])
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_dqn_learns_from_stacks_of_gymnasiums_wrapper(padding: str, keep_dim: bool) -> None:
    def make() -> gymnasium.Env[Array, np.int64]:
        env = GrayscaleObservation(_Fading(), keep_dim=keep_dim)
        return FrameStackObservation(env, 4, padding_type=padding)

    envs = SyncVecEnv([make(), make()])
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", num_critics=1, hidden_sizes=(8,), image_features=8),
    )
    convolution = next(p for name, p in actor.named_parameters() if "convolutions.0" in name)
    assert convolution.shape[1] == 4
    config = DQNConfig(update_after=20, update_every=10, minibatch_size=8)
    storage = ReplayBuffer(40, n_step=2, frame_stack=4)
    Trainer(envs, DQN(actor, config), storage).train(total_steps=60)
    (batch,) = storage.generate_batches(1, 200)
    _check_brightness(batch, padding)


def _check_brightness(batch: ReplayBatch, padding: str) -> None:
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    older = torch.tensor([3, 2, 1, 0])
    first = 1 if padding == "reset" else 0
    for stacks in (batch.observation, batch.next_observation):
        newest = stacks[:, -1].flatten(1)[:, :1].int()
        expected = (newest - older).clamp(min=first)
        assert torch.equal(stacks.flatten(2)[:, :, 0].int(), expected)
        assert int(newest.max()) <= 8


def test_a_collector_brings_stacks() -> None:
    """With its own resets from outside, which leave a cut."""
    env = FrameStackObservation(GrayscaleObservation(_Fading()), 4)
    envs = SyncVecEnv([env])
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, ToyActorCritic(actor), generator=torch.Generator(), seed=0)
    storage = ReplayBuffer(30, n_step=3, frame_stack=4)
    storage.allocate(collector.storage_spec(), seeded())
    for _ in range(12):
        collector.collect(5, into=storage)
        (batch,) = storage.generate_batches(1, 60)
        _check_brightness(batch, "reset")
        collector.reset()


class _Recurrent(OffPolicyActor):
    @property
    def state_sizes(self) -> Mapping[str, int]:
        return {"memory": 2}


@pytest.mark.parametrize(
    ("actor_type", "sequences", "message"),
    [
        (_Recurrent, None, "the actor is recurrent, but ReplayBuffer replays single transitions"),
        (OffPolicyActor, SequenceConfig(), "replays sequences, but the actor is not recurrent"),
    ],
)
def test_memory_and_sequences_need_each_other(
    actor_type: type[OffPolicyActor], sequences: SequenceConfig | None, message: str
) -> None:
    envs = make_gym_vec("CartPole-v1", num_envs=1, seed=0)
    config = OffPolicyActorConfig(policy="greedy", num_critics=1)
    actor = actor_type(envs.single_observation_space, envs.single_action_space, config)
    with pytest.raises(ConfigError, match=message):
        Trainer(envs, DQN(actor, DQNConfig()), ReplayBuffer(100, sequences=sequences))


class Logged(Callback):
    """Keeps some of what is logged."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.lines: list[list[float]] = []

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.lines.append([metrics[name] for name in self.names])


def _counting_run(storage: ReplayBuffer, logged: Logged, lengths: list[int]) -> Trainer:
    envs = make_gym_vec(partial(CountingEnv, lengths), 1)
    torch.manual_seed(0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", hidden_sizes=(4,)),
    )
    config = DQNConfig(update_after=5, minibatch_size=4)
    return Trainer(
        envs,
        DQN(actor, config),
        storage,
        config=TrainerConfig(compile="off", num_threads=1, log_every=10),
        callbacks=[logged],
        seed=0,
    )


def test_eta_follows_the_returns_of_a_run() -> None:
    lengths = [3] * 15 + [1] * 15  # returns rise with every episode, then fall, then rise
    returns = [sum(100.0 * e + s + 1 for s in range(n)) for e, n in enumerate(lengths)]
    recent = RecentConfig(eta=0.9, cmin=1, update_eta=True)
    logged = Logged("storage/eta", "storage/return_gradient")
    trainer = _counting_run(ReplayBuffer(200, recent=recent), logged, lengths)
    trainer.train(total_steps=60)
    expected = []
    alone = ReplayBuffer(200, recent=recent)
    alone.allocate(trainer.collector.storage_spec(), seeded())
    for begin, end in ((0, 3), (3, 6), (6, 10), (10, 13), (13, 20), (20, 30)):
        alone.note_returns(returns[begin:end])
        metrics = alone.metrics()
        expected.append([metrics["eta"], metrics["return_gradient"]])
    assert logged.lines == expected
    etas = [eta for eta, _ in logged.lines]
    assert etas[0] == 0.9
    assert len(set(etas)) > 1


def test_beta_follows_its_schedule_through_a_run() -> None:
    logged = Logged("storage/beta")
    storage = ReplayBuffer(100, prioritized=PrioritizedConfig(beta=Linear(0.4, 1.0)))
    _counting_run(storage, logged, [3]).train(total_steps=40)
    betas = [beta for (beta,) in logged.lines]
    # Each step is taken at the progress before it.
    assert betas == pytest.approx([0.4 + 0.6 * step / 40 for step in (9, 19, 29, 39)])
