"""Whole updates: collected in scripted environments, cut into minibatches, learned from."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import SupportsFloat

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from rl_algos_onpolicy import (
    A2C,
    PPO,
    TRPO,
    VPG,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    TRPOConfig,
)
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import Rollout, RolloutBatch
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.nn.torso import CoreKind
from rl_core.types import Array, StateDict
from rl_envs import make_gym_vec
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.scripted import CountingEnv, IdentityEnv, Info
from rl_testing.stateful import check_same_state, copy_state
from rl_train import Collector

NUM_ENVS, NUM_STEPS = 4, 6
WHOLE = PPOConfig(num_epochs=1, num_minibatches=1)


class WatchedPPO(PPO):
    """Remembers the batches it learns from."""

    def __init__(self, actor: OnPolicyActor, config: PPOConfig) -> None:
        super().__init__(actor, config)
        self.batches: list[RolloutBatch] = []

    def gradient_step(self, batch: RolloutBatch) -> Mapping[str, Tensor]:
        self.batches.append(batch)
        return super().gradient_step(batch)


def _count(index: int = 0) -> gymnasium.Env:
    return CountingEnv([3, 5, 4], [True, False], index)


def _actor(envs: VecEnv, memory: CoreKind = "none") -> OnPolicyActor:
    torch.manual_seed(0)
    config = OnPolicyActorConfig(
        hidden_sizes=(8,),
        recurrent_net=memory,
        recurrent_hidden_size=None if memory == "none" else 5,
        normalize_observations=True,
    )
    return OnPolicyActor(envs.single_observation_space, envs.single_action_space, config)


def _collected(
    envs: VecEnv, algorithm: AnyAlgorithm, num_rollouts: int = 1
) -> ReferenceRolloutStorage:
    """Collect rollouts, learning from all but the last one."""
    storage = ReferenceRolloutStorage(NUM_STEPS)
    generator = torch.Generator().manual_seed(1)
    collector = Collector(envs, algorithm, generator=generator, seed=3)
    storage.allocate(collector.storage_spec(), torch.Generator().manual_seed(2))
    for index in range(num_rollouts):
        collector.collect(NUM_STEPS * NUM_ENVS, into=storage)
        if index < num_rollouts - 1:
            algorithm.update(storage)
    return storage


def _learned(algorithm: AnyAlgorithm) -> StateDict:
    """Return weights, statistics and optimizer state."""
    state = algorithm.state_dict()
    return {"modules": state["modules"], "moments": algorithm.gradients.optimizer_states}


def _envs(make_env: Callable[[], gymnasium.Env] = _count) -> VecEnv:
    return make_gym_vec(make_env, NUM_ENVS, seed=0)


def test_a_rollout_is_put_together_once_and_normalizes_by_what_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _envs() as envs:
        algorithm = PPO(_actor(envs), WHOLE)
        storage = _collected(envs, algorithm)
        rollout = storage.rollout()
        calls: list[None] = []

        def counted() -> Rollout:
            calls.append(None)
            return rollout

        monkeypatch.setattr(storage, "rollout", counted)
        algorithm.update(storage)
    assert len(calls) == 1
    counts = [n for name, n in algorithm.actor.named_buffers() if name.endswith("norm.count")]
    assert counts
    assert all(count == rollout.valid.sum() for count in counts)


def test_every_epoch_takes_every_sample_once() -> None:
    with _envs() as envs:
        config = PPOConfig(num_epochs=3, num_minibatches=2)
        algorithm = WatchedPPO(_actor(envs), config)
        storage = _collected(envs, algorithm)
        valid = int(storage.rollout().valid.sum())
        algorithm.update(storage)
    assert len(algorithm.batches) == 3 * 2
    orders = []
    for epoch in range(3):
        batches = algorithm.batches[2 * epoch : 2 * epoch + 2]
        seen = torch.cat([batch.advantage[batch.mask.bool()] for batch in batches])
        assert len(seen) == valid
        orders.append(seen.tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1]


def test_a_recurrent_minibatch_holds_whole_environments_and_first_states() -> None:
    with _envs() as envs:
        config = PPOConfig(num_epochs=1, num_minibatches=2)
        algorithm = WatchedPPO(_actor(envs, "lstm"), config)
        storage = _collected(envs, algorithm, num_rollouts=2)
        algorithm.batches.clear()
        rollout = storage.rollout()
        assert any(bool(state.any()) for state in rollout.state.values())
        algorithm.update(storage)
    assert isinstance(rollout.observation, Tensor)
    sequences = rollout.observation.unbind(1)
    for batch in algorithm.batches:
        assert isinstance(batch.observation, Tensor)
        assert batch.advantage.shape == (NUM_STEPS, NUM_ENVS // 2)
        for column, sequence in enumerate(batch.observation.unbind(1)):
            matches = [env for env, whole in enumerate(sequences) if torch.equal(whole, sequence)]
            assert any(
                all(
                    torch.equal(batch.state[name][column], rollout.state[name][env])
                    for name in rollout.state
                )
                for env in matches
            )


def test_a_recurrent_rollout_needs_an_environment_per_minibatch() -> None:
    with _envs() as envs:
        config = PPOConfig(num_minibatches=NUM_ENVS + 1)
        algorithm = PPO(_actor(envs, "gru"), config)
        storage = _collected(envs, algorithm)
        with pytest.raises(ConfigError, match=f"num_minibatches={NUM_ENVS + 1}"):
            algorithm.update(storage)


@pytest.mark.parametrize(
    "make",
    [
        lambda actor: PPO(actor, WHOLE),
        lambda actor: PPO(actor, replace(WHOLE, surrogate="kl-penalty")),
        A2C,
        VPG,
        lambda actor: TRPO(actor, TRPOConfig(num_minibatches=2)),
    ],
    ids=["ppo", "ppo-penalty", "a2c", "vpg", "trpo"],
)
def test_at_a_rate_of_zero_a_run_evaluates(make: Callable[[OnPolicyActor], AnyAlgorithm]) -> None:
    with _envs() as envs:
        algorithm = make(_actor(envs))
        storage = _collected(envs, algorithm, num_rollouts=2)
        for name in algorithm.schedules:
            if name.endswith("learning_rate"):
                algorithm.update_algorithm_parameter(name, 0.0)
        before = copy_state(_learned(algorithm))
        algorithm.read_metrics()
        metrics = algorithm.update(storage)
        check_same_state(_learned(algorithm), before)
    assert "value/explained_variance" in metrics
    assert np.isfinite(algorithm.read_metrics()["loss/value"])
    assert len(storage) == 0


ALWAYS = {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance"}


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (lambda actor: PPO(actor, WHOLE), {"policy/approx_kl", "policy/clip_fraction"}),
        (
            lambda actor: PPO(actor, replace(WHOLE, surrogate="kl-penalty")),
            {"policy/approx_kl", "policy/kl", "policy/kl_penalty"},
        ),
        (A2C, {"gradients/policy_norm", "gradients/value_norm"}),
        (VPG, {"gradients/policy_norm", "gradients/value_norm"}),
        (
            lambda actor: TRPO(actor, TRPOConfig(num_minibatches=2)),
            {"policy/kl", "policy/step_fraction", "gradients/policy_norm", "gradients/value_norm"},
        ),
    ],
    ids=["ppo", "ppo-penalty", "a2c", "vpg", "trpo"],
)
def test_an_update_tells_how_it_went(
    make: Callable[[OnPolicyActor], AnyAlgorithm], own: set[str]
) -> None:
    with _envs() as envs:
        algorithm = make(_actor(envs))
        metrics = algorithm.update(_collected(envs, algorithm))
    metrics |= algorithm.read_metrics()
    assert ALWAYS | own <= set(metrics)
    assert any(name.startswith("gradients/") for name in metrics)
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["value/explained_variance"] <= 1.0
    assert metrics["policy/entropy"] > 0.0


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_each_update_starts_from_the_behaviors_policy(memory: CoreKind) -> None:
    with _envs() as envs:
        algorithm = PPO(_actor(envs, memory), WHOLE)
        with torch.no_grad():  # a policy that depends on what it sees
            for name, parameter in algorithm.actor.named_parameters():
                if "head" in name and "weight" in name:
                    parameter.mul_(100.0)
        for num_rollouts in (1, 2, 3):
            storage = _collected(envs, algorithm, num_rollouts)
            algorithm.read_metrics()
            algorithm.update(storage)
            assert algorithm.read_metrics()["policy/approx_kl"] == pytest.approx(0.0, abs=1e-5)


class Recorder(IdentityEnv):
    """Keeps the actions it is given."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-0.1, 0.1, (2,), np.float32))
        self.actions: list[NDArray[np.float32]] = []

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        self.actions.append(np.array(action, np.float32))
        return super().step(action)


