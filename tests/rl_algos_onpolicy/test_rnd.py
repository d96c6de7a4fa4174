"""Random network distillation: its numbers, as an add-on, and with PPO."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_onpolicy import (
    A2C,
    PPO,
    RND,
    RNDPPO,
    TRPO,
    VPG,
    OnPolicyActor,
    OnPolicyActorConfig,
    PPOConfig,
    RNDConfig,
    RNDPPOConfig,
)
from rl_algos_onpolicy.ppo import value_loss
from rl_algos_onpolicy.rnd.networks import FeatureNet, NormalizedObservation
from rl_algos_onpolicy.rnd.rnd import KEPT, Novelty
from rl_core.algorithm import AnyAlgorithm, EnvSpec
from rl_core.batch import Rollout
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.torso import CoreKind
from rl_core.returns import AdvantageEstimator, ValueTarget
from rl_core.spaces import Space
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout, random_observation, random_state

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
GIVEN = RNDConfig(pre_normalization_steps=16)
"""For networks that are given."""

SMALL = replace(GIVEN, hidden_sizes=(8,), num_features=4)


class Total(nn.Module):
    """One feature: the sum of all parts, times a learned or fixed factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.factor * torch.cat(parts, -1).sum(-1, keepdim=True)


class Alone(nn.Module):
    """A number in the place of features."""

    def forward(self, parts: list[Tensor]) -> Tensor:
        return parts[0].sum(-1)


def _actor(
    space: Space = VECTOR, memory: CoreKind = "none", *, intrinsic: bool = True
) -> OnPolicyActor:
    config = OnPolicyActorConfig(
        hidden_sizes=(8,),
        recurrent_net=memory,
        recurrent_hidden_size=None if memory == "none" else 4,
        intrinsic_value=intrinsic,
    )
    return OnPolicyActor(space, spaces.Discrete(2), config)


def test_options_of_another_algorithm_are_refused() -> None:
    with pytest.raises(ConfigError, match="config: expected RNDPPOConfig, got PPOConfig"):
        RNDPPO(_actor(), PPOConfig())  # type: ignore[arg-type]  # what is tested


class TestRNDPPO(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False
    looks_past_ends: ClassVar[bool] = True  # intrinsic returns go on

    def make_algorithm(self, seed: int) -> RNDPPO:
        torch.manual_seed(seed)
        return RNDPPO(_actor(), RNDPPOConfig(learning_rate=1e-3, rnd=SMALL))


class TestRecurrentRNDPPO(TestRNDPPO):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> RNDPPO:
        torch.manual_seed(seed)
        return RNDPPO(_actor(memory="gru"), RNDPPOConfig(learning_rate=1e-3, rnd=SMALL))


class TestA2CWithRND(TestRNDPPO):
    has_compile_test: ClassVar[bool] = False
    looks_past_ends: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> A2C:  # type: ignore[override]  # another algorithm
        torch.manual_seed(seed)
        return A2C(_actor(intrinsic=False), add_ons=RND(rnd=SMALL))


def _novelty(gamma: float = 0.5) -> Novelty:
    config = replace(GIVEN, gamma_intrinsic=gamma)
    return Novelty(VECTOR, config, target=Total(0.0), predictor=Total(1.0))


def _rollout(values: list[list[float]], last: list[float], ended: list[list[bool]]) -> Rollout:
    torch.manual_seed(0)
    rollout = make_rollout(RNDPPO(_actor(), RNDPPOConfig(rnd=SMALL)), 0)
    seen = torch.tensor(values)
    flags = torch.tensor(ended)
    return replace(
        rollout,
        observation=torch.stack([seen, torch.zeros_like(seen)], -1),
        next_observation=torch.stack([torch.tensor(last), torch.zeros(len(last))], -1),
        action=torch.zeros(seen.shape, dtype=torch.int64),
        reward=torch.zeros_like(seen),
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_observation=torch.zeros(0, 2),
        terminated=flags,
        truncated=torch.zeros_like(flags),
        valid=torch.ones_like(flags),
        episode_start=torch.zeros_like(flags),
    )


def _always(value: float, head: nn.Module | None) -> None:
    """Let a value function answer one number, whatever it sees."""
    assert head is not None
    for parameter in head.parameters():
        nn.init.constant_(parameter, value if parameter.dim() == 1 else 0.0)


def test_novelty_is_the_squared_distance_of_features() -> None:
    novelty = _novelty()
    seen = torch.tensor([[1.0, 2.0], [0.0, -3.0], [90.0, 0.0]])
    # Sums of 3, -3 and, clipped, 5 against a target of 0.
    assert novelty(seen).tolist() == pytest.approx([9.0, 9.0, 25.0])


def test_sums_are_filtered_forward_across_rollouts_and_episodes() -> None:
    novelty = _novelty(gamma=0.5)
    all_steps = torch.ones(3, 2, dtype=torch.bool)
    first = novelty.filter(torch.tensor([[1.0, 0.0], [2.0, 4.0], [0.0, 8.0]]), all_steps)
    assert first.tolist() == [[1.0, 0.0], [2.5, 4.0], [1.25, 10.0]]
    second = novelty.filter(torch.tensor([[1.0, 1.0]]), all_steps[:1])
    assert second.tolist() == [[1.625, 6.0]]
    with pytest.raises(ConfigError, match="of 3 environments"):
        novelty.filter(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool))


