"""Which policies, beliefs, tasks and episodes meta-learners take, by numbers worked out by hand.

Two worlds are small enough for that: a choice of two doors of which one is right in each task, and
an encoder and a policy of PEARL that are set to answer the same whatever they see.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rl_train
from rl_algos_onpolicy import OnPolicyActor, OnPolicyActorConfig
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.env import EnvStep, as_numpy
from rl_core.errors import ConfigError, NonFiniteError
from rl_core.gradients.trust_region import constrained_step
from rl_core.types import ArrayLike
from rl_envs.tasks import PointNavigation
from rl_meta import (
    MAML,
    MAMLPPO,
    MAMLTRPO,
    MAMLVPG,
    PEARL,
    ContextConditionedActor,
    ContextConditionedActorConfig,
    MAMLVPGConfig,
    PEARLConfig,
    TaskReplayStorage,
    evaluate_adaptation,
)
from rl_meta.rollouts import stacked, task_batch
from rl_storages import RolloutStorage
from rl_testing.rollouts import make_replay_batch
from rl_train import Trainer

KINDS = (MAMLVPG, MAMLPPO, MAMLTRPO)


# MAML, where one of two doors is right


def _door_opener(kind: type[MAML[Any]] = MAMLVPG, **options: Any) -> MAML[Any]:
    """Return a learner of two tasks, whose policy takes both doors equally often."""
    torch.manual_seed(0)
    world = spaces.Box(-9.0, 9.0, (1,)), spaces.Discrete(2)
    actor = OnPolicyActor(*world, OnPolicyActorConfig(hidden_sizes=(8,)))
    *_, policy = actor.policy_modules  # its last layer
    _set_output(actor.get_submodule(policy), [0.0, 0.0])
    algorithm: MAML[Any] = kind(actor, kind.config_type(**{"meta_batch_size": 2, **options}))
    return algorithm


def _opened_doors(right: tuple[float, float] = (1.0, 1.0), *, pauses: bool = False) -> Rollout:
    """Return episodes of one step, in which each door is opened six times in each of two tasks.

    Door 1 is the right one in the first task, and door 0 in the second.

    Args:
        right: what the right door earns in each task.
        pauses: whether some rows only reset at the end; as often where they would have been right.
    """
    action = (torch.arange(4).unsqueeze(1) + torch.arange(6)) % 2  # (T, B), rows 3 to 5 are task 1
    is_right = torch.cat([action[:, :3] == 1, action[:, 3:] == 0], 1)
    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[3, [0, 1, 3, 4]] = not pauses
    seen = torch.ones(4, 6, 1)
    return Rollout(
        observation=seen,
        next_observation=seen[0],
        action=action,
        reward=is_right * torch.tensor(right).repeat_interleave(3) * valid,
        terminated=valid,
        truncated=torch.zeros_like(valid),
        valid=valid,
        episode_start=torch.ones_like(valid),
        state={},
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_observation=seen[0, :0],
    )


def _batch(algorithm: MAML[Any], policies: Any, rollout: Rollout) -> RolloutBatch:
    return task_batch(rollout, algorithm.estimate(policies, rollout)[0], 2)


def _adapted(algorithm: MAML[Any], adapting: RolloutBatch) -> Any:
    with torch.no_grad():
        return algorithm.adapt(algorithm.unadapted(2), adapting)


def _meta_batch(algorithm: MAML[Any], judged: Rollout) -> tuple[RolloutBatch, RolloutBatch]:
    """Return the batch of one step of adaptation, and that of a whole meta-update."""
    with torch.no_grad():
        first = _batch(algorithm, algorithm.unadapted(2), _opened_doors())
        second = _batch(algorithm, _adapted(algorithm, first), judged)
    return first, stacked([first, second])


def _right_door(algorithm: MAML[Any], policies: Any) -> list[float]:
    """Return how likely each task's policy takes its right door."""
    likely = []
    for task, door in enumerate((1, 0)):
        own = {name: value[task] for name, value in policies.items()}
        distribution = algorithm.distribution_at(own, torch.ones(1, 1))
        likely.append(float(distribution.log_prob(torch.tensor([door])).exp()))
    return likely