def test_the_clipped_action_is_sent_and_the_sampled_one_is_kept() -> None:
    made: list[Recorder] = []

    def make() -> gymnasium.Env:
        made.append(Recorder())
        return made[-1]

    with _envs(make) as envs:
        storage = _collected(envs, PPO(_actor(envs), WHOLE))
        rollout = storage.rollout()
    recorders = made[-NUM_ENVS:]
    sent = np.stack([np.stack(env.actions[:NUM_STEPS]) for env in recorders], 1)
    kept = rollout.action.numpy()
    assert np.abs(kept).max() > 0.1
    np.testing.assert_allclose(sent, kept.clip(-0.1, 0.1))


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_trpo_steps_once_per_rollout_and_fits_values_in_epochs(memory: CoreKind) -> None:
    config = TRPOConfig(max_kl=0.02, num_epochs=3, num_minibatches=2)
    with _envs() as envs:
        algorithm = TRPO(_actor(envs, memory), config)
        storage = _collected(envs, algorithm)
        metrics = algorithm.update(storage)
    assert algorithm.gradients.count == 3 * 2
    assert 0.0 < metrics["policy/kl"] <= 0.02
    assert metrics["loss/policy_improvement"] > 0.0
    assert algorithm.read_metrics()["loss/value"] > 0.0