def test_rewards_are_the_novelty_of_what_follows_over_the_spread_of_their_sums() -> None:
    novelty = _novelty(gamma=0.0)
    novelty.normalize.norms = nn.ModuleList([nn.Identity()])  # observations as they are
    rollout = _rollout([[1.0], [2.0], [3.0]], [4.0], [[False], [True], [False]])
    # What follows: 2² = 4, the same 2² = 4 where the episode ends, 4² = 16; σ of 4, 4, 16 is √32.
    reward = novelty.rewards(rollout)
    expected = torch.tensor([[4.0], [4.0], [16.0]]) / 32.0**0.5
    torch.testing.assert_close(reward, expected)


def test_the_final_observation_of_a_truncated_step_is_not_rewarded() -> None:
    novelty = _novelty(gamma=0.0)
    novelty.normalize.norms = nn.ModuleList([nn.Identity()])
    rollout = _rollout([[1.0], [2.0], [3.0]], [4.0], [[False]] * 3)
    expected = torch.tensor([[4.0], [4.0], [16.0]]) / 32.0**0.5
    truncated = replace(
        rollout,
        truncated=torch.tensor([[False], [True], [False]]),
        final_index=torch.tensor([[1, 0]]),
        final_observation=torch.tensor([[90.0, 0.0]]),
    )
    torch.testing.assert_close(novelty.rewards(truncated), expected)


def _with_a_reset() -> Rollout:
    """A rollout whose first row ends an episode; the second sees its end and only resets."""
    ended = [[True], [False], [False], [False]]
    rollout = _rollout([[0.0], [50.0], [10.0], [2.0]], [2.0], ended)
    return replace(rollout, valid=torch.tensor([[True], [False], [True], [True]]))


def test_a_row_that_only_resets_is_not_new_and_has_no_share_in_the_spread() -> None:
    novelty = _novelty(gamma=0.5)
    novelty.normalize.norms = nn.ModuleList([nn.Identity()])  # observations as they are
    reward = novelty.rewards(_with_a_reset())
    # New are 0² = 0 and, beyond the reset, 2² = 4 twice; their sums are 0, 4 and 6.
    variance = (0.0 + 16.0 + 36.0) / 3.0 - (10.0 / 3.0) ** 2
    assert novelty.spread.count == 3.0
    assert novelty.spread.var.item() == pytest.approx(variance)
    expected = torch.tensor([[0.0], [0.0], [4.0], [4.0]]) / variance**0.5
    torch.testing.assert_close(reward, expected)


def test_observations_of_rows_that_only_reset_are_left_out_of_the_statistics() -> None:
    novelty = _novelty()
    novelty.rewards(_with_a_reset())
    (norm,) = novelty.normalize.norms
    assert isinstance(norm, RunningNorm)
    assert norm.count == 3.0
    assert norm.mean.tolist() == pytest.approx([4.0, 0.0])  # of 0, 10 and 2


def test_the_spread_follows_the_last_rollouts() -> None:
    novelty = Novelty(
        VECTOR, replace(GIVEN, gamma_intrinsic=0.0), target=Total(0.0), predictor=Total(1.0)
    )
    novelty.normalize.norms = nn.ModuleList([nn.Identity()])
    ended = [[False]] * 2
    novelty.rewards(_rollout([[0.0], [30.0]], [0.0], ended))  # 900 and 0
    assert novelty.spread.var.item() == pytest.approx(450.0**2)
    novelty.rewards(_rollout([[0.0], [1.0]], [0.0], ended))  # 1 and 0
    # Half the weight on the first: 2 · ½ = 1 sample of mean 450 beside 2 of mean ½ and variance ¼.
    expected = (450.0**2 + 2.0 * 0.25) / 3.0 + (449.5**2) * 2.0 / 9.0
    assert novelty.spread.var.item() == pytest.approx(expected)
    for _ in range(40):
        novelty.rewards(_rollout([[0.0], [1.0]], [0.0], ended))
    assert novelty.spread.var.item() == pytest.approx(0.25, rel=0.01)


