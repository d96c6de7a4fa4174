"""Updates of shapes that the package's own algorithms do not have: several losses, groups, targets.

One loss function answers one scalar. These tests hold that its parts reach only their own
parameters, that groups and targets move at their own pace, and that all of it compiles.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.algorithm import Algorithm, AnyAlgorithm, DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.config import ComponentSpec, Scheduled
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork, call_frozen
from rl_core.nn.distributions import Distribution, draw_noise, make_head
from rl_core.nn.mlp import MLP
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State
from rl_testing.algorithms import AlgorithmSuite

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
TARGET_ENTROPY = -2.0


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    terminated: Tensor


torch.export.register_dataclass(ReplayBatch)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = MLP(3, (8,))
        self.head = make_head(ACTIONS, 8, squash=True, gain=1.0)

    def forward(self, observation: Tensor) -> Distribution:
        distribution: Distribution = self.head(self.body(observation))
        return distribution


class TwinCritics(nn.Module):
    """Two critics in one batched product; with a layer that both share, reached by two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = nn.Sequential(nn.LayerNorm(5))
        self.also = self.normalize[0]
        self.inner = nn.Parameter(0.5 * torch.randn(2, 5, 8))
        self.bias = nn.Parameter(torch.zeros(2, 1, 8))
        self.outer = nn.Parameter(0.5 * torch.randn(2, 8, 1))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return `(2, N)`."""
        x = self.also(self.normalize(torch.cat([observation, action], -1)))
        hidden = torch.tanh(torch.baddbmm(self.bias, x.expand(2, *x.shape), self.inner))
        return torch.bmm(hidden, self.outer).squeeze(-1)


class ActorCritic(Actor):
    def __init__(self) -> None:
        super().__init__(OBSERVATIONS, ACTIONS)
        self.policy = Policy()
        self.critics = TwinCritics()

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        distribution: Distribution = self.policy(observation)
        return distribution, {}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((2,), torch.float32)

    def to_env_action(self, action: Tensor) -> Tensor:
        return self.policy.head.to_env_action(action)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return draw_noise("normal", (*batch_shape, 2), generator)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(-1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    policy_learning_rate: Scheduled = 1e-3
    critic_learning_rate: Scheduled = 2e-3
    temperature_learning_rate: Scheduled = 3e-3
    gamma: Scheduled = 0.9
    tau: Scheduled = 0.1


class ReplayAlgorithm(Algorithm[ReplayConfig, ReplayBatch]):
    """What both have in common, which is nothing of the mathematics."""

    actor: ActorCritic

    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(start_steps=10, update_every=1, minibatch_size=16)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        actor, storage = (
            ComponentSpec("actor", "off-policy", {}),
            ComponentSpec("storage", "replay", {}),
        )
        return DefaultRecipe(actor, storage, env={"num_envs": 1})

    def td_error(self, batch: ReplayBatch, target: Tensor) -> Tensor:
        error: Tensor = self.actor.critics(batch.observation, batch.action) - target
        return error


class Entropic(ReplayAlgorithm):
    """Policy, twin critics and a learned temperature, each with an optimizer, as in SAC."""

    def make_modules(self) -> Mapping[str, nn.Module]:
        self.target_critics = copy.deepcopy(self.actor.critics)
        self.temperature = Temperature()
        return {"target_critics": self.target_critics, "temperature": self.temperature}

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        return (
            ParameterGroup(
                name="policy", modules=("actor.policy",), learning_rate="policy_learning_rate"
            ),
            ParameterGroup(
                name="critics", modules=("actor.critics",), learning_rate="critic_learning_rate"
            ),
            ParameterGroup(
                name="temperature",
                modules=("temperature",),
                learning_rate="temperature_learning_rate",
            ),
        )

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        return (TargetNetwork(module="target_critics", source="actor.critics", tau="tau"),)

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        shape = (len(batch.reward),)
        return {name: self.actor.draw_noise(shape, self.generator) for name in ("now", "next")}

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        action, log_prob = self.actor.policy(batch.next_observation).sample_with_log_prob(
            noise["next"]
        )
        value = self.target_critics(batch.next_observation, action).amin(0)
        value = value - self.temperature.log.exp() * log_prob
        target: Tensor = batch.reward + self.hyper["gamma"] * ~batch.terminated * value
        return target

    def policy_terms(self, batch: ReplayBatch, noise: Noise) -> tuple[Tensor, Tensor]:
        action, log_prob = self.actor.policy(batch.observation).sample_with_log_prob(noise["now"])
        value = call_frozen(self.actor.critics, batch.observation, action).amin(0)
        temperature = self.temperature.log.exp().detach()
        return (temperature * log_prob - value).mean(), log_prob

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        policy, log_prob = self.policy_terms(batch, noise)
        error = self.td_error(batch, self.target(batch, noise))
        critic = error.square().mean(1).sum()
        excess = (log_prob.detach() + TARGET_ENTROPY).mean()
        temperature = -self.temperature.log * excess
        metrics = {"loss/policy": policy, "loss/critic": critic, "loss/temperature": temperature}
        return LossOutput(policy + critic + temperature, metrics, {"td_error": error.abs().mean(0)})


class Delayed(ReplayAlgorithm):
    """A policy and its target that move every other step, and smoothed targets, as in TD3."""

    def make_modules(self) -> Mapping[str, nn.Module]:
        self.target_critics = copy.deepcopy(self.actor.critics)
        self.target_policy = copy.deepcopy(self.actor.policy)
        return {"target_critics": self.target_critics, "target_policy": self.target_policy}

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        return (
            ParameterGroup(
                name="critics", modules=("actor.critics",), learning_rate="critic_learning_rate"
            ),
            ParameterGroup(
                name="policy",
                modules=("actor.policy",),
                learning_rate="policy_learning_rate",
                every=2,
            ),
        )

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        return (
            TargetNetwork(module="target_critics", source="actor.critics", tau="tau", every=2),
            TargetNetwork(module="target_policy", source="actor.policy", tau="tau", every=2),
        )

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        return {"smooth": self.actor.draw_noise((len(batch.reward),), self.generator)}

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        smooth = (0.2 * noise["smooth"]).clamp(-0.5, 0.5)
        action = (self.target_policy(batch.next_observation).mode() + smooth).clamp(-1.0, 1.0)
        value = self.target_critics(batch.next_observation, action).amin(0)
        target: Tensor = batch.reward + self.hyper["gamma"] * ~batch.terminated * value
        return target

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        action = self.actor.policy(batch.observation).mode()
        policy = -call_frozen(self.actor.critics, batch.observation, action)[0].mean()
        error = self.td_error(batch, self.target(batch, noise))
        critic = error.square().mean(1).sum()
        metrics = {"loss/policy": policy, "loss/critic": critic}
        return LossOutput(policy + critic, metrics, {"td_error": error.abs().mean(0)})


def _batch(seed: int) -> ReplayBatch:
    generator = torch.Generator().manual_seed(seed)
    return ReplayBatch(
        observation=torch.randn(16, 3, generator=generator),
        action=2.0 * torch.rand(16, 2, generator=generator) - 1.0,
        reward=torch.randn(16, generator=generator),
        next_observation=torch.randn(16, 3, generator=generator),
        terminated=torch.rand(16, generator=generator) < 0.2,
    )


def _actor(seed: int = 1) -> ActorCritic:
    torch.manual_seed(seed)
    return ActorCritic()


class ReplaySuite(AlgorithmSuite):
    """The suite with batches as they come from a replay storage."""

    # Targets and frozen critics are constants that depend on the parameters.
    is_smooth: ClassVar[bool] = False

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> ReplayBatch:
        return _batch(seed)


class TestEntropic(ReplaySuite):
    def make_algorithm(self, seed: int) -> Entropic:
        return Entropic(_actor(seed))


class TestDelayed(ReplaySuite):
    def make_algorithm(self, seed: int) -> Delayed:
        return Delayed(_actor(seed))


def _gradients(loss: Tensor, module: nn.Module) -> Tensor:
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(
        loss, parameters, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_each_part_of_the_loss_reaches_its_own_parameters_only() -> None:
    algorithm, batch = Entropic(_actor()), _batch(1)
    noise = algorithm.draw_update_noise(batch)
    parts = algorithm.compute_loss(batch, noise).metrics
    owners: Mapping[str, nn.Module] = {
        "policy": algorithm.actor.policy,
        "critic": algorithm.actor.critics,
        "temperature": algorithm.temperature,
    }
    for part in owners:
        for name, module in owners.items():
            reached = bool(_gradients(parts[f"loss/{part}"], module).any())
            assert reached == (name == part), f"loss/{part} on {name}"
    assert all(parameter.grad is None for parameter in algorithm.target_critics.parameters())


def test_the_policys_gradient_goes_through_the_critic() -> None:
    algorithm, batch = Entropic(_actor()), _batch(1)
    noise = algorithm.draw_update_noise(batch)
    action, log_prob = algorithm.actor.policy(batch.observation).sample_with_log_prob(noise["now"])
    value = algorithm.actor.critics(batch.observation, action).amin(0)
    plain = (algorithm.temperature.log.exp() * log_prob - value).mean()
    expected = _gradients(plain, algorithm.actor.policy)
    loss = algorithm.compute_loss(batch, noise).loss
    torch.testing.assert_close(_gradients(loss, algorithm.actor.policy), expected)


def test_a_critics_error_is_answered_per_sample() -> None:
    algorithm, batch = Entropic(_actor()), _batch(1)
    algorithm.generator.manual_seed(3)
    noise = algorithm.draw_update_noise(batch)
    target = algorithm.target(batch, noise)
    with torch.no_grad():
        expected = algorithm.td_error(batch, target).abs().mean(0)
    algorithm.generator.manual_seed(3)
    assert torch.equal(algorithm.gradient_step(batch)["td_error"], expected)


def test_groups_have_rates_of_their_own() -> None:
    algorithm = Entropic(_actor())
    vectors = algorithm.gradients.vectors
    before = {name: vector.values.clone() for name, vector in vectors.items()}
    algorithm.gradient_step(_batch(1))
    # Adam's first step is as large as its rate.
    for name, rate in {"policy": 1e-3, "critics": 2e-3, "temperature": 3e-3}.items():
        moved = (vectors[name].values - before[name]).abs().max().item()
        assert 0.99 * rate < moved < 1.01 * rate, name


def test_a_delayed_policy_and_its_targets_move_every_other_step() -> None:
    algorithm = Delayed(_actor())
    vectors = algorithm.gradients.vectors
    moved: dict[str, list[bool]] = {name: [] for name in vectors}
    for seed in range(4):
        before = {name: vector.values.clone() for name, vector in vectors.items()}
        algorithm.gradient_step(_batch(seed))
        for name, vector in vectors.items():
            moved[name].append(not torch.equal(vector.values, before[name]))
    every_other = [False, True, False, True]
    assert moved == {
        "critics": [True] * 4,
        "policy": every_other,
        "target_critics": every_other,
        "target_policy": every_other,
    }


def test_a_target_follows_its_group() -> None:
    algorithm = Entropic(_actor())
    before = algorithm.target_critics.inner.clone()
    algorithm.gradient_step(_batch(1))
    expected = 0.9 * before + 0.1 * algorithm.actor.critics.inner.detach()
    torch.testing.assert_close(algorithm.target_critics.inner, expected)