def test_advantages_go_on_from_the_final_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Tensor] = []

    def fit(features: Tensor, returns: Tensor, *_: Any) -> Tensor:
        fitted.append(returns)
        weights = torch.tensor([1.0, 0.0, 100.0, 0.0, 0.0, 0.0], dtype=torch.float64)
        return weights.expand(2, -1)  # V = the observation + the steps since the episode began

    monkeypatch.setattr("rl_meta.maml.fit_baseline", fit)
    algorithm = _door_opener(gamma=0.5, gae_lambda=0.25, normalize_advantage=False)

    def both(*rows: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(rows, dtype=dtype).unsqueeze(1).expand(-1, 2)

    flags = torch.bool
    rollout = Rollout(  # of two tasks with the same rows; the second row is truncated
        observation=both(1.0, 2.0, 3.0).unsqueeze(-1),
        next_observation=torch.full((2, 1), 5.0),
        action=both(0, 0, 0, dtype=torch.int64),
        reward=both(1.0, 2.0, 4.0),
        terminated=both(0, 0, 0, dtype=flags),
        truncated=both(0, 1, 0, dtype=flags),
        valid=both(1, 1, 1, dtype=flags),
        episode_start=both(1, 0, 1, dtype=flags),
        state={},
        final_index=torch.tensor([[1, 0], [1, 1]]),
        final_observation=torch.full((2, 1), 8.0),
    )
    columns, mean_return = algorithm.estimate(algorithm.unadapted(2), rollout)
    # V is 1, 3, 3 and that of what follows 3, 10, 6; so the errors are 1.5, 4, 4.
    for column, expected in (("advantage", [2.0, 4.0, 4.0]), ("value_target", [3.0, 7.0, 7.0])):
        assert columns[column].T.tolist() == [expected, expected]
    assert fitted[0].tolist() == [[2.0, 2.0, 4.0]] * 2
    assert mean_return.item() == 3.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_meta_step_makes_adapted_policies_prefer_what_earned_more(kind: type) -> None:
    more = {} if kind is MAMLTRPO else {"outer_lr": 0.05}
    algorithm = _door_opener(kind, **more)
    adapting, batch = _meta_batch(algorithm, _opened_doors())
    before = _right_door(algorithm, _adapted(algorithm, adapting))
    assert min(before) > 0.55
    metrics = algorithm.meta_step(batch)
    after = _right_door(algorithm, _adapted(algorithm, adapting))
    assert all(now > then + 0.005 for now, then in zip(after, before, strict=True))
    # What gains in one task loses in the other, until a policy has adapted.
    assert _right_door(algorithm, algorithm.unadapted(2)) == pytest.approx([0.5, 0.5], abs=1e-5)
    if kind is MAMLTRPO:
        divergence = [
            then * math.log(then / now) + (1.0 - then) * math.log((1.0 - then) / (1.0 - now))
            for now, then in zip(after, before, strict=True)
        ]
        assert 0.005 < statistics.fmean(divergence) <= 0.01
        assert metrics["policy/kl"].item() == pytest.approx(statistics.fmean(divergence), rel=1e-3)


def test_the_surrogate_is_minus_the_advantage_averaged_over_each_task_at_first() -> None:
    algorithm = _door_opener(MAMLTRPO)
    _, batch = _meta_batch(algorithm, _opened_doors(pauses=True))
    advantage = batch.advantage.clone()
    advantage[1, 0], advantage[1, 1] = 2.0, 4.0
    advantage[1][batch.mask[1] == 0.0] = 1e3  # does not count
    output = algorithm.compute_loss(replace(batch, advantage=advantage), {})
    assert output.loss.item() == pytest.approx(-3.0, rel=1e-5)
    assert output.metrics["policy/kl"].item() == pytest.approx(0.0, abs=1e-6)


def test_the_divergence_is_from_the_policies_that_collected_to_those_adapted_now() -> None:
    algorithm = _door_opener(MAMLTRPO)
    adapting, batch = _meta_batch(algorithm, _opened_doors(pauses=True))
    before = _right_door(algorithm, _adapted(algorithm, adapting))
    *_, policy = algorithm.actor.policy_modules
    _set_output(algorithm.actor.get_submodule(policy), [1.5, 0.0])
    now = _right_door(algorithm, _adapted(algorithm, adapting))
    expected = statistics.mean(
        p * math.log(p / q) + (1.0 - p) * math.log((1.0 - p) / (1.0 - q))
        for p, q in zip(before, now, strict=True)
    )
    divergence = algorithm.compute_loss(batch, {}).metrics["policy/kl"].item()
    assert divergence == pytest.approx(expected, rel=1e-4)


def test_the_options_of_the_constrained_step_reach_it() -> None:
    chosen = {"cg_steps": 3, "cg_damping": 0.2, "num_backtracks": 4, "max_kl": 0.25}
    algorithm = _door_opener(MAMLTRPO, **chosen)
    batch = _meta_batch(algorithm, _opened_doors())[1]
    with mock.patch("rl_meta.maml_trpo.constrained_step", wraps=constrained_step) as step:
        algorithm.meta_step(batch)
    arguments, options = step.call_args
    names = ("num_cg_steps", "damping", "num_backtracks")
    assert [*(options[name] for name in names), arguments[2]] == [*chosen.values()]
    assert algorithm.gradients.count == 1


def test_advantages_are_normalized_within_each_task() -> None:
    rollout = _opened_doors((1.0, 10.0), pauses=True)
    # Half of the doors are right, so that the baseline is half of what they earn.
    is_right = rollout.reward > 0.0
    sign = torch.where(is_right, 1.0, -1.0) * rollout.valid
    half = torch.tensor([0.5, 5.0]).repeat_interleave(3)
    for normalize_advantage, expected in ((False, sign * half), (True, sign)):
        algorithm = _door_opener(normalize_advantage=normalize_advantage)
        columns, _ = algorithm.estimate(algorithm.unadapted(2), rollout)
        got = columns["advantage"][rollout.valid]
        torch.testing.assert_close(got, expected[rollout.valid], atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adaptation_that_is_not_finite_changes_no_policy(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = _door_opener(kind, inner_lr=3e38, normalize_advantage=False)
    before = {name: value.clone() for name, value in algorithm.adapted.items()}
    storage = RolloutStorage(num_steps=4)
    monkeypatch.setattr(storage, "rollout", lambda: _opened_doors((100.0, 100.0)))
    monkeypatch.setattr(storage, "after_update", lambda: None)
    with pytest.raises(NonFiniteError, match=r"adapting to a rollout .* Lower inner_lr"):
        algorithm.update(storage)
    assert all(torch.equal(value, before[name]) for name, value in algorithm.adapted.items())

    algorithm.gradients.guard.mode = "skip"
    meta_steps = algorithm.schedule.num_epochs
    for num_skipped in (1, 1 + meta_steps):  # the adaptation, and the meta-steps through it
        algorithm.update(storage)
        assert all(torch.equal(value, before[name]) for name, value in algorithm.adapted.items())
        assert algorithm.gradients.guard.num_skipped == num_skipped


# MAML, on the plane


def _point_mover(**options: Any) -> MAML[Any]:
    torch.manual_seed(0)
    envs = PointNavigation()
    world = envs.single_observation_space, envs.single_action_space
    actor = OnPolicyActor(
        *world, OnPolicyActorConfig(hidden_sizes=(8,), squash_actions=True, initial_log_std=-0.5)
    )
    return MAMLVPG(actor, MAMLVPGConfig(**{"meta_batch_size": 2, **options}))


def test_training_acts_with_the_policy_that_each_task_adapted() -> None:
    algorithm = _point_mover(inner_lr=1.0)
    Trainer(PointNavigation(4), algorithm, RolloutStorage(50), seed=1).train(total_updates=1)
    generator = torch.Generator().manual_seed(0)
    place = torch.full((4, 2), 0.2)
    noise = algorithm.actor.draw_noise((1,), generator).expand(4, -1)
    got = algorithm.explore(place, {}, noise)
    for task in range(2):
        policy = algorithm.get_exploration_policy()
        named = dict(policy.named_parameters())
        with torch.no_grad():
            for name, value in algorithm.adapted.items():
                named[name.removeprefix("actor.")].copy_(value[task])
        rows = slice(2 * task, 2 * task + 2)
        expected = policy.get_action(place[rows], {}, noise[rows])
        torch.testing.assert_close(got.action[rows], expected.action)
        torch.testing.assert_close(got.env_action[rows], expected.env_action)
    unadapted = algorithm.actor.get_action(place, {}, noise).action
    pairs = ((got.action[0], got.action[2]), (got.action[0], unadapted[0]))
    assert all((one - other).abs().max() > 1e-3 for one, other in pairs)


# PEARL, whose encoder and policy are set


def _told_actor(transitions: int) -> ContextConditionedActor:
    """Return an actor whose belief is N((1, -1), 0.25 I) after so many transitions.

    The mode of its policy is the hyperbolic tangent of the latent.
    """
    torch.manual_seed(0)
    envs = PointNavigation()
    config = ContextConditionedActorConfig(
        latent_dim=2, encoder_hidden_sizes=(4,), inner_options={"hidden_sizes": []}
    )
    actor = ContextConditionedActor(envs.single_observation_space, envs.single_action_space, config)
    variance = 0.25 * transitions  # of one of them
    spread = variance + math.log(-math.expm1(-variance))  # of which softplus is the variance
    with torch.no_grad():
        _set_output(actor.encoder, [1.0, -1.0, spread, spread])
        weight = _set_output(actor.inner.get_submodule("policy"), [0.0, 0.0, -1.0, -1.0])
        weight[0, 2] = weight[1, 3] = 1.0  # behind the two parts of the place
    return actor


@torch.no_grad()
def _set_output(network: nn.Module, bias: Sequence[float]) -> Tensor:
    """Make a network answer the same to everything, and return its last layer's weights."""
    *_, weight, last = network.parameters()
    weight.zero_()
    last.copy_(torch.tensor(bias))
    return weight


def _latents(action: Tensor) -> Tensor:
    """Return the latents by which a policy of `_told_actor` chose modes, by task `(2, R, 2)`."""
    return torch.atanh(action.detach()).view(2, -1, 2)


def _assert_drawn_from(latents: Tensor, mean: Sequence[float], std: float) -> None:
    """Require that rows differ, and that those of each task have these moments."""
    wanted = torch.tensor([mean, mean])
    torch.testing.assert_close(latents.mean(1), wanted, atol=0.25 * std, rtol=0.0)
    spread = torch.full_like(wanted, std)
    torch.testing.assert_close(latents.std(1), spread, atol=0.0, rtol=0.2)
    rows = latents.flatten(0, 1)
    assert len(_as_set(rows)) > 0.9 * len(rows)


def _pearl_batch(algorithm: PEARL) -> ReplayBatch:
    """Return four transitions of each of four tasks, and as many in each context."""
    batch = make_replay_batch(algorithm, 1)
    context = make_replay_batch(algorithm, 2)
    columns = ("observation", "action", "next_observation")
    extras = {f"context/{name}": getattr(context, name).view(4, 4, 2) for name in columns}
    extras["context/reward"] = context.reward[:, 0].view(4, 4)
    return replace(batch, extras=extras)


def _told_pearl(**options: Any) -> PEARL:
    return PEARL(_told_actor(4), PEARLConfig(num_sampled_tasks=4, **options))


def test_the_divergence_from_the_prior_counts_as_often_as_its_coefficient_says() -> None:
    losses = []
    for kl_coef in (0.0, 0.1, 2.0):
        algorithm = _told_pearl(kl_coef=kl_coef)
        batch = _pearl_batch(algorithm)
        noise = {name: torch.zeros(16, 2) for name in ("now", "next")}
        losses.append(algorithm.loss(batch, {**noise, "latent": torch.zeros(4, 2)}).loss.item())
    # ½ (μ² + σ² - 1 - log σ²) with μ² = 1 and σ² = ¼, in each of two dimensions
    divergence = 0.25 + math.log(4.0)
    assert losses[1] - losses[0] == pytest.approx(0.1 * divergence, rel=1e-3)
    assert losses[2] - losses[0] == pytest.approx(2.0 * divergence, rel=1e-3)


@pytest.mark.parametrize("deviation", [0.0, 2.0, -3.0])
def test_losses_are_those_of_latents_drawn_from_the_belief(deviation: float) -> None:
    algorithm = _told_pearl(kl_coef=0.0)
    batch = _pearl_batch(algorithm)
    noise = {name: torch.zeros(16, 2) for name in ("now", "next")}
    drawn = deviation + torch.arange(4.0).unsqueeze(1).expand(4, 2)  # others for each task
    got = algorithm.loss(batch, {**noise, "latent": drawn})
    latent = torch.tensor([1.0, -1.0]) + 0.5 * drawn

    def behind(place: Any) -> Tensor:
        return torch.cat([place, latent.repeat_interleave(4, 0)], 1)

    conditioned = replace(
        batch,
        observation=behind(batch.observation),
        next_observation=behind(batch.next_observation),
        extras={},
    )
    expected = algorithm.inner.compute_loss(conditioned, noise)
    assert got.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    for name in ("loss/critic", "loss/policy"):
        assert got.metrics[name].item() == pytest.approx(expected.metrics[name].item(), rel=1e-5)


def test_smoothness_compares_actions_of_neighbours_with_the_same_latent() -> None:
    smoothness = {"spatial_smoothness": 2.0, "temporal_smoothness": 1.0, "smoothness_std": 0.1}
    algorithm = _told_pearl(inner_options=smoothness)
    bias = [0.0, 0.0, -1.0, -1.0]
    weight = _set_output(algorithm.actor.inner.get_submodule("policy"), bias)
    with torch.no_grad():
        weight[0, 0] = weight[0, 2] = 1.0  # tanh(x + z)
    batch, ones = _pearl_batch(algorithm), torch.ones(16)
    batch = replace(batch, reward=batch.reward[:, :1], weight=ones, mask=ones)
    noise = {**algorithm.draw_update_noise(batch), "latent": torch.zeros(4, 2)}
    assert noise["nearby"][:, :2].all()
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    here, after = batch.observation[:, 0] + 1.0, batch.next_observation[:, 0] + 1.0
    nearby = here + 0.1 * noise["nearby"][:, 0]
    temporal = (here.tanh() - after.tanh()).abs().mean()
    spatial = (here.tanh() - nearby.tanh()).abs().mean()
    got = algorithm.loss(batch, noise).metrics["loss/smoothness"].item()
    assert got == pytest.approx((temporal + 2.0 * spatial).item(), rel=1e-4)
    with pytest.raises(ConfigError, match="began without smoothness"):
        _told_pearl().update_algorithm_parameter("spatial_smoothness", 1.0)


def test_updates_draw_a_latent_for_each_task() -> None:
    algorithm = _told_pearl()
    batch = _pearl_batch(algorithm)
    drawn = torch.stack([algorithm.draw_update_noise(batch)["latent"] for _ in range(500)])
    assert drawn.shape == (500, 4, 2)
    torch.testing.assert_close(drawn.mean(0), torch.zeros(4, 2), atol=0.2, rtol=0.0)
    torch.testing.assert_close(drawn.std(0), torch.ones(4, 2), atol=0.15, rtol=0.0)


@pytest.mark.parametrize(
    ("coefs", "expected"),
    [
        ({"policy_mean_coef": 0.5}, 0.5 * (0.25 + 4.0) / 2.0),
        ({"policy_std_coef": 0.5}, 0.5 * (1.0 + 0.09) / 2.0),
        ({"policy_mean_coef": 2.0, "policy_std_coef": 3.0}, 4.25 + 1.5 * 1.09),
        (
            {"policy_pre_activation_coef": 0.5},
            0.5 * (0.25 + math.exp(-2.0) + 4.0 + math.exp(0.6)),
        ),
    ],
)
def test_means_logarithms_of_spreads_and_unsquashed_actions_cost_their_squares(
    coefs: dict[str, float], expected: float
) -> None:
    losses = []
    for given in ({}, coefs):
        algorithm = _told_pearl(**given)
        _set_output(algorithm.actor.inner.get_submodule("policy"), [0.5, -2.0, -1.0, 0.3])
        noise = {name: torch.zeros(16, 2) for name in ("now", "next")}
        noise["latent"] = torch.zeros(4, 2)
        losses.append(algorithm.loss(_pearl_batch(algorithm), noise).loss.item())
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-4)


def test_each_row_collects_with_a_latent_of_its_own() -> None:
    envs = PointNavigation(400)
    config = PEARLConfig(
        num_train_tasks=2, num_sampled_tasks=2, num_posterior_rollouts=1, num_extra_rollouts=0
    )
    algorithm = PEARL(_told_actor(3 * 200), config)
    storage = TaskReplayStorage(3, capacity=2_000, meta_batch_size=2, context_size=10)
    trainer = Trainer(envs, algorithm, storage, seed=1)
    # All tasks at once, then a rollout by the prior, and one by the posterior of its transitions.
    for total, mean, std in ((0, (0.0, 0.0), 1.0), (1, (0.0, 0.0), 1.0), (2, (1.0, -1.0), 0.5)):
        if total:
            trainer.train(total_updates=total)
        algorithm.before_rollout(envs)
        nothing = torch.zeros(400, 2)
        latents = _latents(algorithm.explore(nothing, {}, nothing).action)
        _assert_drawn_from(latents, mean, std)
        again = _latents(algorithm.explore(nothing, {}, nothing).action)
        assert torch.equal(again, latents)  # one for the whole rollout


def test_each_row_explores_with_a_latent_of_its_own() -> None:
    algorithm = PEARL(_told_actor(3 * 200), PEARLConfig(num_sampled_tasks=2))
    generator, nothing = torch.Generator().manual_seed(0), torch.zeros(400, 2)
    beliefs = algorithm.unadapted(2)
    for mean, std in (((0.0, 0.0), 1.0), ((1.0, -1.0), 0.5)):
        explorers = algorithm.explorers(beliefs, 400, generator)
        action, _ = algorithm.act(explorers, nothing, None)
        _assert_drawn_from(_latents(action), mean, std)
        judged, _ = algorithm.act(beliefs, nothing, None)
        wanted = torch.tensor(mean).expand(2, 200, 2)
        torch.testing.assert_close(_latents(judged), wanted)
        rollout = _standing_still(3, 400)
        beliefs = algorithm.adapt_to(beliefs, rollout)


def test_only_transitions_tell_of_a_task() -> None:
    algorithm = PEARL(_told_actor(6), PEARLConfig(num_sampled_tasks=2))
    rollout = _standing_still(5, 4)
    rollout.valid[3:] = False  # which leaves three steps in each of a task's two rows
    belief = algorithm.adapt_to(algorithm.unadapted(2), rollout)
    torch.testing.assert_close(belief["std"], torch.full((2, 2), 0.5))


def _standing_still(num_steps: int, num_envs: int) -> Rollout:
    shape = num_steps, num_envs
    no, yes = (torch.full(shape, flag) for flag in (False, True))
    place = torch.zeros(*shape, 2)
    return Rollout(
        observation=place,
        next_observation=place[0],
        action=place,
        reward=torch.zeros(shape),
        terminated=no,
        truncated=no,
        valid=yes,
        episode_start=no,
        state={},
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_observation=place[0, :0],
    )


# Both, on the plane: which tasks, and which episodes


class _WatchedPoints(PointNavigation):
    """Notes the tasks that it is given, and where its points were after each step."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, num_train_tasks=3, num_test_tasks=3)
        self.given: set[tuple[float, ...]] = set()
        self.places: list[Tensor] = []

    def set_tasks(self, tasks: Tensor) -> None:
        self.given |= _as_set(tasks)
        super().set_tasks(tasks)

    def step(self, action: ArrayLike) -> EnvStep:
        outcome = super().step(action)
        self.places.append(torch.from_numpy(np.array(as_numpy(outcome.successor))))
        return outcome


def _as_set(rows: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in rows.tolist()}


def _maml(num_exploration_episodes: int = 1) -> MAML[Any]:
    return _point_mover(num_grad_updates=2, num_exploration_episodes=num_exploration_episodes)


def _pearl(num_exploration_episodes: int = 2) -> PEARL:
    config = PEARLConfig(
        num_train_tasks=3,
        num_sampled_tasks=2,
        num_minibatches=1,
        minibatch_size=4,
        num_exploration_episodes=num_exploration_episodes,
    )
    return PEARL(_told_actor(100), config)


MAKERS = pytest.mark.parametrize("make", [_maml, _pearl], ids=["maml", "pearl"])


@MAKERS
def test_train_tasks_are_learned_and_test_tasks_are_evaluated(make: Callable[[], Any]) -> None:
    algorithm, envs = make(), _WatchedPoints(4)
    generator = torch.Generator().manual_seed(0)
    train, test = (_as_set(envs.sample_tasks(3, generator, name)) for name in ("train", "test"))
    assert not train & test
    is_maml = isinstance(algorithm, MAML)
    storage: Any = RolloutStorage(2) if is_maml else TaskReplayStorage(2, meta_batch_size=2)
    Trainer(envs, algorithm, storage, seed=1).train(total_updates=15)
    assert envs.given == train
    envs.given.clear()
    evaluate_adaptation(algorithm, envs, 3)
    assert envs.given == test


def _rollouts_adapted_to(
    algorithm: Any, envs: PointNavigation, monkeypatch: pytest.MonkeyPatch
) -> list[Rollout]:
    """Evaluate on two tasks, and return what the steps of adaptation were given."""
    adapt_to, noted = algorithm.adapt_to, []

    def note(policies: Any, rollout: Rollout) -> Any:
        noted.append(rollout)
        return adapt_to(policies, rollout)

    monkeypatch.setattr(algorithm, "adapt_to", note)
    evaluate_adaptation(algorithm, envs, 2)
    return noted


@MAKERS
def test_evaluations_adapt_to_episodes_of_exploration(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = _WatchedPoints(2)
    rollouts = _rollouts_adapted_to(make(), envs, monkeypatch)
    # An episode has 100 steps; those that count are the first, the third and the fifth.
    episodes = torch.stack(envs.places).view(5, 100, 2, 2)
    assert len(rollouts) == 2
    for rollout, counted, explored in zip(rollouts, episodes[::2], episodes[1::2], strict=False):
        assert isinstance(rollout.observation, Tensor)
        torch.testing.assert_close(rollout.observation[1:], explored[:-1])
        assert (explored - counted).abs().amax((0, 2)).min() > 0.1


@pytest.mark.parametrize(("num_envs", "asked"), [(2, 3), (4, 4), (8, 1), (8, 3), (4, 3)])
def test_maml_adapts_to_as_many_episodes_as_asked_for_in_any_number_of_rows(
    num_envs: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = _rollouts_adapted_to(_maml(asked), PointNavigation(num_envs), monkeypatch)
    assert [_episodes_of_each_task(rollout) for rollout in rollouts] == [[asked, asked]] * 2


@pytest.mark.parametrize("num_envs", [2, 8])
def test_pearl_adapts_to_one_episode_at_a_time_in_any_number_of_rows(
    num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = _rollouts_adapted_to(_pearl(3), PointNavigation(num_envs), monkeypatch)
    assert [_episodes_of_each_task(rollout) for rollout in rollouts] == [[1, 1]] * 3


def _episodes_of_each_task(rollout: Rollout) -> list[int]:
    ends = (rollout.terminated | rollout.truncated) & rollout.valid
    counts: list[int] = ends.sum(0).view(2, -1).sum(1).tolist()
    return counts


# What must be the same in training and in evaluations, and what is frozen


@pytest.mark.parametrize("algorithm", ["maml-vpg", "pearl"])
def test_rewards_that_evaluations_do_not_change_are_refused(algorithm: str) -> None:
    for option in ({"training_reward_scale": 0.1}, {"training_reward_clip": 1.0}):
        with pytest.raises(ConfigError, match=f"env.{next(iter(option))} changes rewards in train"):
            rl_train.make(
                algorithm, "PendulumPhysics-v0", options={"env": {"num_envs": 2, **option}}
            )
    agent = rl_train.make(algorithm, "PointNavigation-v0", scale_rewards=True)
    with pytest.raises(ConfigError, match="scale_rewards scales rewards in training, but not in"):
        agent.train(total_updates=1, progress=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learn_inner_lr", [False, True])
def test_what_is_frozen_neither_adapts_nor_learns(
    kind: type[MAML[Any]], learn_inner_lr: bool
) -> None:
    envs = PointNavigation(4)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    options = {"meta_batch_size": 2, "learn_inner_lr": learn_inner_lr}
    algorithm = kind(actor, kind.config_type(**options))
    named = dict(actor.named_parameters())
    prefixes = tuple(actor.policy_modules)
    frozen, *others = (name for name in named if name.startswith(prefixes))
    named[frozen].requires_grad_(False)
    before = {name: value.detach().clone() for name, value in named.items()}
    trainer = Trainer(envs, algorithm, RolloutStorage(100), seed=0)
    trainer.train(total_updates=2, progress=False)
    assert torch.equal(named[frozen], before[frozen])
    assert any(not torch.equal(named[name], before[name]) for name in others)
    trainer.train(total_updates=3, progress=False)
    adapted = algorithm.adapted[f"actor.{frozen}"]
    assert torch.equal(adapted, before[frozen].expand_as(adapted))