def test_the_predictor_has_a_layer_more_than_its_target() -> None:
    novelty = Novelty(VECTOR, RNDConfig(hidden_sizes=(8, 4), num_features=2))
    widths = [
        [part.out_features for part in network.modules() if isinstance(part, nn.Linear)]
        for network in (novelty.target, novelty.predictor)
    ]
    assert widths == [[8, 4, 2], [8, 4, 4, 2]]


def test_what_was_seen_is_no_longer_new_and_what_is_far_still_is() -> None:
    torch.manual_seed(0)
    novelty = Novelty(VECTOR, RNDConfig())
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(512, 2, generator=generator)
    novelty.normalize.update(seen)
    before = novelty(seen).mean()
    optimizer = torch.optim.Adam(novelty.predictor.parameters(), 1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        novelty(seen).mean().backward()
        optimizer.step()
    now = novelty(seen).mean()
    assert now < 0.01 * before
    angle = torch.linspace(0.0, 6.0, 16)
    far = 4.0 * torch.stack([angle.cos(), angle.sin()], -1)
    # A target without biases leaves only 9 times what is left where it was.
    assert novelty(far).mean() > 15.0 * now


def test_the_streams_are_weighed_as_they_are_or_normalized() -> None:
    def advantage(extrinsic: float, intrinsic: float, **options: object) -> Tensor:
        torch.manual_seed(0)
        config = RNDPPOConfig(
            extrinsic_coef=extrinsic,
            intrinsic_coef=intrinsic,
            rnd=SMALL,
            **options,  # type: ignore[arg-type]  # of several types
        )
        algorithm = RNDPPO(_actor(), config)
        rollout = make_rollout(algorithm, 0)
        columns, _ = algorithm.prepare(
            algorithm.add_ons.prepare(rollout, algorithm.generator).rollout
        )
        return columns["advantage"][rollout.valid]

    both = advantage(2.0, 1.0)
    torch.testing.assert_close(both, 2.0 * advantage(1.0, 0.0) + advantage(0.0, 1.0))
    assert advantage(1.0, 0.0).std(correction=0).item() != pytest.approx(1.0, abs=0.02)
    alone = advantage(2.0, 0.0, normalize_streams=True)
    assert alone.std(correction=0).item() == pytest.approx(2.0)
    new = advantage(0.0, 3.0, normalize_streams=True)
    assert new.std(correction=0).item() == pytest.approx(3.0)
    whole = advantage(2.0, 1.0, normalize_advantage="batch")
    torch.testing.assert_close(whole, (both - both.mean()) / both.std(correction=0))
    shifted = advantage(2.0, 1.0, normalize_advantage="none", positive_advantage=True)
    torch.testing.assert_close(shifted, both - both.min())


def test_its_parts_are_those_of_the_options_and_its_metrics_join_those_of_ppo() -> None:
    target, predictor = Total(0.0), Total(1.0)
    config = RNDPPOConfig(rnd=GIVEN, optimizer=OptimizerConfig(name="sgd"))
    algorithm = RNDPPO(_actor(), config, target=target, predictor=predictor)
    assert (algorithm.novelty.target, algorithm.novelty.predictor) == (target, predictor)
    assert algorithm.gradients.optimizer_states["predictor"] == {}  # where Adam has moments
    ppo = PPO(_actor(intrinsic=False))
    rollout = algorithm.add_ons.prepare(make_rollout(algorithm, 0), algorithm.generator).rollout
    _, metrics = algorithm.prepare(rollout)
    _, of_ppo = ppo.prepare(make_rollout(ppo, 0))
    assert metrics.keys() == {*of_ppo, "value/intrinsic_explained_variance"}
    losses = algorithm.loss(make_batch(algorithm, rollout), {}).metrics
    assert losses.keys() >= {*ppo.loss(make_batch(ppo, make_rollout(ppo, 0)), {}).metrics}


@pytest.mark.parametrize("actions", [spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))])
def test_the_default_recipe_is_that_of_ppo_with_scaled_rewards(actions: Space) -> None:
    env = EnvSpec("made-up", VECTOR, actions)
    ppo, recipe = PPO.default_recipe(env), RNDPPO.default_recipe(env)
    actor = {**ppo.actor.kwargs, "intrinsic_value": True}
    assert recipe == replace(
        ppo,
        actor=replace(ppo.actor, kwargs=actor),
        trainer={**ppo.trainer, "scale_rewards": True},
    )


