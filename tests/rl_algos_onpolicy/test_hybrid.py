"""Hybrid actions, continuous and categorical at once: a factored policy."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.func import vmap

from rl_algos_onpolicy import OnPolicyActor, OnPolicyActorConfig
from rl_algos_onpolicy.actor.hybrid import Hybrid, HybridHead
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import draw_noise, from_columns, to_columns
from rl_core.spaces import HybridSpace, Space
from rl_testing.actors import ActorSuite

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACE = HybridSpace(
    spaces.Box(np.array([-1, 0], np.float32), np.array([2, 0.5], np.float32)),
    spaces.MultiDiscrete([3, 2], start=[-1, 0]),
)


class TestHybrid(ActorSuite):
    observation_spaces: ClassVar[Mapping[str, Space]] = {"vector": VECTOR}
    action_spaces: ClassVar[Mapping[str, Space]] = {"hybrid": SPACE}

    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(hidden_sizes=(8,))
        return OnPolicyActor(observation_space, action_space, config)


class TestSquashedHybrid(TestHybrid):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(hidden_sizes=(8,), squash_actions=True)
        return OnPolicyActor(observation_space, action_space, config)


def _hybrid(mean: float = 0.5, first: float = 0.75) -> Hybrid:
    """One normal number of deviation 2, and a choice of two and one of three."""
    logits = torch.tensor([[first, 1.0 - first, 0.5, 0.25, 0.25]]).log()
    log_std = torch.tensor([math.log(2.0)])
    return Hybrid(torch.tensor([[mean]]), log_std, logits, (2, 3), is_squashed=False)


def test_hybrid_by_hand() -> None:
    distribution = _hybrid()
    assert distribution.mode().tolist() == [[0.5, 0.0, 0.0]]
    log_density = -math.log(2.0) - 0.5 * math.log(2.0 * math.pi) - 0.5
    action = torch.tensor([[2.5, 1.0, 2.0]])  # one deviation away
    expected = log_density + math.log(0.25) + math.log(0.25)
    assert distribution.log_prob(action).item() == pytest.approx(expected)
    normal = math.log(2.0) + 0.5 * math.log(2.0 * math.pi * math.e)
    choices = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) + 1.5 * math.log(2.0)
    assert distribution.entropy().item() == pytest.approx(normal + choices)
    divergence = 2.0**2 / (2.0 * 2.0**2) + 0.75 * math.log(3.0) + 0.25 * math.log(1.0 / 3.0)
    other = _hybrid(mean=2.5, first=0.25)
    assert distribution.kl_divergence(other).item() == pytest.approx(divergence)
    assert distribution.kl_divergence(distribution).item() == pytest.approx(0.0)


def test_squashing_concerns_the_real_numbers_alone() -> None:
    plain = _hybrid()
    squashed = Hybrid(plain.mean, plain.log_std, plain.logits, plain.nvec, is_squashed=True)
    assert squashed.mode()[0].tolist() == pytest.approx([math.tanh(0.5), 0.0, 0.0])
    slope = 1.0 - math.tanh(0.5) ** 2
    action = torch.tensor([[0.5, 1.0, 2.0]])
    seen = torch.tensor([[math.tanh(0.5), 1.0, 2.0]])
    expected = plain.log_prob(action).item() - math.log(slope)
    assert squashed.log_prob(seen).item() == pytest.approx(expected, abs=1e-5)


def test_normal_noise_draws_each_choice_as_often_as_its_probability_says() -> None:
    distribution = _hybrid()
    shape = (40_000, 6)
    noise = draw_noise("normal", shape, torch.Generator().manual_seed(0))
    drawn = vmap(distribution.sample)(noise.unsqueeze(1)).squeeze(1)
    assert drawn[:, 0].mean().item() == pytest.approx(0.5, abs=0.05)
    assert drawn[:, 0].std().item() == pytest.approx(2.0, abs=0.05)
    for column, expected in ((1, [0.75, 0.25]), (2, [0.5, 0.25, 0.25])):
        shares = torch.bincount(drawn[:, column].long()) / shape[0]
        assert shares.tolist() == pytest.approx(expected, abs=0.01)


def test_extreme_noise_stays_finite() -> None:
    noise = torch.tensor([[0.0, 6.0, -6.0, 6.0, 0.0, -6.0], [0.0, -9.0, 9.0, 9.0, -9.0, 9.0]])
    logits = torch.zeros(2, 5)
    distribution = Hybrid(torch.zeros(2, 1), torch.zeros(1), logits, (2, 3), is_squashed=False)
    assert distribution.sample(noise).isfinite().all()
    assert distribution.sample(noise)[0].tolist() == [0.0, 0.0, 0.0]
    largest = torch.tensor([0.0, 6.0, 7.0, 5.5, 5.7, 5.9]).expand(2, 6)  # Φ rounds to 1
    assert distribution.sample(largest).tolist() == [[0.0, 1.0, 2.0]] * 2


def test_an_action_that_is_no_number_has_no_density() -> None:
    assert _hybrid().log_prob(torch.full((1, 3), math.nan)).isnan().all()


def test_both_parts_of_the_head_have_its_gain() -> None:
    weights = dict(HybridHead(SPACE, 4, gain=0.0).named_parameters())
    for name in ("real.linear.weight", "choices.linear.weight"):
        assert not weights[name].any()


def test_a_rollout_keeps_the_policy_in_columns() -> None:
    behavior = _hybrid()
    columns = to_columns(behavior, (1,))
    again = from_columns(_hybrid(mean=-3.0, first=0.1), columns)
    assert behavior.kl_divergence(again).item() == pytest.approx(0.0)


def test_the_environment_gets_real_numbers_in_bounds_and_choices_from_their_start() -> None:
    actor = OnPolicyActor(VECTOR, SPACE)
    action = torch.tensor([[9.0, -9.0, 2.0, 1.0], [0.25, 0.25, 0.0, 0.0]])
    expected = [[2.0, 0.0, 1.0, 1.0], [0.25, 0.25, -1.0, 0.0]]
    assert actor.to_env_action(action).tolist() == expected
    assert actor.from_env_action(torch.tensor(expected)).tolist()[1] == [0.25, 0.25, 0.0, 0.0]


def test_everything_traces_as_one_graph() -> None:
    def function(mean: Tensor, logits: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        distribution = Hybrid(mean, torch.zeros(1), logits, (2, 3), is_squashed=True)
        action = distribution.sample(noise)
        return action, distribution.log_prob(action), distribution.entropy()

    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(4, size, generator=generator) for size in (1, 5, 6)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), function(*arguments))


def test_what_hybrid_actions_cannot_have_is_refused() -> None:
    masked = spaces.Dict({"action_mask": spaces.MultiBinary(5), "position": VECTOR})
    with pytest.raises(SpaceError, match=r"HybridSpace.* cannot be masked"):
        OnPolicyActor(masked, SPACE)
    unbounded = HybridSpace(spaces.Box(-np.inf, np.inf, (1,)), spaces.MultiDiscrete([2]))
    with pytest.raises(SpaceError, match="infinite bound"):
        OnPolicyActor(VECTOR, unbounded, OnPolicyActorConfig(squash_actions=True))
    with pytest.raises(ConfigError, match="action masks"):
        OnPolicyActor(VECTOR, SPACE).action_head(torch.zeros(1, 64), torch.ones(1, 5))
