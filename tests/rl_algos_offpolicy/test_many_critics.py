"""REDQ and DroQ: soft actor-critic with many critics, or with critics that drop out."""

import math
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy import DDPG, SAC, TD3, OffPolicyActor, OffPolicyActorConfig, SACConfig
from rl_core.algorithm import AnyAlgorithm
from rl_core.errors import ConfigError
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
CATEGORIES = spaces.Discrete(3)


def _actor(space: spaces.Space[object] = BOX, seed: int = 0, **options: object) -> OffPolicyActor:
    torch.manual_seed(seed)
    config = OffPolicyActorConfig(hidden_sizes=(8,), **options)  # type: ignore[arg-type]  # of many types
    return OffPolicyActor(VECTOR, space, config)


def _constant(algorithm: SAC, values: list[float]) -> None:
    """Let each critic and its target answer a constant."""
    for critics in (algorithm.actor.critics, algorithm.target_critics):
        ensemble = critics.head
        for parameter in ensemble.parameters():
            parameter.data.zero_()
        ensemble.biases[-1].data += torch.tensor(values).reshape(-1, 1, 1)


class ManyCriticsSuite(AlgorithmSuite):
    __test__ = False
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False
    unweighted_groups: ClassVar[frozenset[str]] = frozenset({"temperature"})