def test_the_loss_puts_the_terms_together() -> None:
    torch.manual_seed(0)
    config = RNDPPOConfig(value_loss_coef=0.25, normalize_advantage="none", rnd=GIVEN)
    algorithm = RNDPPO(_actor(), config, target=Total(0.0), predictor=Total(1.0))
    for head in (algorithm.actor.value_head, algorithm.actor.intrinsic_value_head):
        _always(0.0, head)
    batch = make_batch(algorithm, make_rollout(algorithm, 0))
    targets = {"intrinsic_value_target": torch.full_like(batch.mask, 4.0)}
    batch = replace(
        batch,
        observation=torch.tensor([1.0, 2.0]).expand(len(batch.mask), 2),
        advantage=torch.zeros_like(batch.mask),
        value_target=torch.full_like(batch.mask, 2.0),
        extras={**batch.extras, **targets},
    )
    # Half the squares of 2 and 4 are 2 and 8, and count a quarter; the novelty is (1 + 2)² = 9.
    assert algorithm.loss(batch, {}).loss.item() == pytest.approx(0.25 * 2.0 + 0.25 * 8.0 + 9.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("memory", get_args(CoreKind))
def test_the_loss_computes_each_torso_once_for_both_values(shared: bool, memory: CoreKind) -> None:
    torch.manual_seed(0)
    config = OnPolicyActorConfig(
        hidden_sizes=(8,),
        recurrent_net=memory,
        shared_policy_value_network=shared,
        intrinsic_value=True,
    )
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), config)
    algorithm = RNDPPO(actor, RNDPPOConfig(rnd=SMALL))
    batch = make_batch(algorithm, make_rollout(algorithm, 0))
    passes: list[nn.Module] = []
    torsos = [torso for torso in (actor.policy_torso, actor.value_torso) if torso is not None]
    for torso in torsos:
        torso.register_forward_hook(lambda module, *rest: passes.append(module))
    output = algorithm.loss(batch, {})
    assert passes == torsos
    value, _ = actor.intrinsic_value(batch.observation, batch.state, batch.episode_start)
    expected = value_loss(value, batch.extras["intrinsic_value_target"], batch.mask)
    torch.testing.assert_close(output.metrics["loss/intrinsic_value"], expected)
    evaluation = actor.evaluate_actions(
        batch.observation, batch.action, batch.state, batch.episode_start
    )
    torch.testing.assert_close(evaluation.intrinsic_value, value)


def test_the_intrinsic_value_is_clipped_where_the_extrinsic_one_is() -> None:
    losses = {}
    for clipped in (False, True):
        torch.manual_seed(0)
        config = RNDPPOConfig(use_clipped_value_loss=clipped, clip_range=0.2, rnd=GIVEN)
        algorithm = RNDPPO(_actor(), config, target=Total(0.0), predictor=Total(1.0))
        batch = make_batch(algorithm, make_rollout(algorithm, 0))
        _always(0.0, algorithm.actor.intrinsic_value_head)
        # Values of 0 that were 1, and are to be 0.1.
        columns = {"intrinsic_value": 1.0, "intrinsic_value_target": 0.1}
        filled = {name: torch.full_like(batch.mask, value) for name, value in columns.items()}
        batch = replace(batch, extras={**batch.extras, **filled})
        losses[clipped] = algorithm.loss(batch, {}).metrics["loss/intrinsic_value"].item()
    # Within 0.2 of the old value it would be 0.8, and 0.7 from the target.
    assert losses[False] == pytest.approx(0.5 * 0.1**2)
    assert losses[True] == pytest.approx(0.5 * 0.7**2)


def test_the_intrinsic_stream_does_not_end_with_episodes() -> None:
    torch.manual_seed(0)
    config = RNDPPOConfig(
        extrinsic_coef=0.0, gae_lambda=1.0, rnd=replace(GIVEN, gamma_intrinsic=1.0)
    )
    algorithm = RNDPPO(_actor(), config, target=Total(0.0), predictor=Total(1.0))
    assert algorithm.uses_objects
    _always(0.0, algorithm.actor.intrinsic_value_head)
    never, ends = [[False]] * 3, [[False], [True], [False]]
    seen = [[0.0], [0.0], [0.1]]
    targets = []
    for flags in (never, ends):
        novelty = algorithm.novelty
        novelty.normalize.norms = nn.ModuleList([nn.Identity()])
        novelty.filtered = None
        added = algorithm.add_ons.prepare(_rollout(seen, [3.0], flags), algorithm.generator)
        assert added.metrics["rnd/reward"] > 0.0
        columns, _ = algorithm.prepare(added.rollout)
        targets.append(columns["intrinsic_value_target"])
    # The only large reward comes last, and every earlier step counts it, over the end as well.
    assert targets[1][0] == pytest.approx(float(targets[1][2]), rel=0.02)
    assert targets[1][0] > 0.5


