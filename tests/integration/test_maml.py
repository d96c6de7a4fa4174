from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils._pytree import tree_map

from rl_algos_onpolicy import VPG, OnPolicyActor, OnPolicyActorConfig
from rl_core import plugins
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import Linear
from rl_core.env import EnvStep, TaskSplit, TaskVecEnv
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise
from rl_core.gradients.trust_region import Parameters, constrained_step
from rl_core.nn.layers import LayerConfig
from rl_core.types import Array, ArrayLike, Json, Observation
from rl_envs import make_vec
from rl_envs.tasks import PointNavigation
from rl_meta import (
    MAML,
    MAMLPPO,
    MAMLTRPO,
    MAMLVPG,
    MAMLVPGConfig,
    collect_episodes,
    evaluate_adaptation,
)
from rl_meta.rollouts import stacked, task_batch
from rl_storages import RolloutStorage
from rl_testing.stateful import check_same_state
from rl_train import Callback, Trainer, TrainerConfig, evaluate_policy
from rl_train.builder import compose
from rl_train.evaluation import summarize

STAGES = ("before adaptation", "after step 1", "after step 2")
KINDS = (MAMLVPG, MAMLPPO, MAMLTRPO)


def _algorithm(kind: type[MAML[Any]] = MAMLVPG, **options: Any) -> MAML[Any]:
    torch.manual_seed(0)
    envs = PointNavigation()
    world = envs.single_observation_space, envs.single_action_space
    actor = OnPolicyActor(
        *world, OnPolicyActorConfig(hidden_sizes=(8,), squash_actions=True, initial_log_std=-0.5)
    )
    config = kind.config_type(**{"meta_batch_size": 2, **options})
    algorithm: MAML[Any] = kind(actor, config)
    return algorithm