@pytest.mark.parametrize("num_backtracks", [1, 15])
def test_no_update_of_trpo_leaves_its_region_and_refused_steps_are_undone(
    num_backtracks: int,
) -> None:
    # One sample in eight misjudges the curvature, so that many full steps are too long.
    config = TRPOConfig(
        curvature_every=8,
        cg_damping=1e-3,
        num_backtracks=num_backtracks,
        num_minibatches=1,
        minibatch_size=None,
    )
    accepted = []
    with _envs(Recorder) as envs:
        torch.manual_seed(0)
        spaces_ = envs.single_observation_space, envs.single_action_space
        actor = OnPolicyActor(*spaces_, OnPolicyActorConfig(hidden_sizes=(8,)))
        algorithm = TRPO(actor, config)
        storage = ReferenceRolloutStorage(NUM_STEPS)
        generator = torch.Generator().manual_seed(1)
        collector = Collector(envs, algorithm, generator=generator, seed=3)
        storage.allocate(collector.storage_spec(), torch.Generator().manual_seed(2))
        for _ in range(8):
            collector.collect(NUM_STEPS * NUM_ENVS, into=storage)
            rollout, before = storage.rollout(), copy.deepcopy(actor)
            metrics = algorithm.update(storage)
            accepted.append(metrics["policy/step_fraction"] > 0.0)
            with torch.no_grad():
                old, new = (one.distribution(rollout.observation, {})[0] for one in (before, actor))
                kl = old.kl_divergence(new)[rollout.valid].mean().item()
            assert kl <= 0.01 * (1.0 + 1e-4)  # rounding of another order of sums
            assert kl == pytest.approx(metrics["policy/kl"], rel=1e-3, abs=1e-6)
            if not accepted[-1]:
                for name in actor.policy_modules:
                    state = dict(before.get_submodule(name).state_dict())
                    check_same_state(dict(actor.get_submodule(name).state_dict()), state)
    assert any(accepted)
    assert all(accepted) == (num_backtracks == 15)


@pytest.mark.parametrize(("kl_target", "expected"), [(1e-7, 2.0), (1e3, 0.5)])
def test_the_penalty_adapts_after_each_update(kl_target: float, expected: float) -> None:
    config = replace(WHOLE, surrogate="kl-penalty", kl_target=kl_target, num_epochs=2)
    with _envs() as envs:
        algorithm = PPO(_actor(envs), config)
        storage = _collected(envs, algorithm)
        metrics = algorithm.update(storage)
    assert metrics["policy/kl_penalty"] == algorithm.hyper["kl_penalty"].item() == expected
    assert metrics["policy/kl"] > 0.0