def test_rows_that_only_reset_change_nothing_of_the_intrinsic_stream() -> None:
    """Two steps end an episode, two begin the next: rewards 1, 2, 4, 8 with γ = λ = 0.5.

    The value of an observation is the observation, 1 to 5; that of the episode's last one, 9, and
    of rows that are no steps, is never looked at.
    """
    algorithm = RNDPPO(
        _actor(), RNDPPOConfig(gae_lambda=0.5, rnd=replace(SMALL, gamma_intrinsic=0.5))
    )
    seen = [[1.0], [2.0], [3.0], [4.0]]
    rewards = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    same_step = _rollout(seen, [5.0], [[False], [True], [False], [False]])
    next_step = replace(
        _rollout([*seen[:2], [9.0], *seen[2:]], [5.0], [[False], [True], *[[False]] * 3]),
        valid=torch.tensor([[True], [True], [False], [True], [True]]),
    )
    targets, sums = [], []
    for rollout in (same_step, next_step):
        steps = rollout.valid
        reward = torch.zeros(steps.shape).masked_scatter(steps, rewards)
        columns = _intrinsic_columns(algorithm, replace(rollout, extras={"rnd_reward": reward}))
        targets.append(columns["intrinsic_value_target"][steps])
        algorithm.novelty.filtered = None
        sums.append(algorithm.novelty.filter(reward, steps)[steps])
    # δ = r + V'/2 - V is 1, 1.5, 3 and 6.5; A = δ + A'/4 is 1.6641, 2.6563, 4.625 and 6.5.
    expected = torch.tensor([1.6640625, 2.65625, 4.625, 6.5]) + torch.arange(1.0, 5.0)
    for target in targets:
        torch.testing.assert_close(target, expected)
    for filtered in sums:
        assert filtered.tolist() == [1.0, 2.5, 5.25, 10.625]


@pytest.mark.parametrize(
    ("estimator", "value_target", "advantage", "target"),
    [
        ("gae", "advantage", [1.6640625, 2.65625, 4.625, 6.5], [2.6640625, 4.65625, 7.625, 10.5]),
        ("td", "advantage", [1.0, 1.5, 3.0, 6.5], [2.0, 3.5, 6.0, 10.5]),
        ("td", "return", [1.0, 1.5, 3.0, 6.5], [4.3125, 6.625, 9.25, 10.5]),
        ("return", "td", [4.3125, 6.625, 9.25, 10.5], [2.0, 3.5, 6.0, 10.5]),
        ("baseline", "advantage", [3.3125, 4.625, 6.25, 6.5], [4.3125, 6.625, 9.25, 10.5]),
        # 1 + (2 + 2.65625) / 2 - 1, and so on: one step, then the λ-return as the next value.
        (
            "vtrace",
            "advantage",
            [2.328125, 3.8125, 6.25, 6.5],
            [2.6640625, 4.65625, 7.625, 10.5],
        ),
    ],
)
@pytest.mark.parametrize("resets", [False, True])
def test_both_streams_have_the_estimator_and_the_value_target_of_the_options(
    estimator: AdvantageEstimator,
    value_target: ValueTarget,
    advantage: list[float],
    target: list[float],
    resets: bool,
) -> None:
    """Rewards 1, 2, 4, 8 with γ = λ = 0.5; the values of observations are they, 1 to 5."""
    config = RNDPPOConfig(
        advantage_estimator=estimator,
        value_target=value_target,
        gae_lambda=0.5 if estimator in ("gae", "vtrace") else 0.95,
        extrinsic_coef=0.0,
        rnd=replace(SMALL, gamma_intrinsic=0.5),
    )
    rollout = _rollout([[1.0], [2.0], [3.0], [4.0]], [5.0], [[False], [True], *[[False]] * 2])
    if resets:
        ends = [[False], [True], *[[False]] * 3]
        rollout = replace(
            _rollout([[1.0], [2.0], [9.0], [3.0], [4.0]], [5.0], ends),
            valid=torch.tensor([[True], [True], [False], [True], [True]]),
        )
    steps = rollout.valid
    reward = torch.zeros(steps.shape).masked_scatter(steps, torch.tensor([1.0, 2.0, 4.0, 8.0]))
    columns = _intrinsic_columns(
        RNDPPO(_actor(), config), replace(rollout, extras={"rnd_reward": reward})
    )
    assert columns["advantage"][steps].tolist() == pytest.approx(advantage)
    assert columns["intrinsic_value_target"][steps].tolist() == pytest.approx(target)


def _intrinsic_columns(algorithm: RNDPPO, rollout: Rollout) -> Mapping[str, Tensor]:
    """Prepare a rollout with the observation itself as the intrinsic value."""
    actor = algorithm.actor

    def identity(observation: Tensor, *rest: object) -> tuple[Tensor, dict[str, Tensor]]:
        return observation[..., 0], {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor, "intrinsic_value", identity)
        return algorithm.prepare(rollout)[0]