def _trainer(
    algorithm: MAML[Any], run_dir: Path | None = None, envs: Any = None, num_steps: int = 50
) -> Trainer:
    return Trainer(
        envs or PointNavigation(4), algorithm, RolloutStorage(num_steps), seed=1, run_dir=run_dir
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_bit_for_bit_in_the_middle_of_a_meta_update(
    kind: type, tmp_path: Path
) -> None:
    whole = _trainer(_algorithm(kind, num_grad_updates=2))
    whole.train(total_updates=7)
    first = _trainer(_algorithm(kind, num_grad_updates=2), tmp_path)
    first.train(total_updates=4)
    second = _trainer(_algorithm(kind, num_grad_updates=2), tmp_path)
    second.resume()
    second.train(total_updates=7)
    check_same_state(second.algorithm.state_dict(), whole.algorithm.state_dict())
    check_same_state(second.collector.state_dict(), whole.collector.state_dict())


def test_episodes_that_rollouts_break_off_are_not_counted() -> None:
    for num_steps in (50, 99):
        with pytest.raises(ConfigError, match=f"rollout of {num_steps} steps, in which one of up"):
            _trainer(_algorithm(), num_steps=num_steps).train(total_episodes=1)
    assert _trainer(_algorithm(), num_steps=100).train(total_episodes=1).total_episodes == 4


def test_tasks_by_name_are_learned_and_evaluated_like_any_other() -> None:
    torch.manual_seed(0)
    envs = make_vec("PendulumPhysics-v0", 4, env_kwargs={"num_train_tasks": 5})
    assert isinstance(envs, TaskVecEnv)
    world = envs.single_observation_space, envs.single_action_space
    actor = OnPolicyActor(*world, OnPolicyActorConfig(hidden_sizes=(8,)))
    algorithm = MAMLVPG(actor, MAMLVPGConfig(meta_batch_size=2, num_judged_episodes=3))
    trainer = _trainer(algorithm, envs=envs, num_steps=200)
    trainer.train(total_updates=2)
    assert trainer.resume_grade == "exact"
    stages = evaluate_adaptation(algorithm, envs, num_episodes=2)
    for stage in stages.values():
        assert len(stage.returns) == 2
        assert max(stage.returns) < 0.0
        assert stage.lengths == [200] * 6  # one row of a task plays two of its three episodes


def test_meta_parameters_move_after_the_last_rollout_only() -> None:
    algorithm = _algorithm(num_grad_updates=2)
    trainer = _trainer(algorithm)
    before = {name: value.clone() for name, value in algorithm.policy_parameters().items()}
    for total, moved in ((1, False), (2, False), (3, True)):
        trainer.train(total_updates=total)
        now = algorithm.policy_parameters()
        assert all(torch.equal(now[name], before[name]) is not moved for name in before)
        for name, value in algorithm.adapted.items():
            assert torch.equal(value[0], now[name]) is moved
            assert torch.equal(value[0], value[1]) is moved  # each task's own policy


def _rollouts(algorithm: MAML[Any], count: int) -> Any:
    """Collect two tasks' rollouts of the policy before adaptation."""
    envs = PointNavigation(4)
    generator = torch.Generator().manual_seed(0)
    envs.set_tasks(torch.tensor([[0.4, 0.0], [0.0, -0.4]]).repeat_interleave(2, 0))

    def choose(observation: Observation) -> tuple[Tensor, Tensor]:
        noise = algorithm.actor.draw_noise((4,), generator)
        return algorithm.act(algorithm.adapted, observation, noise)

    return [collect_episodes(envs, choose, 1, torch.device("cpu")) for _ in range(count)]


def _in_double(column: Tensor) -> Tensor:
    return column.double() if column.is_floating_point() else column


@pytest.mark.parametrize("kind", KINDS)
def test_the_meta_gradient_agrees_with_finite_differences(kind: type) -> None:
    algorithm = _algorithm(kind)
    kept = [
        task_batch(rollout, algorithm.estimate(algorithm.adapted, rollout)[0], 2)
        for rollout in _rollouts(algorithm, 2)
    ]
    batch = tree_map(_in_double, stacked(kept))
    algorithm.actor.double()
    algorithm.inner.actor.double()
    parameters = {n: p.detach() for n, p in algorithm.policy_parameters().items()}
    generator = torch.Generator().manual_seed(1)
    direction = {
        n: torch.randn(p.shape, generator=generator).double() for n, p in parameters.items()
    }

    def loss(distance: Tensor) -> Tensor:
        moved = {n: p + distance * direction[n] for n, p in parameters.items()}
        return algorithm.compute_loss(batch, {}, moved).loss

    at = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(at), at)
    h = 1e-5
    with torch.no_grad():
        measured = (loss(torch.tensor(h)) - loss(torch.tensor(-h))) / (2.0 * h)
    assert slope.item() == pytest.approx(measured.item(), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("learn_inner_lr", [False, True])
def test_the_constrained_step_is_that_of_the_twice_differentiated_divergence(
    learn_inner_lr: bool,
) -> None:
    algorithm = _algorithm(
        MAMLTRPO, num_grad_updates=2, learn_inner_lr=learn_inner_lr, cg_damping=1e-3
    )
    rollouts = _rollouts(algorithm, 3)
    algorithm.actor.double()
    algorithm.modules["step_sizes"].double()
    adapted = {name: value.double() for name, value in algorithm.adapted.items()}
    kept = []
    for rollout in rollouts:
        assert isinstance(rollout.observation, Tensor)
        exact = replace(
            rollout, observation=rollout.observation.double(), action=rollout.action.double()
        )
        batch = task_batch(exact, algorithm.estimate(adapted, exact)[0], 2)
        kept.append(tree_map(_in_double, batch))
        with torch.no_grad():
            adapted = algorithm.adapt(adapted, kept[-1])
    batch = stacked(kept)
    named = algorithm.named_parameters()
    start = {
        name: named[name].detach().clone()
        for name in named
        if name in algorithm.policy_parameters() or name.startswith("step_sizes.")
    }

    def objective(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        output = algorithm.compute_loss(batch, {}, parameters)
        return output.loss, output.metrics["policy/kl"]

    expected = constrained_step(objective, start, 0.01, damping=1e-3)
    assert expected.fraction > 0.0
    algorithm.meta_step(batch)
    for name, value in expected.parameters.items():
        torch.testing.assert_close(named[name].detach(), value)


def test_every_task_and_rollout_has_a_baseline_of_its_own() -> None:
    algorithm = _algorithm()
    first, second = _rollouts(algorithm, 2)
    values = [algorithm.estimate(algorithm.adapted, one)[0]["value"] for one in (first, second)]
    assert not torch.equal(values[0], values[1])
    two = algorithm.adapt_to(algorithm.adapted, first)
    assert all(not torch.equal(value[0], value[1]) for value in two.values())
    explained = 1.0 - (values[0] - _returns(first)).var() / _returns(first).var()
    assert explained > 0.9


def _returns(rollout: Any) -> Tensor:
    returns = torch.zeros_like(rollout.reward)
    total = torch.zeros_like(rollout.reward[0])
    for row in reversed(range(len(rollout.reward))):
        total = rollout.reward[row] + 0.99 * total
        returns[row] = total
    return returns


def test_a_policy_adapts_by_hand_as_it_does_in_evaluations() -> None:
    algorithm = _algorithm(num_grad_updates=2)
    rollouts = _rollouts(algorithm, 2)
    policy = algorithm.get_exploration_policy()
    names = dict(policy.named_parameters())
    adapted = algorithm.adapt_policy(policy, rollouts)
    moved = {n for n, p in adapted.named_parameters() if not torch.equal(p, names[n])}
    assert moved == {name.removeprefix("actor.") for name in algorithm.policy_parameters()}
    expected = {name: value[:1] for name, value in algorithm.adapted.items()}
    for rollout in rollouts:
        expected = algorithm.adapt_to(expected, rollout)
    for name, parameter in adapted.named_parameters():
        if name in moved:
            torch.testing.assert_close(parameter, expected[f"actor.{name}"][0])


def test_evaluations_report_every_stage_and_change_nothing() -> None:
    algorithm = _algorithm(num_grad_updates=2, num_exploration_episodes=1)
    before = {name: value.clone() for name, value in algorithm.named_parameters().items()}
    results = [evaluate_policy(algorithm, PointNavigation(4), 6, seed=2) for _ in range(2)]
    assert results[0].stages == results[1].stages
    assert list(results[0].stages) == ["oracle", *STAGES]
    assert all(len(stage.returns) == 6 for stage in results[0].stages.values())
    assert results[0].returns == results[0].stages["after step 2"].returns
    for stage in results[0].stages.values():
        assert stage.ci95 == summarize(stage.returns, seed=2).ci95
    assert "before adaptation" in str(results[0])
    check_same_state(dict(algorithm.named_parameters()), before)


@pytest.mark.parametrize("deterministic", [True, False])
def test_only_exploration_draws_actions(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = _algorithm(num_exploration_episodes=1)
    act, drawn = algorithm.act, []

    def note(adapted: Any, observation: Observation, noise: Tensor | None) -> Any:
        drawn.append(noise is not None)
        return act(adapted, observation, noise)

    monkeypatch.setattr(algorithm, "act", note)
    evaluate_policy(algorithm, PointNavigation(2), 2, deterministic=deterministic)
    judged = [not deterministic] * 100
    assert drawn == [*judged, *[True] * 100, *judged]
    drawn.clear()
    evaluate_policy(algorithm, PointNavigation(2), 2, deterministic=deterministic, explore=True)
    assert drawn == [True] * 300


def test_too_few_test_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="only 3 test tasks"):
        evaluate_adaptation(_algorithm(), PointNavigation(4, num_test_tasks=3), 4)
    with pytest.raises(
        ConfigError, match="num_episodes must be a whole number of at least 1, got 0"
    ):
        evaluate_adaptation(_algorithm(), PointNavigation(4), 0)


class _TrainedGoals(PointNavigation):
    """Tests the goals that it trains with."""

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        return super().sample_tasks(count, generator, "train")


def test_test_tasks_that_were_trained_on_are_warned_about() -> None:
    algorithm = _algorithm(num_exploration_episodes=1)
    with pytest.warns(RuntimeWarning, match="2 of 2 test tasks are train tasks too"):
        evaluate_adaptation(algorithm, _TrainedGoals(4, num_train_tasks=3), 2)
    evaluate_adaptation(algorithm, PointNavigation(4, num_train_tasks=3, num_test_tasks=3), 2)


@pytest.mark.parametrize(("num_train_tasks", "expected"), [(None, [2]), (3, [3] * 10)])
def test_a_warning_asks_for_no_more_tasks_at_once_than_there_are(
    num_train_tasks: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs, drawn = PointNavigation(4, num_train_tasks=num_train_tasks), []
    sample_tasks = envs.sample_tasks

    def note(count: int, generator: torch.Generator, split: TaskSplit = "train") -> Tensor:
        drawn.append((split, count))
        return sample_tasks(count, generator, split)

    monkeypatch.setattr(envs, "sample_tasks", note)
    evaluate_adaptation(_algorithm(num_exploration_episodes=1), envs, 2)
    assert drawn == [("test", 2), *(("train", count) for count in expected)]


class _RarelyTrainedGoals(PointNavigation):
    """Has one goal that may be trained with and tested."""

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        tasks = super().sample_tasks(count, generator, split)
        tasks[0] = 0.25
        return tasks


def test_one_of_many_test_tasks_may_be_a_train_task_by_chance() -> None:
    algorithm = _algorithm(num_exploration_episodes=1)
    evaluate_adaptation(algorithm, _RarelyTrainedGoals(25), 25)
    with pytest.warns(RuntimeWarning, match="1 of 2 test tasks are train tasks too"):
        evaluate_adaptation(algorithm, _RarelyTrainedGoals(2), 2)


@pytest.mark.parametrize("num_envs", [2, 4, 6])
def test_a_policy_is_judged_by_as_many_episodes_as_it_says(num_envs: int) -> None:
    algorithm = _algorithm(num_exploration_episodes=1, num_judged_episodes=2)
    envs = _Numbered(num_envs)
    # Both episodes of a task are in its one row, or one each in the first two of its rows.
    returns = {2: [0.0, 100.0], 4: [50.0, 250.0], 6: [50.0, 350.0]}[num_envs]
    for name, stage in evaluate_adaptation(algorithm, envs, 2).items():
        if name != "oracle":
            assert stage.lengths == [100] * 4
            assert stage.returns == returns


class _Numbered(PointNavigation):
    """Rewards each step with the number of the row."""

    def step(self, action: ArrayLike) -> EnvStep:
        return replace(super().step(action), reward=np.arange(self.num_envs, dtype=np.float32))


def test_limits_of_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_episode_steps=5, but MAMLVPG evaluates whole"):
        evaluate_policy(_algorithm(), PointNavigation(4), 2, max_episode_steps=5)
    trainer = Trainer(
        PointNavigation(4),
        _algorithm(),
        RolloutStorage(50),
        test_envs=partial(PointNavigation, 2),
        config=TrainerConfig(max_test_steps=5),
    )
    with pytest.raises(ConfigError, match="max_test_steps=5, but MAMLVPG evaluates whole"):
        trainer.train(total_updates=1)


def test_learned_step_sizes_have_one_beginning() -> None:
    with pytest.raises(ConfigError, match=r"inner_lr=linear.* changes, but learn_inner_lr"):
        MAMLVPGConfig(inner_lr=Linear(0.1, 0.0), learn_inner_lr=True)
    with pytest.raises(ConfigError, match="inner_lr is where learned step sizes begin"):
        _algorithm(learn_inner_lr=True).update_algorithm_parameter("inner_lr", 0.2)
    _algorithm().update_algorithm_parameter("inner_lr", 0.2)


class _Weighted(VPG):
    """Reads a column of its own."""

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        output = super().loss(batch, noise)
        return replace(output, loss=output.loss * batch.extras["weight"].mean())


def test_an_inner_loss_that_reads_columns_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = plugins.load
    monkeypatch.setattr(
        plugins, "load", lambda kind, name: _Weighted if name == "weighted" else load(kind, name)
    )
    trainer = _trainer(_algorithm(inner_algorithm="weighted"))
    with pytest.raises(ConfigError, match="loss of inner_algorithm='weighted' reads 'weight' of"):
        trainer.train(total_updates=2)


def test_tasks_of_which_there_are_only_a_few_are_warned_about_too() -> None:
    envs = make_vec("HalfCheetahDir-v0", 2, env_kwargs={"max_episode_steps": 3})
    assert isinstance(envs, TaskVecEnv)
    torch.manual_seed(0)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    algorithm = MAMLVPG(actor, MAMLVPGConfig(meta_batch_size=2, num_exploration_episodes=1))
    with pytest.warns(RuntimeWarning, match="HalfCheetahDir-v0: 2 of 2 test tasks are train"):
        evaluate_adaptation(algorithm, envs, 2)


@pytest.mark.parametrize(
    "config",
    [
        TrainerConfig(num_test_episodes=4),
        TrainerConfig(num_test_episodes=1, final_test_episodes=4),
    ],
)
def test_more_test_tasks_than_there_are_are_refused_before_a_run(config: TrainerConfig) -> None:
    trainer = Trainer(
        PointNavigation(4),
        _algorithm(),
        RolloutStorage(50),
        test_envs=partial(PointNavigation, 2, num_test_tasks=3),
        config=config,
    )
    with pytest.raises(ConfigError, match="only 3 test tasks"):
        trainer.train(total_updates=1)
    assert trainer.total_steps == 0


@pytest.mark.parametrize(("num_envs", "rows"), [(2, 1), (8, 4), (12, 6), (14, 7)])
def test_a_step_of_adaptation_learns_from_as_many_episodes_as_it_says(
    num_envs: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, adapted_to = _algorithm(num_exploration_episodes=6), []
    adapt_to = algorithm.adapt_to

    def note(policies: Parameters, rollout: Rollout) -> dict[str, Tensor]:
        begun = (rollout.episode_start & rollout.valid).sum(0)
        adapted_to.append(begun.view(2, -1).sum(1).tolist())
        assert len(begun) == 2 * min(rows, 6)
        return adapt_to(policies, rollout)

    monkeypatch.setattr(algorithm, "adapt_to", note)
    evaluate_adaptation(algorithm, PointNavigation(num_envs), 2)
    assert adapted_to == [[6, 6]]


def test_an_evaluation_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    algorithm = _algorithm(num_exploration_episodes=1)

    def note(num_episodes: int, num_steps: int) -> None:
        told.append((num_episodes, num_steps))

    evaluate_policy(algorithm, PointNavigation(2), 3, on_step=note)
    # Two tasks at once and then one, each before, exploring and after.
    assert [steps for _, steps in told] == list(range(2, 1202, 2))
    assert [done for done, _ in told] == [0] * 300 + [2] * 300


class _Reaching(PointNavigation):
    """Succeeds in its second row."""

    def step(self, action: ArrayLike) -> EnvStep:
        return replace(super().step(action), info={"is_success": np.arange(self.num_envs) == 1})


def test_successes_and_lengths_are_those_of_the_judged_episodes() -> None:
    result = evaluate_policy(_algorithm(num_exploration_episodes=1), _Reaching(2), 2)
    assert result.success_rate == 0.5
    assert result.mean_length == 100.0
    assert {stage.success_rate for stage in result.stages.values()} == {None, 0.5}
    assert result.stages["oracle"].success_rate is None


def test_episodes_are_collected_on_any_device() -> None:
    device = torch.device("meta")
    actions = torch.zeros(2, 2)
    rollout = collect_episodes(PointNavigation(2), lambda _: (actions, actions), 1, device)
    assert len(rollout.final_index) == 2
    parts = (rollout.observation, rollout.reward, rollout.final_index, rollout.final_observation)
    assert {part.device for part in parts if isinstance(part, Tensor)} == {device}


def test_an_environment_that_changes_its_action_leaves_the_stored_one() -> None:
    class Scaling(gymnasium.Env[Array, Array]):
        observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Array, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            np.multiply(action, 100.0, out=action)
            return np.zeros(1, np.float32), float(action.sum()), True, False, {}

    actions = torch.ones(2, 2)
    with make_vec(Scaling, 2) as envs:
        rollout = collect_episodes(envs, lambda _: (actions, actions), 1, torch.device("cpu"))
    assert rollout.action.tolist() == [[[1.0, 1.0], [1.0, 1.0]]]
    assert rollout.reward.tolist() == [[200.0, 200.0]]


@pytest.mark.parametrize(
    "number",
    [0, -1, 1.5, True, None, "1", np.array([1, -1]), np.array([0, 0]), np.array([1, 1, 1])],
)
def test_less_than_one_episode_cannot_be_collected(number: Any) -> None:
    with pytest.raises(ConfigError, match="num_episodes must be a whole number"):
        collect_episodes(PointNavigation(2), lambda _: 1 / 0, number, torch.device("cpu"))  # type: ignore[arg-type, return-value]  # not called


def test_there_is_nothing_to_adapt_to_without_transitions() -> None:
    algorithm = _algorithm()
    actions = torch.zeros(2, 2)
    cpu = torch.device("cpu")
    rollout = collect_episodes(PointNavigation(2), lambda _: (actions, actions), 1, cpu)
    empty = replace(rollout, valid=torch.zeros_like(rollout.valid))
    with pytest.raises(ConfigError, match="no transitions; collect exploration episodes"):
        algorithm.adapt_policy(algorithm.get_exploration_policy(), [empty])
    with pytest.raises(ConfigError, match="rollouts must be a list, got Rollout"):
        algorithm.adapt_policy(algorithm.get_exploration_policy(), cast("Any", rollout))


@pytest.mark.parametrize("algorithm", ["maml-vpg", "pearl"])
def test_a_rollout_is_as_long_as_an_episode_by_default(algorithm: str) -> None:
    assert compose(algorithm, "HalfCheetahVel-v0").storage["num_steps"] == 200
    short: Json = {"max_episode_steps": 50}
    recipe = compose(algorithm, "HalfCheetahVel-v0", {"env": {"env_kwargs": short}})
    assert recipe.storage["num_steps"] == 50


class _Hidden(gymnasium.Env[Any, Any]):
    """Rewards one of two actions, that of the task; shows numbers or noise."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space = deepcopy(observation_space)

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        return torch.randint(2, (count, 1), generator=generator).float()

    def set_task(self, task: Array) -> None:
        self.task = int(task[0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(action == self.task)
        return self.observation_space.sample(), reward, False, self.steps == 5, {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Dict({"image": spaces.Box(0, 255, (1, 8, 8), np.uint8), "kind": spaces.Discrete(4)}),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.filterwarnings("ignore:.*test tasks are train tasks")
def test_policies_of_categories_and_images_adapt(
    kind: type[MAML[Any]], space: spaces.Space[Any]
) -> None:
    torch.manual_seed(0)
    envs = make_vec(partial(_Hidden, space), 4, vectorization="sync")
    options = OnPolicyActorConfig(hidden_sizes=(8,))
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, options)
    config = kind.config_type(meta_batch_size=2, inner_lr=0.5, num_exploration_episodes=2)
    algorithm = kind(actor, config)
    before = {name: value.clone() for name, value in algorithm.policy_parameters().items()}
    _trainer(algorithm, envs=envs, num_steps=5).train(total_updates=8)  # 4 steps, which may fail
    now = algorithm.policy_parameters()
    assert not all(torch.equal(value, before[name]) for name, value in now.items())
    evaluate_adaptation(algorithm, envs, 2)


def test_environments_without_tasks_are_refused() -> None:
    envs = make_vec("Pendulum-v1", 4)
    torch.manual_seed(0)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    algorithm = MAMLVPG(actor, MAMLVPGConfig(meta_batch_size=2))
    with pytest.raises(ConfigError, match="and Pendulum-v1 is one"):
        _trainer(algorithm, envs=envs)


def test_tasks_must_divide_the_environments() -> None:
    with pytest.raises(ConfigError, match="meta_batch_size=3 does not divide the 4"):
        _trainer(_algorithm(meta_batch_size=3))


def test_defaults_are_those_of_the_papers_and_garage() -> None:
    for kind in KINDS:
        algorithm = _algorithm(kind)
        config = kind.config_type()
        assert (config.inner_lr, config.meta_batch_size, config.num_grad_updates) == (0.1, 20, 1)
        assert (config.gae_lambda, config.num_exploration_episodes) == (1.0, 10)
        if kind is MAMLTRPO:
            assert config.max_kl == 0.01
        else:
            assert (config.outer_lr, config.optimizer.eps) == (1e-3, 1e-5)
        if kind is MAMLPPO:
            assert algorithm.inner.hyper["clip_range"].item() == pytest.approx(0.5)


def test_a_shared_network_is_refused() -> None:
    envs = PointNavigation()
    options = OnPolicyActorConfig(shared_policy_value_network=True)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, options)
    with pytest.raises(ConfigError, match="share nothing"):
        MAMLVPG(actor)
    body = (LayerConfig("Linear", {"out_features": 8}), LayerConfig("Tanh"))
    options = OnPolicyActorConfig(body=body, share_body=True, hidden_sizes=(8,))
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, options)
    with pytest.raises(ConfigError, match=r"share nothing.*encoder\.body"):
        MAMLVPG(actor)


def test_what_is_frozen_stays_in_an_evaluation_before_training() -> None:
    algorithm = _algorithm()
    algorithm.actor.requires_grad_(False)
    before = {name: value.clone() for name, value in algorithm.policy_parameters().items()}
    adapted = algorithm.adapt_to(algorithm.unadapted(2), _rollouts(_algorithm(), 1)[0])
    assert adapted.keys() == before.keys()
    for name, value in adapted.items():
        torch.testing.assert_close(value, before[name].expand_as(value), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("kind", "used", "unused"),
    [
        (
            MAMLVPG,
            {
                "entropy_coef": 0.01,
                "entropy_method": "regularized",
                "use_softplus_entropy": True,
                "value_learning_rate": "none",
            },
            {
                "policy_learning_rate": 0.1,
                "max_grad_norm": 1.0,
                "value_learning_rate": 0.1,
                "gamma": 0.9,
                "num_minibatches": 2,
                "optimizer": {"eps": 1.0},
                "normalize_advantage": True,
                "positive_advantage": True,
            },
        ),
        (
            MAMLPPO,
            {"normalize_advantage": "minibatch", "surrogate": "plain", "clip_range": 0.1},
            {
                "learning_rate": 0.1,
                "normalize_advantage": "batch",
                "target_kl": 0.1,
                "value_loss_coef": 0.1,
                "use_clipped_value_loss": True,
                "surrogate": "kl-penalty",
            },
        ),
    ],
)
def test_options_without_effect_on_the_inner_loss_are_refused(
    kind: type, used: dict[str, Json], unused: dict[str, Json]
) -> None:
    algorithm = _algorithm(kind, inner_options=used)
    assert not set(algorithm.schedules) & (set(unused) - {"gamma"})  # gamma is MAML's own
    for option, value in unused.items():
        with pytest.raises(ConfigError, match=f"inner_options.{option}=.* would not act as in"):
            _algorithm(kind, inner_options={option: value})
    usual: dict[str, Json] = {"stop_entropy_gradient": False, "normalize_advantage": False}
    if kind is MAMLPPO:
        usual = {"value_loss_coef": 0.0, "normalize_advantage": "none"}
    _algorithm(kind, inner_options=usual)
    rewarded: dict[str, Json] = {
        "entropy_method": "max",
        "stop_entropy_gradient": True,
        "normalize_advantage": "none" if kind is MAMLPPO else False,
    }
    with pytest.raises(ConfigError, match="would not act as in"):
        _algorithm(kind, inner_options=rewarded)


def test_the_logged_loss_is_that_of_the_policy_alone() -> None:
    entropy: dict[str, Json] = {"entropy_method": "regularized", "entropy_coef": 0.5}
    algorithm = _algorithm(MAMLPPO, inner_lr=0.0, inner_options=entropy)
    kept = [
        task_batch(rollout, algorithm.estimate(algorithm.adapted, rollout)[0], 2)
        for rollout in _rollouts(algorithm, 2)
    ]
    batch = stacked(kept)
    far = replace(batch, value_target=batch.value_target + 100.0)
    output = algorithm.compute_loss(batch, {})
    assert output.loss.item() == algorithm.compute_loss(far, {}).loss.item()  # not of values
    without = _algorithm(MAMLPPO, inner_lr=0.0).compute_loss(batch, {})
    assert output.metrics["loss/policy"].item() == pytest.approx(without.loss.item(), abs=1e-6)
    assert abs(output.loss.item() - without.loss.item()) > 0.1


@pytest.mark.parametrize("way", ["schedule", "change", "schedule of the inner loss"])
def test_the_meta_step_adapts_as_the_tasks_did(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entropy: dict[str, Json] = {
        "entropy_method": "regularized",
        "entropy_coef": "linear(1, 0)" if way == "schedule of the inner loss" else 0.0,
    }
    algorithm = _algorithm(
        MAMLTRPO,
        num_grad_updates=2,
        inner_lr=Linear(1.0, 0.1) if way == "schedule" else 1.0,
        inner_options=entropy,
    )
    meta_step, divergences = algorithm.meta_step, []

    def note(batch: RolloutBatch) -> Mapping[str, Tensor]:
        output = algorithm.compute_loss(batch, {})
        divergences.append(output.metrics["policy/kl"].item())
        return meta_step(batch)

    monkeypatch.setattr(algorithm, "meta_step", note)
    trainer = _trainer(algorithm)
    trainer.train(total_updates=4)
    if way == "change":
        algorithm.update_algorithm_parameter("inner_lr", 0.1)
        assert algorithm.hyper["inner_lr"].item() == 1.0
    trainer.train(total_updates=6)
    assert divergences == pytest.approx([0.0, 0.0], abs=1e-8)
    if way != "schedule of the inner loss":
        assert algorithm.hyper["inner_lr"].item() < 0.5


def test_a_callback_ends_a_meta_update() -> None:
    class TwoSteps(Callback):
        def on_epoch_end(self, trainer: Trainer, epoch: int) -> bool:
            return epoch == 1

    algorithm = _algorithm(MAMLPPO, num_epochs=5)
    trainer = _trainer(algorithm)
    trainer.callbacks = (TwoSteps(),)
    trainer.train(total_updates=4)
    assert algorithm.gradients.count == 2 * 2  # of two meta-updates


def test_schedules_of_the_inner_algorithm_follow_the_run() -> None:
    algorithm = _algorithm(MAMLPPO, inner_options={"clip_range": "linear(0.4, 0.2)"})
    algorithm.schedules.set_progress(0.5)
    assert algorithm.inner.hyper["clip_range"].item() == pytest.approx(0.3)
    assert algorithm.hyper["clip_range"] is algorithm.inner.hyper["clip_range"]
    algorithm.update_algorithm_parameter("clip_range", 0.1)
    assert algorithm.inner.hyper["clip_range"].item() == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="clip_range"):
        algorithm.update_algorithm_parameter("clip_range", -1.0)
