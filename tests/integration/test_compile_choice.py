"""Whether ``compile="auto"`` compiles: by the gradient steps that a run is going to take."""

import copy
import math

import pytest
import torch

from rl_algos_offpolicy import BC, DQN, BCConfig, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_core.algorithm import AnyAlgorithm
from rl_core.storage import AnyStorage
from rl_storages import ReplayBuffer, RolloutStorage
from rl_testing.scripted import WalkVecEnv
from rl_train import Callback, Trainer

PAYS_AFTER = 7_500
"""Gradient steps from which compiling pays on a CPU."""

_WALKS = WalkVecEnv(1)
_SPACES = _WALKS.single_observation_space, _WALKS.single_action_space


class Leaving(Callback):
    """Ends a run as soon as everything is settled."""

    def on_training_start(self, trainer: Trainer, target: int, unit: str) -> bool:
        return True


def _choice(trainer: Trainer, **goal: int) -> object:
    trainer.train(**goal, progress=False)
    assert trainer.updates == 0
    return trainer.recipe.resolved["compile"]


def _dqn(num_envs: int, config: DQNConfig) -> Trainer:
    actor = _actor(OffPolicyActorConfig(hidden_sizes=(4,), policy="greedy"))
    return _trainer(num_envs, DQN(actor, config), ReplayBuffer(100))


def _trainer(num_envs: int, algorithm: AnyAlgorithm, storage: AnyStorage) -> Trainer:
    return Trainer(WalkVecEnv(num_envs), algorithm, storage, seed=0, callbacks=[Leaving()])


def _actor(config: OffPolicyActorConfig) -> OffPolicyActor:
    torch.manual_seed(0)
    return OffPolicyActor(*_SPACES, config)


@pytest.mark.parametrize(
    ("num_envs", "options", "steps"),
    [
        (1, {"update_after": 0}, PAYS_AFTER),
        # Nothing is learned from the first transitions.
        (1, {"update_after": 1000}, PAYS_AFTER + 1000),
        # Several environments bring an update only when all of them have stepped.
        (8, {"update_after": 0}, 8 * PAYS_AFTER),
        (8, {"update_after": 1000}, 8 * PAYS_AFTER + 1000),
        (3, {"update_after": 0, "update_every": 4}, 6 * PAYS_AFTER),
        (2, {"update_after": 0, "update_every": 10, "num_minibatches": 5}, 2 * PAYS_AFTER),
        # As many gradient steps for each transition as one environment has.
        (8, {"update_after": 1000, "keep_ratio": True}, PAYS_AFTER + 1000),
        (4, {"update_after": 8, "num_minibatches": 2, "keep_ratio": True}, PAYS_AFTER // 2 + 8),
    ],
)
def test_replayed_runs_compile_where_their_gradient_steps_pay_for_it(
    num_envs: int, options: dict[str, int], steps: int
) -> None:
    for total_steps, expected in ((steps, "auto"), (steps - 1, "off")):
        config = DQNConfig(**options)  # type: ignore[arg-type]  # whole numbers and a flag
        assert _choice(_dqn(num_envs, config), total_steps=total_steps) == expected


def test_updates_that_are_asked_for_are_all_to_come() -> None:
    config = DQNConfig(update_after=10**6, num_minibatches=3, keep_ratio=True)
    for updates, expected in ((PAYS_AFTER // 12, "auto"), (PAYS_AFTER // 12 - 1, "off")):
        assert _choice(_dqn(4, config), total_updates=updates) == expected


def test_steps_in_which_nobody_acts_are_gradient_steps() -> None:
    for total_steps, expected in ((PAYS_AFTER, "auto"), (PAYS_AFTER - 1, "off")):
        actor = _actor(OffPolicyActorConfig(hidden_sizes=(4,)))
        trainer = _trainer(3, BC(actor, BCConfig(num_minibatches=10)), ReplayBuffer(100))
        assert _choice(trainer, total_steps=total_steps) == expected


def test_a_run_that_goes_on_counts_what_is_left_of_it() -> None:
    config = DQNConfig(update_after=100, minibatch_size=4)
    for total_steps, expected in ((PAYS_AFTER + 100, "auto"), (PAYS_AFTER + 99, "off")):
        begun, goes_on = _dqn(1, config), _dqn(1, config)
        begun.callbacks = ()
        begun.train(total_steps=60)
        goes_on.load_state_dict(begun.state_dict())
        assert _choice(goes_on, total_steps=total_steps) == expected


@pytest.mark.parametrize("num_envs", [1, 4])
def test_rollouts_compile_where_their_gradient_steps_pay_for_it(num_envs: int) -> None:
    # Four passes over four minibatches for every 64 transitions.
    for total_steps, expected in ((4 * PAYS_AFTER, "auto"), (4 * PAYS_AFTER - 1, "off")):
        actor = OnPolicyActor(*_SPACES, OnPolicyActorConfig(hidden_sizes=(4,)))
        algorithm = PPO(actor, PPOConfig(num_epochs=4, minibatch_size=16))
        trainer = _trainer(num_envs, algorithm, RolloutStorage(64 // num_envs))
        assert _choice(trainer, total_steps=total_steps) == expected


def test_large_steps_pay_for_it_sooner() -> None:
    actor = _actor(OffPolicyActorConfig(hidden_sizes=(256, 256), policy="greedy"))
    weights = sum(parameter.numel() for parameter in actor.parameters())
    pays_after = math.ceil(PAYS_AFTER / (6 * weights * 1024 / 2e8))
    assert pays_after < PAYS_AFTER
    for total_steps, expected in ((pays_after, "auto"), (pays_after - 1, "off")):
        dqn = DQN(copy.deepcopy(actor), DQNConfig(update_after=0, minibatch_size=1024))
        trainer = _trainer(1, dqn, ReplayBuffer(100))
        assert _choice(trainer, total_steps=total_steps) == expected