def test_the_intrinsic_stream_has_a_discount_of_its_own() -> None:
    config = RNDPPOConfig(gae_lambda=0.5, rnd=replace(SMALL, gamma_intrinsic=0.5))
    algorithm = RNDPPO(_actor(), config)
    _always(8.0, algorithm.actor.intrinsic_value_head)
    rollout = _rollout([[0.0]] * 3, [0.0], [[False]] * 3)
    reward = torch.tensor([[1.0], [2.0], [4.0]])
    columns, _ = algorithm.prepare(replace(rollout, extras={"rnd_reward": reward}))
    # Errors of r + ½ · 8 - 8 are -3, -2 and 0; with ¼ of what follows they are -3½, -2 and 0.
    target = columns["intrinsic_value_target"].squeeze(-1)
    assert target.tolist() == pytest.approx([4.5, 6.0, 8.0])


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_the_intrinsic_values_memory_is_carried_to_every_successor(memory: CoreKind) -> None:
    torch.manual_seed(0)
    config = RNDPPOConfig(gae_lambda=0.0, rnd=replace(SMALL, gamma_intrinsic=0.5))
    algorithm = RNDPPO(_actor(memory=memory), config)
    actor = algorithm.actor
    state = random_state(actor, 1, torch.Generator().manual_seed(1))
    rollout = replace(
        _rollout([[1.0], [2.0], [5.0]], [6.0], [[False], [True], [False]]),
        state=state,
        episode_start=torch.tensor([[False], [False], [True]]),
        extras={"rnd_reward": torch.zeros(3, 1)},
    )
    columns, _ = algorithm.prepare(rollout)
    # The true sequences: 1, 2 from the given state, and 5, 6 from zero.
    never = torch.zeros(2, 1, dtype=torch.bool)
    sequences = torch.tensor([[1.0, 2.0], [5.0, 6.0]]).view(2, 2, 1, 1) * torch.tensor([1.0, 0.0])
    first, _ = actor.intrinsic_value(sequences[0], state, never)
    second, _ = actor.intrinsic_value(sequences[1], actor.actor_initial_states(1), never)
    value = torch.cat([first, second]).detach()
    torch.testing.assert_close(columns["intrinsic_value"], value[:-1])
    torch.testing.assert_close(columns["intrinsic_value_target"], 0.5 * value[1:])


@pytest.mark.parametrize("how", ["terminated", "truncated", "reset"])
def test_the_intrinsic_value_after_an_episodes_end_has_no_memory_of_it(how: str) -> None:
    """The first environment's episode ends in the last row, or resets in it; the other goes on."""
    torch.manual_seed(0)
    actor = _actor(memory="gru")
    algorithm = RNDPPO(actor, RNDPPOConfig(rnd=SMALL))
    rollout = _rollout([[1.0, 1.0], [2.0, 2.0]], [6.0, 6.0], [[False, False]] * 2)
    last = torch.tensor([[False, False], [True, False]])
    rollout = replace(
        rollout,
        state=actor.actor_initial_states(2),
        terminated=last & (how == "terminated"),
        truncated=last & (how == "truncated"),
        valid=~last | (how != "reset"),
    )
    _, next_value = algorithm.intrinsic_values(rollout)
    seen = torch.tensor([1.0, 2.0, 6.0]).view(3, 1, 1) * torch.tensor([1.0, 0.0])
    never, empty = torch.zeros(3, 1, dtype=torch.bool), actor.actor_initial_states(1)
    goes_on, _ = actor.intrinsic_value(seen, empty, never)
    begins, _ = actor.intrinsic_value(seen[2:], empty, never[:1])
    torch.testing.assert_close(next_value[1], torch.stack([begins[0, 0], goes_on[2, 0]]))
    assert begins[0, 0] != goes_on[2, 0]


def test_the_predictor_learns_from_a_share_of_the_samples() -> None:
    novelty = _novelty()
    novelty.config = replace(GIVEN, predictor_proportion=0.25)
    rollout = _rollout([[0.0] * 50] * 80, [0.0] * 50, [[False] * 50] * 80)
    kept = novelty.draw_kept(rollout, torch.Generator().manual_seed(0))
    assert set(kept.flatten().tolist()) == {0.0, 1.0}
    assert kept.mean().item() == pytest.approx(0.25, abs=0.03)


def test_only_kept_samples_of_the_mask_count_in_the_loss() -> None:
    torch.manual_seed(0)
    algorithm = RNDPPO(_actor(), RNDPPOConfig(rnd=GIVEN), target=Total(0.0), predictor=Total(1.0))
    batch = make_batch(algorithm, make_rollout(algorithm, 0))
    kept, mask = torch.zeros(2, *batch.mask.shape)
    kept[:3] = mask[1:5] = 1.0  # both hold samples 1 and 2
    two = replace(batch, extras={**batch.extras, KEPT: kept}, mask=mask)
    assert isinstance(batch.observation, Tensor)
    expected = algorithm.novelty(batch.observation[1:3]).mean()
    torch.testing.assert_close(algorithm.novelty.loss(two), expected)


