"""Terms of the policy loss: attraction, repulsion, auxiliary predictions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_onpolicy.add_ons import AttractionKL, RepulsionKL, ReturnPredictor, RewardPredictor
from rl_algos_onpolicy.add_ons.attraction_repulsion import policy_divergence
from rl_algos_onpolicy.add_ons.prediction import sparse_squared_error
from rl_core.actor import Actor
from rl_core.algorithm import PolicyLossAddOn
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.errors import ConfigError, DataError, SpaceError
from rl_core.nn.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagonalGaussian,
    Distribution,
    SquashedGaussian,
)
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
CPU = torch.device("cpu")


class Fixed(Actor):
    """Has the same probabilities everywhere."""

    def __init__(
        self,
        probabilities: list[float],
        observation_space: spaces.Space[object] = VECTOR,
        memory: int = 0,
    ) -> None:
        super().__init__(observation_space, spaces.Discrete(len(probabilities)))
        self.logits = torch.nn.Parameter(torch.tensor(probabilities).log())
        self._memory = memory

    @property
    def state_sizes(self) -> dict[str, int]:
        return {"memory": self._memory} if self._memory else {}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((), torch.int64)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        assert isinstance(observation, Tensor)
        return Categorical(self.logits.expand(*observation.shape[:-1], -1)), state

    def to_env_action(self, action: Tensor) -> Tensor:
        return action

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.zeros(*batch_shape, len(self.logits))


def _batch(mask: list[float]) -> RolloutBatch:
    size = len(mask)
    zeros = torch.zeros(size)
    return RolloutBatch(
        observation=torch.randn(size, 3, generator=torch.Generator().manual_seed(0)),
        action=zeros.long(),
        log_prob=zeros,
        value=zeros,
        advantage=zeros,
        value_target=zeros,
        mask=torch.tensor(mask),
        episode_start=zeros > 0.0,
        state={},
    )


def _rollout(reward: Tensor, valid: Tensor) -> Rollout:
    never = torch.zeros_like(valid)
    return Rollout(
        observation=torch.zeros(*reward.shape, 3),
        next_observation=torch.zeros(reward.shape[1], 3),
        action=torch.zeros(reward.shape, dtype=torch.int64),
        reward=reward,
        terminated=never,
        truncated=never,
        valid=valid,
        episode_start=never,
        state={},
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_observation=torch.zeros(0, 3),
    )


def _term(add_on: PolicyLossAddOn, actor: Fixed, batch: RolloutBatch) -> Tensor:
    add_on.setup(actor, CPU)
    distribution, _ = actor.distribution(batch.observation, {})
    term, metrics = add_on.compute_loss_term(batch, distribution, {})
    assert len(metrics) == 1
    return term


# KL((1/2, 1/2) || (1/4, 3/4)) = ½ ln 2 + ½ ln ⅔; KL((1/4, 3/4) || itself) = 0.
HALF_TO_QUARTER = 0.5 * math.log(2.0) + 0.5 * math.log(2.0 / 3.0)


def test_attraction_is_the_divergence_of_the_nearest_policy_less_its_log_weight() -> None:
    actor, batch = Fixed([0.25, 0.75]), _batch([1.0, 1.0])
    far, same = Fixed([0.5, 0.5]), Fixed([0.25, 0.75])
    alone = _term(AttractionKL([far], loss_weight=2.0), actor, batch)
    assert alone.item() == pytest.approx(2.0 * HALF_TO_QUARTER, abs=1e-6)
    both = _term(AttractionKL([far, same]), actor, batch)
    assert both.item() == pytest.approx(math.log(2.0), abs=1e-6)  # the same one, 0 - ln ½
    heavy = _term(AttractionKL([far, same], weights=[9.0, 1.0]), actor, batch)
    assert heavy.item() == pytest.approx(HALF_TO_QUARTER - math.log(0.9), abs=1e-6)


def test_repulsion_is_minus_the_weighted_divergences() -> None:
    actor, batch = Fixed([0.25, 0.75]), _batch([1.0, 1.0])
    others: list[str | Actor] = [Fixed([0.5, 0.5]), Fixed([0.25, 0.75])]
    term = _term(RepulsionKL(others, weights=[3.0, 1.0], loss_weight=2.0), actor, batch)
    assert term.item() == pytest.approx(-2.0 * 0.75 * HALF_TO_QUARTER, abs=1e-6)
    bounded = _term(RepulsionKL([others[0]], max_divergence=0.01), actor, batch)
    assert bounded.item() == pytest.approx(-0.01, abs=1e-6)


def test_rows_that_are_no_transitions_do_not_count() -> None:
    class ByRow(Fixed):
        def distribution(
            self, observation: Observation, state: State, episode_start: Tensor | None = None
        ) -> tuple[Distribution, State]:
            return Categorical(torch.tensor([[0.5, 0.5], [0.01, 0.99]]).log()), state

    for kind, sign in ((AttractionKL, 1.0), (RepulsionKL, -1.0)):
        term = _term(kind([ByRow([0.5, 0.5])]), Fixed([0.25, 0.75]), _batch([1.0, 0.0]))
        assert term.item() == pytest.approx(sign * HALF_TO_QUARTER, abs=1e-6)


def test_the_gradient_moves_the_policy_and_not_the_others() -> None:
    actor, other = Fixed([0.25, 0.75]), Fixed([0.5, 0.5])
    add_on = AttractionKL([other])
    _term(add_on, actor, _batch([1.0])).backward()  # type: ignore[no-untyped-call]  # torch's
    assert actor.logits.grad is not None
    assert actor.logits.grad[0] < 0.0 < actor.logits.grad[1]  # towards one half each
    assert other.logits.requires_grad  # the user's own is left as it was
    assert other.training
    assert not add_on.get_submodule("others.0").training
    assert not any(parameter.requires_grad for parameter in add_on.parameters())
    assert "others.0.logits" in add_on.state_dict()


@pytest.mark.parametrize(
    ("other", "policy", "expected"),
    [
        (DiagonalGaussian(torch.zeros(1, 2), torch.zeros(2)),) * 2 + (0.0,),
        (
            DiagonalGaussian(torch.tensor([[1.0, 0.0]]), torch.zeros(2)),
            DiagonalGaussian(torch.zeros(1, 2), torch.zeros(2)),
            0.5,
        ),
        (
            SquashedGaussian(torch.tensor([[2.0]]), torch.zeros(1)),
            SquashedGaussian(torch.tensor([[0.0]]), torch.zeros(1)),
            2.0,
        ),
        (Bernoulli(torch.zeros(1, 3)), Bernoulli(torch.zeros(1, 3)), 0.0),
        (Deterministic(torch.tensor([[0.5, 0.0]])), Deterministic(torch.zeros(1, 2)), 0.5),
        (
            DiagonalGaussian(torch.tensor([[1.0]]), torch.zeros(1)),
            Deterministic(torch.zeros(1, 1)),
            2.0,
        ),
    ],
)
def test_divergences_of_all_families(
    other: Distribution, policy: Distribution, expected: float
) -> None:
    # Between deterministic actions: ‖a - b‖² / (2 · 0.5²).
    result = policy_divergence(other, policy, action_std=0.5)
    torch.testing.assert_close(result, torch.tensor([expected]))


def test_policies_of_other_families_or_spaces_are_refused() -> None:
    with pytest.raises(DataError, match="Bernoulli and Categorical"):
        policy_divergence(Bernoulli(torch.zeros(1, 2)), Categorical(torch.zeros(1, 2)))
    with pytest.raises(SpaceError, match="action_space"):
        AttractionKL([Fixed([0.3, 0.3, 0.4])]).setup(Fixed([0.5, 0.5]), CPU)
    with pytest.raises(ConfigError, match="recurrent"):
        RepulsionKL([Fixed([0.5, 0.5], memory=3)]).setup(Fixed([0.5, 0.5]), CPU)


def test_a_single_actor_is_named_by_its_class_alone() -> None:
    with pytest.raises(ConfigError, match=r"^policies must be a list, got Fixed"):
        AttractionKL(Fixed([0.5, 0.5]))  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("kind", [RewardPredictor, ReturnPredictor])
def test_predictors_refuse_layers_without_width(
    kind: type[RewardPredictor] | type[ReturnPredictor],
) -> None:
    with pytest.raises(ConfigError, match=r"^hidden_sizes\[1\] must be a whole number of at"):
        kind(hidden_sizes=(4, 0))


@pytest.mark.parametrize(
    ("policies", "options", "message"),
    [
        ([], {}, "at least one"),
        ("runs/one", {}, "policies must be a list, got 'runs/one'"),
        ([3], {}, r"policies\[0\] must be text or an Actor, got 3"),
        (["a", "b"], {"weights": [1.0]}, "got 1 for 2"),
        (["a"], {"weights": [0.0]}, "above 0"),
        (["a"], {"weights": ["a"]}, r"weights\[0\] must be a finite number above 0, got 'a'"),
        (["a"], {"loss_weight": "a"}, "loss_weight must be a finite number of at least 0, got 'a'"),
        (["a"], {"loss_weight": -1.0}, "loss_weight must be a finite number of at least 0"),
        (["a"], {"action_std": 0.0}, "action_std must be a finite number above 0"),
    ],
)
@pytest.mark.parametrize("kind", [AttractionKL, RepulsionKL])
def test_bad_options_are_refused(
    kind: type[PolicyLossAddOn], policies: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(policies, **options)


def test_zero_targets_count_for_less() -> None:
    prediction, target = torch.tensor([2.0, 1.0, 5.0]), torch.tensor([0.0, 3.0, 0.0])
    mask = torch.tensor([1.0, 1.0, 0.0])
    # (½ · ½ · 4 + 1 · ½ · 4) / (½ + 1)
    assert sparse_squared_error(prediction, target, mask, 0.5).item() == pytest.approx(2.0)
    assert sparse_squared_error(prediction, target, mask, 1.0).item() == pytest.approx(2.0)
    unmasked = sparse_squared_error(prediction, target, torch.ones(3), 0.0)
    assert unmasked.item() == pytest.approx((2.0 + 2.0 + 12.5) / 3.0)
    nothing = sparse_squared_error(prediction, torch.zeros(3), mask, 1.0)
    assert nothing.item() == 0.0


@pytest.mark.parametrize("kind", [RewardPredictor, ReturnPredictor])
def test_predictors_learn_their_targets(kind: type[PolicyLossAddOn]) -> None:
    torch.manual_seed(0)
    actor = Fixed([0.5, 0.5])
    add_on = kind(hidden_sizes=(16,))
    add_on.setup(actor, CPU)
    batch = _batch([1.0] * 32)
    assert isinstance(batch.observation, Tensor)
    target = batch.observation[:, 0] + 1.0
    batch = replace(batch, value_target=target, extras={"predicted_reward": target})
    distribution, _ = actor.distribution(batch.observation, {})
    optimizer = torch.optim.Adam(add_on.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        term, _ = add_on.compute_loss_term(batch, distribution, {})
        term.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
    assert term < 0.01


def test_the_reward_predictor_hands_rewards_on_and_keeps_the_largest_error() -> None:
    torch.manual_seed(0)
    actor = Fixed([0.5, 0.5])
    add_on = RewardPredictor(hidden_sizes=())
    add_on.setup(actor, CPU)
    for parameter in add_on.parameters():
        torch.nn.init.zeros_(parameter)
    reward = torch.tensor([[1.0, -3.0], [2.0, 9.0]])
    valid = torch.tensor([[True, True], [True, False]])
    prepared = add_on.prepare(_rollout(reward, valid), torch.Generator())
    assert torch.equal(prepared.columns["predicted_reward"], reward)
    assert add_on.error_threshold.item() == 3.0
    add_on.prepare(_rollout(0.1 * reward, valid), torch.Generator())
    assert add_on.error_threshold.item() == 3.0
    assert "error_threshold" in add_on.state_dict()


def test_the_reward_predictor_takes_the_first_reward_of_replayed_steps() -> None:
    torch.manual_seed(0)
    actor = Fixed([0.5, 0.5])
    add_on = RewardPredictor(hidden_sizes=())
    add_on.setup(actor, CPU)
    for parameter in add_on.parameters():
        torch.nn.init.zeros_(parameter)
    ones = torch.ones(2)
    batch = ReplayBatch(
        observation=torch.zeros(2, 3),
        action=torch.zeros(2, dtype=torch.int64),
        reward=torch.tensor([[2.0, 70.0], [4.0, 70.0]]),
        num_steps=torch.tensor([2, 2]),
        terminated=ones < 0.0,
        next_observation=torch.zeros(2, 3),
        weight=ones,
        mask=ones,
        index=torch.zeros(2, 2, dtype=torch.int64),
    )
    term, _ = add_on.compute_loss_term(batch, Categorical(torch.zeros(2, 2)), {})
    assert term.item() == pytest.approx(0.25 * (4.0 + 16.0))


@pytest.mark.parametrize("kind", [RewardPredictor, ReturnPredictor])
def test_predictors_refuse_numbers_out_of_range(kind: type[PolicyLossAddOn]) -> None:
    for ratio in (1.5, True):
        with pytest.raises(ConfigError, match=r"masked_zero_ratio must be a number in \[0, 1\]"):
            kind(masked_zero_ratio=ratio)
    for weight in (-1.0, "a"):
        with pytest.raises(ConfigError, match="loss_weight must be a finite number of at least 0"):
            kind(loss_weight=weight)
