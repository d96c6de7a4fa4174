"""On-policy algorithms must solve tasks so small that anything else than a mistake solves them."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_onpolicy import (
    A2C,
    PPO,
    RNDPPO,
    TRPO,
    VPG,
    A2CConfig,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDConfig,
    RNDPPOConfig,
    TRPOConfig,
    VPGConfig,
)
from rl_core.algorithm import AnyAlgorithm
from rl_core.nn.torso import CoreKind
from rl_core.spaces import HybridSpace
from rl_core.types import Array
from rl_envs import make_gym_vec
from rl_storages import RolloutStorage
from rl_testing.scripted import IDENTITY_SPACES, IdentityEnv, Info, MemoryCueEnv
from rl_train import Trainer, TrainerConfig, evaluate_policy

NUM_ENVS = 8
MakeAlgorithm: TypeAlias = Callable[[float, int, OnPolicyActor], AnyAlgorithm]


class CountOnEnv(gymnasium.Env):
    """Shows one of four numbers and allows two actions: counting on from it, the first earns 1.

    The number itself is among them every other time. Who learns only to say it returns ¾ of what
    is there, and who always prefers the same actions less. An episode has eight steps.
    """

    def __init__(self) -> None:
        mask = spaces.MultiBinary(4)
        self.observation_space = spaces.Dict({"action_mask": mask, "number": spaces.Discrete(4)})
        self.action_space = spaces.Discrete(4)
        self.allowed: tuple[int, ...] = ()
        self.number = 0
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[dict[str, Array], Info]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: object) -> tuple[dict[str, Array], SupportsFloat, bool, bool, Info]:
        answer = int(np.asarray(action).item())
        assert answer in self.allowed
        first = min(self.allowed, key=lambda allowed: (allowed - self.number) % 4)
        self.steps += 1
        return self._draw(), float(answer == first), self.steps == 8, False, {}

    def _draw(self) -> dict[str, Array]:
        pairs = list(combinations(range(4), 2))
        self.allowed = pairs[self.np_random.integers(len(pairs))]
        self.number = int(self.np_random.integers(4))
        mask = np.isin(np.arange(4), self.allowed).astype(np.int8)
        return {"action_mask": mask, "number": np.asarray(self.number)}


class BothEnv(gymnasium.Env):
    """Asks for two answers at once, a number and a category, each worth half of the reward."""

    def __init__(self) -> None:
        self.parts = [IdentityEnv(IDENTITY_SPACES[kind]) for kind in ("box", "discrete")]
        both = spaces.Tuple([part.action_space for part in self.parts])
        self.observation_space = self.action_space = both
        self.optimal_return, self.constant_return = (
            float(np.mean([getattr(part, name) for part in self.parts]))
            for name in ("optimal_return", "constant_return")
        )

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[tuple[Array, ...], Info]:
        return tuple(part.reset(seed=seed)[0] for part in self.parts), {}

    def step(self, action: Any) -> tuple[tuple[Array, ...], SupportsFloat, bool, bool, Info]:
        steps = [part.step(each) for part, each in zip(self.parts, action, strict=True)]
        reward = float(np.mean([float(step[1]) for step in steps]))
        return tuple(step[0] for step in steps), reward, steps[0][2], False, {}


def _train(
    make_env: Callable[[], gymnasium.Env],
    make_algorithm: MakeAlgorithm,
    *,
    gamma: float,
    num_steps: int,
    total_steps: int,
    memory: CoreKind = "none",
    sequence_length: int | None = None,
    deterministic: bool = True,
    **actor_options: Any,
) -> float:
    """Train from scratch and return the mean return of the policy, by default without chance."""
    envs = make_gym_vec(make_env, NUM_ENVS, seed=0)
    torch.manual_seed(0)
    has_numbers = isinstance(envs.single_action_space, spaces.Box | HybridSpace)
    config = OnPolicyActorConfig(
        hidden_sizes=(32,),
        recurrent_net=memory,
        recurrent_hidden_size=None if memory == "none" else 16,
        initial_log_std=-0.7 if has_numbers else 0.0,
        **actor_options,
    )
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    algorithm = make_algorithm(gamma, num_steps, actor)
    options = TrainerConfig(compile="off", num_threads=1)
    storage = RolloutStorage(num_steps, sequence_length=sequence_length)
    Trainer(envs, algorithm, storage, config=options, seed=0).train(total_steps)
    envs.close()
    test_envs = make_gym_vec(make_env, NUM_ENVS, seed=1)
    result = evaluate_policy(algorithm, test_envs, 200, deterministic=deterministic)
    test_envs.close()
    return result.mean


def _ppo(gamma: float, num_steps: int, actor: OnPolicyActor, **options: Any) -> PPO:
    config = PPOConfig(
        learning_rate=1e-2, gamma=gamma, num_epochs=4, minibatch_size=4 * num_steps, **options
    )
    return PPO(actor, config)


_penalised_ppo = partial(_ppo, surrogate="kl-penalty", kl_target=0.05)
_plain_ppo = partial(_ppo, surrogate="plain")


def _rnd_ppo(gamma: float, num_steps: int, actor: OnPolicyActor) -> RNDPPO:
    config = RNDPPOConfig(
        learning_rate=1e-2,
        gamma=gamma,
        num_epochs=4,
        minibatch_size=4 * num_steps,
        rnd=RNDConfig(hidden_sizes=(16,), num_features=8, pre_normalization_steps=64),
    )
    return RNDPPO(actor, config)


def _a2c(gamma: float, num_steps: int, actor: OnPolicyActor) -> A2C:
    rate = 7e-3
    return A2C(actor, A2CConfig(policy_learning_rate=rate, value_learning_rate=rate, gamma=gamma))


def _vpg(gamma: float, num_steps: int, actor: OnPolicyActor) -> VPG:
    rate = 2e-2
    return VPG(actor, VPGConfig(policy_learning_rate=rate, value_learning_rate=rate, gamma=gamma))


def _reinforce(gamma: float, num_steps: int, actor: OnPolicyActor) -> VPG:
    config = VPGConfig(policy_learning_rate=2e-2, value_learning_rate=None, gamma=gamma)
    return VPG(actor, config)


def _trpo(gamma: float, num_steps: int, actor: OnPolicyActor) -> TRPO:
    size = 4 * num_steps
    return TRPO(actor, TRPOConfig(max_kl=0.05, gamma=gamma, num_epochs=4, minibatch_size=size))


@pytest.mark.parametrize("kind", IDENTITY_SPACES)
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [(_ppo, 64, 5_120), (_a2c, 8, 8_000), (_trpo, 64, 12_288)],
    ids=["ppo", "a2c", "trpo"],
)
def test_it_learns_to_answer_what_it_sees(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    kind: str,
) -> None:
    make_env = partial(IdentityEnv, IDENTITY_SPACES[kind])
    score = _train(
        make_env, make_algorithm, gamma=0.0, num_steps=num_steps, total_steps=total_steps
    )
    task = make_env()
    assert score > 0.95 * task.optimal_return > task.constant_return


@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [(_ppo, 64, 5_120), (_trpo, 64, 12_288)],
    ids=["ppo", "trpo"],
)
def test_it_learns_a_number_and_a_category_at_once(
    make_algorithm: MakeAlgorithm, num_steps: int, total_steps: int
) -> None:
    score = _train(BothEnv, make_algorithm, gamma=0.0, num_steps=num_steps, total_steps=total_steps)
    task = BothEnv()
    assert score > 0.95 * task.optimal_return > task.constant_return


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [
        (_vpg, 16, 12_800),
        (_reinforce, 16, 12_800),
        (_penalised_ppo, 64, 8_192),
        (_plain_ppo, 64, 5_120),
    ],
    ids=["vpg", "reinforce", "ppo-penalty", "ppo-plain"],
)
def test_the_other_forms_learn_it_too(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    kind: str,
) -> None:
    make_env = partial(IdentityEnv, IDENTITY_SPACES[kind])
    score = _train(
        make_env, make_algorithm, gamma=0.0, num_steps=num_steps, total_steps=total_steps
    )
    task = make_env()
    assert score > 0.95 * task.optimal_return > task.constant_return


@pytest.mark.parametrize(
    "policy",
    [{"squash_actions": True}, {"state_dependent_std": True}],
    ids=["squashed", "state-dependent-std"],
)
def test_a_spread_that_the_network_gives_shrinks_as_the_answer_is_learned(
    policy: dict[str, Any],
) -> None:
    """Where actions are drawn, a spread that is the same everywhere shrinks too slowly."""
    make_env = partial(IdentityEnv, IDENTITY_SPACES["box"])
    score = _train(
        make_env,
        _ppo,
        gamma=0.0,
        num_steps=64,
        total_steps=5_120,
        deterministic=False,
        **policy,
    )
    task = make_env()
    assert score > 0.95 * task.optimal_return > task.constant_return


def test_it_learns_which_of_the_allowed_actions_is_best() -> None:
    score = _train(CountOnEnv, _ppo, gamma=0.0, num_steps=64, total_steps=5_120)
    assert score > 0.95 * 8.0


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize(
    ("make_algorithm", "num_steps", "total_steps"),
    [
        (_ppo, 16, 4_096),
        (_a2c, 8, 8_000),
        (_vpg, 16, 12_800),
        (_trpo, 16, 4_096),
        (_rnd_ppo, 16, 6_144),
    ],
    ids=["ppo", "a2c", "vpg", "trpo", "rnd-ppo"],
)
def test_memory_answers_what_it_saw_before(
    make_algorithm: MakeAlgorithm,
    num_steps: int,
    total_steps: int,
    memory: CoreKind,
) -> None:
    score = _train(
        partial(MemoryCueEnv, 2),  # episodes of three rows, which sequences cut anywhere
        make_algorithm,
        gamma=0.9,
        num_steps=num_steps,
        total_steps=total_steps,
        memory=memory,
        sequence_length=num_steps // 2,
        intrinsic_value=make_algorithm is _rnd_ppo,
    )
    assert score > 0.95


def test_without_memory_it_can_only_guess() -> None:
    score = _train(partial(MemoryCueEnv, 2), _ppo, gamma=0.9, num_steps=16, total_steps=4_096)
    assert 0.35 < score < 0.65