def test_the_add_on_weighs_what_it_adds_to_the_rewards() -> None:
    torch.manual_seed(0)
    add_on = RND(0.5, replace(GIVEN, gamma_intrinsic=0.0), target=Total(0.0), predictor=Total(1.0))
    algorithm = A2C(_actor(intrinsic=False), add_ons=add_on)
    add_on.novelty.normalize.norms = nn.ModuleList([nn.Identity()])  # observations as they are
    rollout = _rollout([[1.0], [2.0], [3.0]], [4.0], [[False], [True], [False]])
    rollout = replace(rollout, reward=torch.tensor([[10.0], [20.0], [30.0]]))
    added = algorithm.add_ons.prepare(rollout, algorithm.generator)
    # Novelties of 2² = 4 twice and 4² = 16, over their spread of √32, by half.
    expected = rollout.reward + torch.tensor([[2.0], [2.0], [8.0]]) / 32.0**0.5
    torch.testing.assert_close(added.rollout.reward, expected)
    assert added.metrics["rnd/reward"].item() == pytest.approx(8.0 / 32.0**0.5)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiBinary(4),
        spaces.Box(0, 255, (40, 40, 4), np.uint8),
        spaces.Box(0, 255, (4, 40, 40, 1), np.uint8),
        spaces.Dict({"a": spaces.Discrete(3), "b": VECTOR}),
    ],
)
def test_any_observation_has_a_novelty_that_shrinks_with_learning(space: Space) -> None:
    torch.manual_seed(0)
    config = replace(SMALL, frame_stack=4 if space.shape == (40, 40, 4) else 1)
    novelty = Novelty(space, config)
    seen = random_observation(space, (6,), np.random.default_rng(0))
    novelty.normalize.update(seen)
    before = novelty(seen)
    assert before.shape == (6,)
    optimizer = torch.optim.Adam(novelty.predictor.parameters(), 3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        novelty(seen).mean().backward()
        optimizer.step()
    assert novelty(seen).mean() < 0.5 * before.mean()
    assert not any(parameter.requires_grad for parameter in novelty.target.parameters())


def test_networks_may_be_given_on_the_device_of_the_actor() -> None:
    device = torch.device("meta")
    target, predictor = (FeatureNet([(2,)], (3,), 4).to(device) for _ in range(2))
    add_on = RND(rnd=GIVEN, target=target, predictor=predictor)
    add_on.setup(_actor(intrinsic=False), device)
    assert add_on.novelty(torch.zeros(5, 2, device=device)).shape == (5,)
    assert {tensor.device.type for tensor in add_on.novelty.state_dict().values()} == {"meta"}
    wrong = FeatureNet([(2,)], (3,), 5).to(device)
    with pytest.raises(ConfigError, match=r"features \(2, 3, 4\), the predictor \(2, 3, 5\)"):
        Novelty(VECTOR, GIVEN, target=target, predictor=wrong, device=device)


def test_running_statistics_and_the_filter_are_saved() -> None:
    torch.manual_seed(0)
    first = RNDPPO(_actor(), RNDPPOConfig(rnd=SMALL))
    fresh = copy.deepcopy(first.state_dict())
    rollout = make_rollout(first, 0)
    first.add_ons.prepare(rollout, first.generator)
    torch.manual_seed(1)
    second = RNDPPO(_actor(), RNDPPOConfig(rnd=SMALL))
    second.load_state_dict(first.state_dict())
    ours, theirs = first.novelty, second.novelty
    assert ours.filtered is not None
    assert theirs.filtered is not None
    assert torch.equal(theirs.filtered, ours.filtered)
    assert torch.equal(theirs.spread.var, ours.spread.var)
    assert ours.spread.count > 0
    assert torch.equal(theirs.rewards(rollout), ours.rewards(rollout))
    second.load_state_dict(fresh)  # of before the first rollout, and without a filter
    assert theirs.filtered is None


def test_categories_are_not_normalized_and_masks_of_actions_not_looked_at() -> None:
    space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(3), "place": spaces.Discrete(3), "real": VECTOR}
    )
    normalize = NormalizedObservation(space)
    assert normalize.shapes == [(3,), (2,)]
    seen = {"place": torch.tensor([2, 2, 0, 2]), "real": torch.zeros(4, 2)}
    normalize.update(seen)
    assert normalize(seen)[0].argmax(-1).tolist() == [2, 2, 0, 2]
    assert set(normalize(seen)[0].flatten().tolist()) == {0.0, 1.0}