class TestREDQ(ManyCriticsSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> SAC:
        config = SACConfig(num_target_critics=2, policy_value="mean", policy_delay=2)
        return SAC(_actor(seed=seed, num_critics=4), config)


class TestDroQ(ManyCriticsSuite):
    __test__ = True
    has_compile_test: ClassVar[bool] = True

    def make_algorithm(self, seed: int) -> SAC:
        actor = _actor(seed=seed, critic_dropout=0.1, critic_layer_norm=True)
        return SAC(actor, SACConfig(policy_value="mean", policy_delay=2))


class TestDiscreteDroQ(ManyCriticsSuite):
    __test__ = True

    def make_algorithm(self, seed: int) -> SAC:
        actor = _actor(
            CATEGORIES,
            seed,
            num_critics=3,
            critic_dropout=0.1,
            critic_layer_norm=True,
            dueling=True,
        )
        return SAC(actor, SACConfig(num_target_critics=2))


@pytest.mark.parametrize("space", [BOX, CATEGORIES])
def test_targets_take_the_least_of_the_chosen_critics(space: spaces.Space[object]) -> None:
    config = SACConfig(
        num_target_critics=2, gamma=0.5, learn_temperature=False, initial_temperature=1e-9
    )
    algorithm = SAC(_actor(space, num_critics=4), config)
    _constant(algorithm, [4.0, 3.0, 2.0, 1.0])
    batch = make_replay_batch(algorithm, seed=0)
    noise = algorithm.draw_update_noise(batch)
    rewards = algorithm.target(batch, {**noise, "chosen": torch.tensor([0, 1])})
    least = algorithm.target(batch, {**noise, "chosen": torch.tensor([3, 1])})
    discount = 0.5**batch.num_steps * ~batch.terminated
    torch.testing.assert_close(rewards - least, discount * (3.0 - 1.0))


def test_the_chosen_critics_are_drawn_anew_and_all_alike() -> None:
    algorithm = SAC(_actor(num_critics=4), SACConfig(num_target_critics=2))
    batch = make_replay_batch(algorithm, seed=0)
    drawn = [algorithm.draw_update_noise(batch)["chosen"].tolist() for _ in range(600)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = np.bincount(np.array(drawn).reshape(-1), minlength=4)
    assert abs(counts - 300).max() < 5.0 * math.sqrt(600 * 0.25)


def test_the_algorithms_generator_draws_all_noise_and_each_network_has_its_own() -> None:
    algorithm = SAC(_actor(critic_dropout=0.3), SACConfig(num_target_critics=1))
    batch = make_replay_batch(algorithm, seed=0)
    before = torch.get_rng_state()
    noise = algorithm.draw_update_noise(batch)
    assert torch.equal(torch.get_rng_state(), before)
    dropout = [part for name, part in noise.items() if name.startswith("dropout/")]
    assert len(dropout) == 3
    for one, other in combinations(dropout, 2):
        assert not torch.equal(one, other)
    assert not torch.equal(noise["now"], noise["next"])


class Layers(nn.Sequential):
    def __init__(self, in_features: int) -> None:
        super().__init__(nn.Linear(in_features, 6), nn.Tanh())
        self.out_features = 6


def test_the_users_own_critics_are_chosen_too() -> None:
    torch.manual_seed(0)
    config = OffPolicyActorConfig(num_critics=3)
    actor = OffPolicyActor(VECTOR, BOX, config, common_extractor=Layers)
    observation, action, chosen = torch.randn(5, 3), torch.rand(5, 2), torch.tensor([2, 0])
    values = actor.critics(observation, action)
    assert torch.equal(actor.critics(observation, action, None, chosen), values[chosen])


def test_the_policy_climbs_the_mean_of_all_critics() -> None:
    losses = {}
    for name in ("min", "mean"):
        config = SACConfig(policy_value=name, learn_temperature=False, initial_temperature=1e-9)
        algorithm = SAC(_actor(num_critics=3), config)
        _constant(algorithm, [1.0, 2.0, 6.0])
        batch = make_replay_batch(algorithm, seed=0)
        output = algorithm.loss(batch, algorithm.draw_update_noise(batch))
        losses[name] = output.metrics["loss/policy"].item()
        weight = batch.weight.mean().item()
        assert losses[name] == pytest.approx(-weight * (1.0 if name == "min" else 3.0), rel=1e-5)


def test_policy_and_temperature_step_once_per_delay() -> None:
    algorithm = SAC(_actor(num_critics=2), SACConfig(policy_delay=3))
    batch = make_replay_batch(algorithm, seed=0)
    moved = []
    for _ in range(6):
        vectors = algorithm.gradients.vectors
        before = {name: vector.values.clone() for name, vector in vectors.items()}
        algorithm.gradient_step(batch)
        moved.append({n for n, v in vectors.items() if not torch.equal(v.values, before[n])})
    always = {"critic", "target_critics"}
    assert moved == [
        always | ({"policy", "temperature"} if k in (2, 5) else set()) for k in range(6)
    ]


def _changes(algorithm: SAC, name: str) -> set[str]:
    """Say which terms of the loss change with one of the numbers that dropout is drawn by."""
    batch = make_replay_batch(algorithm, seed=0)
    noise = algorithm.draw_update_noise(batch)
    other = {**noise, name: 1.0 - noise[name]}
    terms: list[dict[str, Tensor]] = []
    for drawn in (noise, other):
        metrics = dict(algorithm.loss(batch, drawn).metrics)
        terms.append({key: metrics[key] for key in ("loss/critic", "loss/policy")})
    changed = {key for key in terms[0] if not torch.equal(terms[0][key], terms[1][key])}
    is_target_changed = not torch.equal(
        algorithm.target(batch, noise), algorithm.target(batch, other)
    )
    return changed | ({"target"} if is_target_changed else set())


@pytest.mark.parametrize("space", [BOX, CATEGORIES])
def test_values_targets_and_policy_drop_by_numbers_of_their_own(
    space: spaces.Space[object],
) -> None:
    algorithm = SAC(_actor(space, critic_dropout=0.3), SACConfig())
    assert _changes(algorithm, "dropout/values") == {"loss/critic"}
    assert _changes(algorithm, "dropout/target") == {"loss/critic", "target"}
    assert _changes(algorithm, "dropout/policy") == {"loss/policy"}


def test_nothing_is_dropped_outside_of_updates() -> None:
    actor = _actor(critic_dropout=0.9)
    observation, action = torch.randn(5, 3), torch.rand(5, 2)
    assert torch.equal(
        actor.q_values(observation, action, {}), actor.q_values(observation, action, {})
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_weights": "orthogonl"}, "unknown name 'orthogonl'; did you mean 'orthogonal'"),
        (
            {"initial_weights": "orthogonal", "policy": "greedy", "noisy": True},
            "initial_weights does not go with noisy, whose layers start uniform",
        ),
        ({"critic_dropout": 1.0}, r"critic_dropout must be a number in \[0, 1\)"),
        ({"critic_dropout": 0.1, "policy": "deterministic"}, "set policy to 'stochastic'"),
        ({"critic_dropout": 0.1, "hidden_sizes": ()}, "critic_dropout has no effect on critics w"),
        ({"critic_layer_norm": True, "critic_hidden_sizes": ()}, "critic_layer_norm has no effect"),
        (
            {"critic_dropout": 0.1, "recurrent_net": "gru"},
            "critic_dropout does not go with recurrent_net",
        ),
        (
            {"critic_layer_norm": True, "recurrent_net": "gru"},
            "critic_layer_norm does not go with recurrent_net",
        ),
        (
            {"critic_layer_norm": True, "noisy": True, "policy": "greedy"},
            "does not go with noisy",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffPolicyActorConfig(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_no_more_critics_are_chosen_than_there_are() -> None:
    with pytest.raises(ConfigError, match="num_target_critics=3 must be at most"):
        SAC(_actor(), SACConfig(num_target_critics=3))


@pytest.mark.parametrize("algorithm", [TD3, DDPG])
def test_deterministic_policies_climb_one_critic_and_compute_no_other(
    algorithm: type[AnyAlgorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = algorithm(_actor(policy="deterministic", num_critics=3))
    batch = make_replay_batch(learner, seed=0)
    computed = []
    multiply = torch.baddbmm

    def counted(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        computed.append((len(x), x.requires_grad))
        return multiply(bias, x, weight)

    monkeypatch.setattr(torch, "baddbmm", counted)
    learner.loss(batch, learner.draw_update_noise(batch))
    # Two layers each: the targets, the values that are learned, and the policy's one critic.
    assert [members for members, _ in computed] == [3, 3, 3, 3, 1, 1]
    assert computed[-2] == (1, True)
