"""Add-ons by name: from recipes and the command line, into checkpoints, and back."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import rl_train
from rl_algos_offpolicy import DDPG, DQN, SAC, TD3, OffPolicyActor, OffPolicyActorConfig
from rl_algos_onpolicy import A2C, PPO, OnPolicyActor, OnPolicyActorConfig
from rl_algos_onpolicy.add_ons import AttractionKL, RepulsionKL, ReturnPredictor, RewardPredictor
from rl_command.main import main
from rl_core.errors import ConfigError, PluginError
from rl_core.gradients import masked_mean
from rl_core.stateful import StateReader
from rl_core.types import Json
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.rollouts import make_batch, make_rollout
from rl_train.builder import build, compose
from rl_train.builder.describe import describe_component
from rl_train.checkpoint import read_run
from rl_train.recipe_files import from_toml, load_recipe, to_toml

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SMALL: dict[str, dict[str, Json]] = {
    "env": {"num_envs": 2},
    "storage": {"num_steps": 8},
    "actor": {"hidden_sizes": [4]},
}


def _on_policy(action_space: spaces.Space[object] = BOX) -> OnPolicyActor:
    return OnPolicyActor(VECTOR, action_space, OnPolicyActorConfig(hidden_sizes=(8,)))


def _off_policy(policy: str) -> OffPolicyActor:
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(8,))  # type: ignore[arg-type]  # one of its choices
    return OffPolicyActor(VECTOR, BOX, config)


class TestA2CWithAddOns(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> A2C:
        torch.manual_seed(seed)
        actor = _on_policy()
        return A2C(
            actor,
            add_ons=[
                AttractionKL([_on_policy(), _on_policy()]),
                RepulsionKL([_on_policy()]),
                RewardPredictor((4,)),
                ReturnPredictor((4,)),
            ],
        )


class TestRecurrentPPOWithAddOns(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> PPO:
        torch.manual_seed(seed)
        config = OnPolicyActorConfig(hidden_sizes=(8,), recurrent_net="lstm")
        actor = OnPolicyActor(VECTOR, BOX, config)
        return PPO(actor, add_ons=[AttractionKL([_on_policy()]), RepulsionKL([_on_policy()])])


class TestSACWithAddOns(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False
    is_smooth: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> SAC:
        torch.manual_seed(seed)
        actor = _off_policy("stochastic")
        return SAC(actor, add_ons=[AttractionKL([_off_policy("stochastic")]), RewardPredictor()])


class TestTD3WithAddOns(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False
    is_smooth: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> TD3:
        torch.manual_seed(seed)
        return TD3(_off_policy("deterministic"), add_ons=RepulsionKL([_off_policy("stochastic")]))


class TestDDPGWithAddOns(AlgorithmSuite):
    has_compile_test: ClassVar[bool] = False
    is_smooth: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> DDPG:
        torch.manual_seed(seed)
        return DDPG(
            _off_policy("deterministic"), add_ons=[AttractionKL([_off_policy("deterministic")])]
        )


def test_returns_are_not_predicted_from_replayed_transitions() -> None:
    with pytest.raises(ConfigError, match=r"ReturnPredictor reads RolloutBatch, .* ReplayBatch"):
        SAC(_off_policy("stochastic"), add_ons=ReturnPredictor())


def test_deterministic_policies_are_compared_in_units_of_the_learner() -> None:
    wide = spaces.Box(-2.0, 2.0, (2,), np.float32)
    expert = OffPolicyActor(VECTOR, wide, OffPolicyActorConfig(policy="deterministic"))
    learner = OnPolicyActor(VECTOR, wide, OnPolicyActorConfig(hidden_sizes=(8,)))
    add_on = AttractionKL([expert], action_std=0.5)
    algorithm = PPO(learner, add_ons=[add_on])
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    distribution, _ = learner.distribution(batch.observation, {})
    term, _ = add_on.compute_loss_term(batch, distribution, {})
    theirs, _ = expert.distribution(batch.observation, {})
    between = expert.to_env_action(theirs.mode()) - distribution.mode()  # torques of both
    assert expert.to_env_action(theirs.mode()).abs().max() > theirs.mode().abs().max()
    expected = masked_mean(between.square().sum(-1) / (2.0 * 0.5**2), batch.mask)
    torch.testing.assert_close(term, expected)


def test_a_deviation_of_actions_that_nobody_needs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"action_std=0\.5 has no effect here, because no policy"):
        PPO(_on_policy(), add_ons=[AttractionKL([_on_policy()], action_std=0.5)])


def test_two_add_ons_of_a_kind_are_both_logged() -> None:
    near, far = AttractionKL([_on_policy()]), AttractionKL([_on_policy()], loss_weight=2.0)
    algorithm = PPO(_on_policy(), add_ons=[near, far])
    metrics = algorithm.compute_loss(make_batch(algorithm, make_rollout(algorithm, seed=1))).metrics
    assert {name for name in metrics if "attraction" in name} == {
        "loss/attraction",
        "loss/attraction_2",
    }


def test_greedy_policies_have_no_distance_from_others() -> None:
    choices = spaces.Discrete(3)
    greedy = OffPolicyActor(VECTOR, choices, OffPolicyActorConfig(policy="greedy"))
    with pytest.raises(ConfigError, match=r"no divergence .*; expected a policy of the same kind$"):
        PPO(_on_policy(choices), add_ons=[AttractionKL([greedy])])


def test_an_add_on_that_was_refused_may_be_used_elsewhere() -> None:
    choices, add_on = spaces.Discrete(3), RewardPredictor((4,))
    greedy = OffPolicyActor(VECTOR, choices, OffPolicyActorConfig(policy="greedy"))
    with pytest.raises(ConfigError, match="takes no add-ons"):
        DQN(greedy, add_ons=[add_on])
    A2C(_on_policy(), add_ons=[add_on])


def test_an_add_on_belongs_to_one_algorithm() -> None:
    add_on = RewardPredictor()
    A2C(_on_policy(), add_ons=add_on)
    for again in (add_on, [RewardPredictor(), add_on]):
        with pytest.raises(ConfigError, match="this RewardPredictor belongs to an algorithm alr"):
            PPO(_on_policy(), add_ons=again)
    twice = RewardPredictor()
    with pytest.raises(ConfigError, match="one RewardPredictor is there twice; make a new one"):
        PPO(_on_policy(), add_ons=[twice, twice])


def test_a_recipe_names_add_ons_with_all_their_options() -> None:
    options: dict[str, dict[str, Json]] = {
        **SMALL,
        "algorithm": {"add_ons": [{"name": "reward-predictor", "loss_weight": 0.5}]},
    }
    recipe = compose("ppo", "CartPole-v1", options)
    tables = recipe.algorithm["add_ons"]
    assert isinstance(tables, list)
    assert tables[0] == {
        "name": "reward-predictor",
        "hidden_sizes": [64, 64],
        "loss_weight": 0.5,
        "masked_zero_ratio": 0.0,
    }
    assert from_toml(to_toml(recipe)) == recipe
    parts = build(recipe)
    parts.envs.close()
    (add_on,) = parts.algorithm.add_ons
    assert isinstance(add_on, RewardPredictor)
    assert add_on.loss_weight == 0.5
    assert describe_component("algorithm", parts.algorithm) == recipe.algorithm


def test_objects_among_add_ons_are_custom() -> None:
    named = PPO(_on_policy(), add_ons=RewardPredictor())
    assert not describe_component("algorithm", named).is_custom
    given = PPO(_on_policy(), add_ons=[RewardPredictor(), AttractionKL([_on_policy()])])
    assert describe_component("algorithm", given).is_custom


@pytest.mark.parametrize(
    ("add_ons", "error", "message"),
    [
        ("reward-predictor", ConfigError, "expected a list of tables with names"),
        ([{"loss_weight": 1.0}], ConfigError, r"add_ons\[0\].*expected a table with a name"),
        ([{"name": "reward-predicter"}], PluginError, "did you mean 'reward-predictor'"),
        ([{"name": "reward-predictor", "weight": 1.0}], ConfigError, "add_on.weight: unknown"),
    ],
)
def test_bad_add_ons_in_recipes_are_refused(
    add_ons: Json, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compose("ppo", "CartPole-v1", {**SMALL, "algorithm": {"add_ons": add_ons}})


def test_a_run_with_add_ons_is_resumed_from_the_command_line(tmp_path: Path) -> None:
    expert, run_dir = tmp_path / "expert", tmp_path / "run"
    small = ["--num-envs", "2", "--storage.num-steps", "8", "--actor.hidden-sizes", "4"]
    start = ["train", "ppo", "CartPole-v1", *small, "--algorithm.minibatch-size", "8"]
    assert main([*start, "--total-steps", "16", "--run-dir", str(expert)]) == 0
    config = tmp_path / "config.toml"
    config.write_text(
        '[[algorithm.add_ons]]\nname = "reward-predictor"\n'
        f'[[algorithm.add_ons]]\nname = "attraction-kl"\npolicies = ["{expert}"]\n'
    )
    run = [*start, "--config", str(config), "--run-dir", str(run_dir), "--total-steps", "16"]
    assert main(run) == 0
    before, of_expert = _learned(run_dir), _learned(expert)
    expert.rename(tmp_path / "elsewhere")  # the run has what it needs of it
    assert main(["resume", str(run_dir), "--total-steps", "32"]) == 0
    assert main(["eval", str(run_dir), "--episodes", "1"]) == 0
    rl_train.load(run_dir).close()
    after = _learned(run_dir)
    assert after["add_ons.0.error_threshold"] >= before["add_ons.0.error_threshold"] > 0.0
    weight = "add_ons.0.network.1.out.weight"
    assert not torch.equal(after[weight], before[weight])
    attracting = "add_ons.1.others.0."
    own = {name: tensor for name, tensor in after.items() if name.startswith(attracting)}
    assert own
    for name, tensor in own.items():
        assert torch.equal(tensor, of_expert[f"actor.{name.removeprefix(attracting)}"])


def test_a_new_run_needs_the_runs_whose_policies_it_looks_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[[algorithm.add_ons]]\nname = "attraction-kl"\npolicies = ["nowhere"]\n')
    assert main(["train", "ppo", "CartPole-v1", "--config", str(config), "--total-steps", "9"]) == 2
    assert "policies[0]: nowhere is not a run: it is not a directory" in capsys.readouterr().err


def _learned(run_dir: Path) -> dict[str, Tensor]:
    state = StateReader(read_run(run_dir).state, "checkpoint")
    return dict(state.reader("algorithm").tensors("modules"))


def test_the_command_line_takes_add_ons_as_tables(tmp_path: Path) -> None:
    add_ons = "[{name = 'return-predictor', hidden_sizes = [4]}]"
    words = ["train", "a2c", "CartPole-v1", "--algorithm.add-ons", add_ons, "--total-steps", "80"]
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 0
    recipe = load_recipe(tmp_path / "run" / "recipe.toml")
    assert recipe.algorithm["add_ons"][0]["hidden_sizes"] == [4]  # type: ignore[index,call-overload]  # a list of tables
