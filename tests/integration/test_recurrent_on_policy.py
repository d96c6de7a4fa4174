"""On-policy algorithms with memory, from acting to sequences to checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_algos_onpolicy import (
    A2C,
    PPO,
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
from rl_core.actor import ActionOutput
from rl_core.algorithm import AnyAlgorithm
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.nn.torso import CoreKind
from rl_core.types import Observation, State
from rl_storages import RolloutStorage
from rl_testing.scripted import WalkVecEnv
from rl_testing.stateful import check_same_state, copy_state
from rl_train import Collector, Trainer, TrainerConfig

NUM_ENVS, NUM_STEPS, LENGTH = 3, 12, 4
SIZES: dict[str, Any] = {"minibatch_size": 2 * LENGTH}


class RememberingPPO(PPO):
    """Keeps what its policy and value function said while acting."""

    def __init__(self, actor: OnPolicyActor, config: PPOConfig | None = None) -> None:
        super().__init__(actor, config)
        self.acted: list[tuple[Tensor, Tensor]] = []

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        output = super().explore(observation, state, noise, episode_start)
        said = self.actor.evaluate_actions(observation, output.action, state, episode_start)
        assert said.value is not None
        self.acted.append((said.log_prob, said.value))
        return output


def _actor(envs: VecEnv, memory: CoreKind, **options: Any) -> OnPolicyActor:
    torch.manual_seed(0)
    config = OnPolicyActorConfig(
        hidden_sizes=(6,),
        recurrent_net=memory,
        recurrent_hidden_size=5,
        normalize_observations=True,
        **options,
    )
    return OnPolicyActor(envs.single_observation_space, envs.single_action_space, config)


def _collected(
    algorithm: AnyAlgorithm, num_rollouts: int, sequence_length: int = LENGTH
) -> RolloutStorage:
    """Collect rollouts, learning from all but the last one."""
    storage = RolloutStorage(NUM_STEPS, sequence_length=sequence_length)
    collector = Collector(
        WalkVecEnv(NUM_ENVS), algorithm, generator=torch.Generator().manual_seed(1), seed=3
    )
    storage.allocate(collector.storage_spec(), torch.Generator().manual_seed(2))
    for index in range(num_rollouts):
        collector.collect(NUM_STEPS * NUM_ENVS, into=storage)
        if index < num_rollouts - 1:
            algorithm.update(storage)
    return storage


@pytest.mark.parametrize(
    "options",
    [{}, {"recurrent_layers": 2}, {"recurrent_first": True}, {"shared_policy_value_network": True}],
    ids=["one", "two", "first", "shared"],
)
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_fresh_rollout_is_evaluated_as_it_was_acted(
    memory: CoreKind, options: dict[str, Any]
) -> None:
    algorithm = RememberingPPO(
        _actor(WalkVecEnv(NUM_ENVS), memory, **options),
        PPOConfig(learning_rate=0.01, num_epochs=2, **SIZES),
    )
    storage = _collected(algorithm, num_rollouts=2)
    log_prob, value = (
        torch.stack(said) for said in zip(*algorithm.acted[-NUM_STEPS:], strict=True)
    )
    rollout = storage.rollout()
    assert all(bool(state.any()) for state in rollout.state.values())
    inside = rollout.episode_start.view(-1, LENGTH, NUM_ENVS)[:, 1:]
    assert inside.any(), "no episode begins inside a sequence"
    columns, _ = algorithm.prepare(rollout)
    torch.testing.assert_close(columns["log_prob"], log_prob)
    torch.testing.assert_close(columns["value"], value)
    storage.attach(columns)
    seen = 0
    for batch in storage.generate_batches(None, 2 * LENGTH):
        assert batch.mask.shape == (LENGTH, 2)
        now = algorithm.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.value is not None
        counts = batch.mask.bool()
        torch.testing.assert_close(now.log_prob[counts], batch.log_prob[counts])
        torch.testing.assert_close(now.value[counts], batch.value[counts])
        seen += int(counts.sum())
    assert seen == NUM_STEPS * NUM_ENVS


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memory_is_lost_where_episodes_start_and_nowhere_else(memory: CoreKind) -> None:
    algorithm = RememberingPPO(_actor(WalkVecEnv(NUM_ENVS), memory))
    rollout = _collected(algorithm, num_rollouts=1).rollout()
    assert isinstance(rollout.observation, Tensor)
    nothing = algorithm.actor.actor_initial_states(NUM_ENVS)
    acted = torch.stack([value for _, value in algorithm.acted])
    for step in range(NUM_STEPS):
        start = rollout.episode_start[step]
        with torch.no_grad():
            blank, _ = algorithm.actor.value(rollout.observation[step], nothing, start)
        forgot = (acted[step] - blank).abs() < 1e-6
        assert torch.equal(forgot, start), step


def test_gradients_end_where_sequences_begin() -> None:
    actor = _actor(WalkVecEnv(NUM_ENVS), "gru")
    rows = {}
    for length in (LENGTH, NUM_STEPS):
        algorithm = PPO(actor, PPOConfig(num_minibatches=1))
        storage = _collected(algorithm, 1, sequence_length=length)
        storage.attach(algorithm.prepare(storage.rollout())[0])
        (batch,) = storage.generate_batches(1, None)
        assert isinstance(batch.observation, Tensor)
        observation = batch.observation.requires_grad_()
        value, _ = actor.value(observation, batch.state, torch.zeros_like(batch.episode_start))
        (gradient,) = torch.autograd.grad(value[-1].sum(), observation)
        rows[length] = int(gradient.abs().sum(dim=(1, 2)).count_nonzero())
    assert rows == {LENGTH: LENGTH, NUM_STEPS: NUM_STEPS}


ALGORITHMS: dict[str, Callable[[OnPolicyActor], AnyAlgorithm]] = {
    "ppo": lambda actor: PPO(actor, PPOConfig(num_epochs=2, **SIZES)),
    "a2c": A2C,
    "vpg": VPG,
    "trpo": lambda actor: TRPO(actor, TRPOConfig(num_epochs=2, curvature_every=2, **SIZES)),
    "rnd-ppo": lambda actor: RNDPPO(
        actor, RNDPPOConfig(num_epochs=2, rnd=RNDConfig(pre_normalization_steps=0), **SIZES)
    ),
}


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_run_goes_on_in_the_middle_of_a_rollout(name: str, memory: CoreKind) -> None:
    """Bit for bit as if it had not been interrupted, with the memories it had."""

    def new(seed: int) -> Trainer:
        envs = WalkVecEnv(NUM_ENVS)
        algorithm = ALGORITHMS[name](_actor(envs, memory, intrinsic_value=name == "rnd-ppo"))
        storage = RolloutStorage(NUM_STEPS, sequence_length=LENGTH)
        config = TrainerConfig(compile="off", num_threads=1)
        return Trainer(envs, algorithm, storage, config=config, seed=seed)

    whole, resumed = new(1), new(2)
    whole.train(total_updates=2)
    whole.collector.collect((LENGTH + 1) * NUM_ENVS, into=whole.storage)
    state = copy_state(whole.state_dict())
    assert isinstance(state, Mapping)
    resumed.load_state_dict(state)
    assert len(resumed.storage) == LENGTH + 1
    for trainer in (whole, resumed):
        trainer.train(total_updates=4)
    check_same_state(resumed.state_dict(), whole.state_dict())


def test_a_minibatch_without_room_for_a_sequence_is_refused() -> None:
    algorithm = PPO(_actor(WalkVecEnv(NUM_ENVS), "lstm"), PPOConfig(minibatch_size=LENGTH - 1))
    storage = _collected(algorithm, 1)
    with pytest.raises(ConfigError, match="minibatch_size=3 has no room for one sequence of 4"):
        algorithm.update(storage)