def test_only_the_newest_frame_is_looked_at() -> None:
    torch.manual_seed(0)
    space = spaces.Box(0, 255, (40, 40, 4), np.uint8)
    novelty = Novelty(space, replace(SMALL, frame_stack=4))
    image = torch.zeros(1, 40, 40, 4, dtype=torch.uint8)
    older, newest = image.clone(), image.clone()
    older[..., :3] = 200
    newest[..., 3] = 200
    assert novelty(older) == novelty(image)
    assert novelty(newest) != novelty(image)
    with pytest.raises(ConfigError, match="4 channels"):
        Novelty(space, replace(SMALL, frame_stack=3))


@pytest.mark.parametrize("shape", [(4, 40, 40, 3), (4, 3, 40, 40)])
def test_only_the_newest_frame_of_a_stack_is_looked_at(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    space = spaces.Box(0, 255, shape, np.uint8)
    novelty = Novelty(space, SMALL)
    assert novelty.normalize.shapes == [shape[1:]]
    stack = torch.zeros(1, *shape, dtype=torch.uint8)
    older, newest = stack.clone(), stack.clone()
    older[:, :3] = 200
    newest[:, 3] = 200
    assert novelty(older) == novelty(stack)
    assert novelty(newest) != novelty(stack)
    with pytest.raises(ConfigError, match="where frames have an axis of their own"):
        Novelty(space, replace(SMALL, frame_stack=4))


@pytest.mark.parametrize("algorithm", [VPG, A2C, PPO, TRPO])
def test_a_second_value_function_that_nothing_learns_is_refused(
    algorithm: type[AnyAlgorithm],
) -> None:
    with pytest.raises(ConfigError, match=r"actor\.intrinsic_value .* only RNDPPO learns"):
        algorithm(_actor())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor\.intrinsic_value"):
        RNDPPO(_actor(intrinsic=False))
    with pytest.raises(ConfigError, match="target has no effect without predictor; set that too"):
        Novelty(VECTOR, GIVEN, target=Total(1.0))
    with pytest.raises(ConfigError, match=r"features \(2, 3, 1\), the predictor \(2, 3, 4\)"):
        Novelty(VECTOR, GIVEN, target=Total(1.0), predictor=FeatureNet([(2,)], (3,), 4))
    with pytest.raises(ConfigError, match="target must be a Module, or None, got <built-in"):
        Novelty(VECTOR, GIVEN, target=abs, predictor=Total(1.0))  # type: ignore[arg-type]  # none
    one = Total(1.0)
    with pytest.raises(ConfigError, match="target and predictor are one module"):
        Novelty(VECTOR, GIVEN, target=one, predictor=one)
    with pytest.raises(ConfigError, match="target and predictor are one module"):
        A2C(_actor(intrinsic=False), add_ons=RND(rnd=GIVEN, target=one, predictor=one))
    with pytest.raises(ConfigError, match=r"the predictor \(2, 3\); expected \(2, 3, F\)"):
        Novelty(VECTOR, GIVEN, target=one, predictor=Alone())
    with pytest.raises(ConfigError, match="frame_stack=4 is for images"):
        Novelty(VECTOR, replace(SMALL, frame_stack=4))
    with pytest.raises(ConfigError, match="leave the add-on 'rnd' out"):
        RNDPPO(_actor(), add_ons=RND(rnd=SMALL))
    twice = A2C(_actor(intrinsic=False), add_ons=[RND(rnd=SMALL), RND(rnd=SMALL)])
    with pytest.raises(ConfigError, match="two of them give batches a column 'rnd_kept'"):
        twice.add_ons.prepare(make_rollout(twice, 0), twice.generator)
    with pytest.raises(ConfigError, match=r"hidden_sizes\[0\] must be a whole number"):
        RNDConfig(hidden_sizes=(0,))
    with pytest.raises(ConfigError, match=r"predictor_proportion must be a number in \(0, 1\]"):
        RNDConfig(predictor_proportion=0.0)
    with pytest.raises(ConfigError, match=r"spread_decay must be a number in \(0, 1\]"):
        RNDConfig(spread_decay=0.0)
    for coefficient in (-1.0, float("inf"), "1"):
        with pytest.raises(ConfigError, match="reward_coef must be a finite number of at least 0"):
            RND(reward_coef=coefficient)  # type: ignore[arg-type]  # one is no number
    with pytest.raises(ConfigError, match="rnd must be a RNDConfig"):
        RND(rnd={"num_features": 3})  # type: ignore[arg-type]  # no config
    for option in ({"hidden_sizes": (9,)}, {"num_features": 7}):
        with pytest.raises(ConfigError, match=r"rnd\.\w+ has no effect on networks that are given"):
            Novelty(VECTOR, RNDConfig(**option), target=Total(0.0), predictor=Total(1.0))
    maximal = RNDPPOConfig(
        entropy_method="max", stop_entropy_gradient=True, normalize_advantage="none"
    )
    with pytest.raises(ConfigError, match="normalized streams would take out again"):
        replace(maximal, normalize_streams=True)
