"""Off-policy algorithms must solve tasks so small that only a mistake fails to."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_core.algorithm import AnyAlgorithm
from rl_envs import make_gym_vec
from rl_storages import PrioritizedConfig, ReplayBuffer
from rl_testing.scripted import IDENTITY_SPACES, IdentityEnv
from rl_train import Trainer, TrainerConfig, evaluate_policy

NUM_ENVS = 4
SHARED = {"gamma": 0.5, "minibatch_size": 64, "start_steps": 400, "update_after": 400}
CADENCE = {"update_every": NUM_ENVS, "num_minibatches": 2}
RATES = {"policy_learning_rate": 3e-3, "critic_learning_rate": 3e-3}


def _dqn(actor: OffPolicyActor) -> DQN:
    config = DQNConfig(**SHARED, **CADENCE, learning_rate=3e-3, target_update_every=20)  # type: ignore[arg-type]
    return DQN(actor, config)


def _ddpg(actor: OffPolicyActor) -> DDPG:
    return DDPG(actor, DDPGConfig(**SHARED, **CADENCE, **RATES))  # type: ignore[arg-type]


def _td3(actor: OffPolicyActor) -> TD3:
    return TD3(actor, TD3Config(**SHARED, **CADENCE, **RATES))  # type: ignore[arg-type]


def _sac(actor: OffPolicyActor) -> SAC:
    config = SACConfig(**SHARED, **CADENCE, **RATES, temperature_learning_rate=1e-2)  # type: ignore[arg-type]
    return SAC(actor, config)


@pytest.mark.parametrize(
    ("make_algorithm", "policy", "kind"),
    [
        (_dqn, "greedy", "discrete"),
        (_sac, "stochastic", "discrete"),
        (_sac, "stochastic", "box"),
        (_ddpg, "deterministic", "box"),
        (_td3, "deterministic", "box"),
    ],
)
@pytest.mark.parametrize(
    "make_storage",
    [
        partial(ReplayBuffer, 5000),
        partial(ReplayBuffer, 5000, n_step=3),
        partial(ReplayBuffer, 5000, prioritized=PrioritizedConfig()),
    ],
    ids=["uniform", "n-step", "prioritized"],
)
def test_it_learns_to_answer_what_it_sees(
    make_algorithm: Callable[[OffPolicyActor], AnyAlgorithm],
    policy: PolicyKind,
    kind: str,
    make_storage: Callable[[], ReplayBuffer],
) -> None:
    options = OffPolicyActorConfig(
        policy=policy, hidden_sizes=(32,), num_critics=1 if policy == "greedy" else 2
    )
    _check_it_learns(make_algorithm, options, kind, make_storage())


@pytest.mark.parametrize(
    "options",
    [
        {"distribution": "categorical", "num_atoms": 11, "value_range": (-1.0, 3.0)},
        {"distribution": "quantile", "num_quantiles": 20},
        {"noisy": True},
        {
            "distribution": "categorical",
            "num_atoms": 11,
            "value_range": (-1.0, 3.0),
            "noisy": True,
            "dueling": True,
        },
    ],
    ids=["categorical", "quantile", "noisy", "rainbow"],
)
def test_every_kind_of_critic_learns_to_answer_what_it_sees(options: dict[str, object]) -> None:
    config = OffPolicyActorConfig(
        policy="greedy",
        hidden_sizes=(32,),
        num_critics=1,
        **options,  # type: ignore[arg-type]  # of many types
    )
    storage = ReplayBuffer(5000, n_step=3, prioritized=PrioritizedConfig())
    _check_it_learns(_dqn, config, "discrete", storage)


@pytest.mark.parametrize(
    ("actor", "options"),
    [
        ({"num_critics": 5}, {"num_target_critics": 2, "policy_value": "mean"}),
        ({"critic_dropout": 0.02, "critic_layer_norm": True}, {"policy_value": "mean"}),
    ],
    ids=["redq", "droq"],
)
def test_many_steps_per_update_learn_it_too(
    actor: dict[str, object], options: dict[str, object]
) -> None:
    """Four gradient steps per update, of which one moves the policy."""

    def make(learner: OffPolicyActor) -> SAC:
        cadence = {"update_every": NUM_ENVS, "num_minibatches": 4, "policy_delay": 4}
        return SAC(
            learner,
            SACConfig(**{**SHARED, **RATES, **cadence, **options}, temperature_learning_rate=1e-2),  # type: ignore[arg-type]  # of many types
        )

    config = OffPolicyActorConfig(hidden_sizes=(32,), **actor)  # type: ignore[arg-type]  # of many types
    _check_it_learns(make, config, "box", ReplayBuffer(5000))


def _check_it_learns(
    make_algorithm: Callable[[OffPolicyActor], AnyAlgorithm],
    config: OffPolicyActorConfig,
    kind: str,
    storage: ReplayBuffer,
) -> None:
    make_env = partial(IdentityEnv, IDENTITY_SPACES[kind])
    envs = make_gym_vec(make_env, NUM_ENVS, seed=0)
    torch.manual_seed(0)
    actor = OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    algorithm = make_algorithm(actor)
    options = TrainerConfig(compile="off", num_threads=1)
    Trainer(envs, algorithm, storage, config=options, seed=0).train(total_steps=4000)
    envs.close()
    test_envs = make_gym_vec(make_env, NUM_ENVS, seed=1)
    score = evaluate_policy(algorithm, test_envs, 100).mean
    test_envs.close()
    task = make_env()
    assert score > 0.9 * task.optimal_return > task.constant_return
