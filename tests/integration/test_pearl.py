import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rl_core.algorithm import PolicyLossAddOn
from rl_core.env import TaskSplit
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.nn.distributions import DiagonalGaussian
from rl_envs import make_vec
from rl_envs.tasks import PointNavigation
from rl_meta import (
    PEARL,
    ContextConditionedActor,
    ContextConditionedActorConfig,
    PEARLConfig,
    TaskReplayStorage,
    collect_episodes,
    evaluate_adaptation,
)
from rl_storages import ReplayBuffer
from rl_testing.stateful import check_same_state
from rl_train import Trainer, evaluate_policy

STAGES = ("before adaptation", "after step 1", "after step 2")
SMALL: dict[str, Any] = {
    "num_train_tasks": 6,
    "num_sampled_tasks": 4,
    "num_posterior_rollouts": 1,
    "num_minibatches": 3,
    "minibatch_size": 8,
}


def _actor(**options: Any) -> ContextConditionedActor:
    torch.manual_seed(0)
    envs = PointNavigation()
    given = {
        "latent_dim": 3,
        "encoder_hidden_sizes": (16,),
        "inner_options": {"hidden_sizes": [16]},
        **options,
    }
    config = ContextConditionedActorConfig(**given)
    return ContextConditionedActor(envs.single_observation_space, envs.single_action_space, config)


def _pearl(actor: dict[str, Any] | None = None, **options: Any) -> PEARL:
    return PEARL(_actor(**actor or {}), PEARLConfig(**{**SMALL, **options}))


def _trainer(algorithm: PEARL, run_dir: Path | None = None, envs: Any = None) -> Trainer:
    storage = TaskReplayStorage(20, capacity=500, meta_batch_size=3, context_size=10)
    return Trainer(envs or PointNavigation(4), algorithm, storage, seed=1, run_dir=run_dir)


def _batch(trainer: Trainer) -> Any:
    return next(iter(trainer.storage.generate_batches(1, 8)))


@pytest.mark.parametrize("total", [1, 4, 6])
def test_a_run_resumes_bit_for_bit(total: int, tmp_path: Path) -> None:
    whole = _trainer(_pearl())
    whole.train(total_updates=9)
    _trainer(_pearl(), tmp_path).train(total_updates=total)
    second = _trainer(_pearl(), tmp_path)
    second.resume()
    second.train(total_updates=9)
    check_same_state(second.algorithm.state_dict(), whole.algorithm.state_dict())
    check_same_state(second.collector.state_dict(), whole.collector.state_dict())
    check_same_state(second.storage.state_dict(), whole.storage.state_dict())


def test_what_tasks_have_stored_outlasts_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(_pearl())
    storage = cast("Any", trainer.storage)
    trainer.train(total_updates=4)
    stored = storage._stored[:, 0].clone()
    monkeypatch.setattr(trainer.envs, "step", lambda action: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train(total_updates=5)
    monkeypatch.undo()
    trainer.train(total_updates=5)
    assert (storage._stored[: len(stored), 0] >= stored).all()


def _believes_nothing(algorithm: PEARL) -> bool:
    mean, std = cast("Any", algorithm.more_state()["belief"])
    return bool((mean == 0.0).all() and (std == 1.0).all())


def test_each_iteration_explores_by_the_prior_and_then_by_the_posterior() -> None:
    algorithm = _pearl()
    trainer = _trainer(algorithm)
    seen = []
    for total in range(1, 9):
        trainer.train(total_updates=total)
        seen.append((_believes_nothing(algorithm), algorithm.gradients.count))
    # two rollouts show all six tasks; then prior, posterior, extra, and three gradient steps
    first = [(True, 0), (True, 0)]
    assert seen == [*first, (False, 0), (False, 0), (True, 3), (False, 3), (False, 3), (True, 6)]


def test_every_rollout_by_the_prior_leaves_the_context_aside() -> None:
    algorithm = _pearl(num_prior_rollouts=2)
    trainer = _trainer(algorithm)
    for total, expected in ((2, True), (3, True), (4, False)):  # two are by the prior
        trainer.train(total_updates=total)
        assert _believes_nothing(algorithm) is expected


def test_the_first_rollouts_show_every_train_task() -> None:
    trainer = _trainer(_pearl())  # six tasks, four of which are visited at once
    trainer.train(total_updates=2)
    stored: Any = trainer.storage.state_dict()["stored"]
    assert stored[:, 0].tolist() == [40, 40, 20, 20, 20, 20]


def test_by_default_there_are_as_many_train_tasks_as_fit() -> None:
    for available, expected in ((None, 100), (120, 100), (2, 2)):
        algorithm = _pearl(num_train_tasks=None)
        trainer = _trainer(algorithm, envs=PointNavigation(4, num_train_tasks=available))
        trainer.train(total_updates=1)
        state: Any = algorithm.more_state()
        assert len(state["tasks"].unique(dim=0)) == expected
    trainer.train(total_updates=6)  # both at once, then prior, posterior, extra, and again
    state = algorithm.more_state()
    assert sorted(state["visited"].tolist()) == [0, 0, 1, 1]
    assert algorithm.gradients.count == 3


def test_environments_without_any_train_task_are_refused() -> None:
    class Nowhere(PointNavigation):
        def num_tasks(self, split: TaskSplit) -> int:
            return 0

    with pytest.raises(ConfigError, match="has only 0 train tasks"):
        _trainer(_pearl(num_train_tasks=None), envs=Nowhere(4))


def test_the_context_leaves_extra_rollouts_out() -> None:
    algorithm = _pearl()
    trainer = _trainer(algorithm)
    trainer.train(total_updates=4)  # both, prior, posterior
    visited: Any = algorithm.more_state()["visited"]
    storage = trainer.storage
    assert isinstance(storage, TaskReplayStorage)
    assert storage.context(visited)[1].sum(1).tolist() == [40] * 4
    trainer.train(total_updates=5)
    state: Any = algorithm.more_state()
    left = visited[~torch.isin(visited, state["visited"])]  # whose contexts are not cleared yet
    assert len(left)
    assert storage.context(left)[1].sum(1).tolist() == [40] * len(left)
    stored: Any = storage.state_dict()["stored"]
    assert (stored[left, 0] - stored[left, 2]).tolist() == [20] * len(left)


@pytest.mark.parametrize("is_stochastic", [True, False])
def test_the_encoder_learns_from_critics_and_divergence_alone(is_stochastic: bool) -> None:
    algorithm = _pearl({"use_information_bottleneck": is_stochastic}, kl_coef=0.0)
    trainer = _trainer(algorithm)
    trainer.train(total_updates=3)
    batch = _batch(trainer)
    noise = algorithm.draw_update_noise(batch)
    encoder = list(algorithm.actor.encoder.parameters())
    policy = list(algorithm.actor.inner.get_submodule("policy").parameters())

    def gradients(loss: torch.Tensor, parameters: Any) -> torch.Tensor:
        found = torch.autograd.grad(
            loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([one.flatten() for one in found])

    output = algorithm.compute_loss(batch, noise)
    critic, pi = output.metrics["loss/critic"], output.metrics["loss/policy"]
    assert not gradients(pi, encoder).any()
    assert gradients(pi, policy).any()
    assert gradients(critic, encoder).any()
    assert not gradients(critic, policy).any()
    torch.testing.assert_close(gradients(output.loss, encoder), gradients(critic, encoder))
    assert is_stochastic is ("loss/kl" in output.metrics)
    if is_stochastic:
        assert gradients(output.metrics["loss/kl"], encoder).any()


def test_regularizers_reach_the_policy() -> None:
    parts = {}
    names = ("policy_mean_coef", "policy_std_coef", "policy_pre_activation_coef")
    for name in (None, *names):
        options: dict[str, Any] = {} if name is None else {name: 0.5}
        algorithm = _pearl(**options)
        trainer = _trainer(algorithm)
        trainer.train(total_updates=3)
        batch = _batch(trainer)
        noise = algorithm.draw_update_noise(batch)
        parameter = next(algorithm.actor.inner.get_submodule("policy").parameters())
        (parts[name],) = torch.autograd.grad(algorithm.compute_loss(batch, noise).loss, parameter)
    assert len({part.sum().item() for part in parts.values()}) == 4


def test_a_regularizer_cannot_begin_during_a_run() -> None:
    algorithm = _pearl()
    with pytest.raises(ConfigError, match=r"policy_std_coef cannot become .* in a run that began"):
        algorithm.update_algorithm_parameter("policy_std_coef", 0.1)
    algorithm = _pearl(policy_mean_coef=0.1)
    algorithm.update_algorithm_parameter("policy_std_coef", 0.1)
    assert algorithm.hyper["policy_std_coef"].item() == pytest.approx(0.1)


def test_without_a_bottleneck_nothing_is_drawn_before_there_is_a_context() -> None:
    algorithm = _pearl({"use_information_bottleneck": False})
    trainer = _trainer(algorithm)
    algorithm.before_rollout(trainer.envs)
    assert algorithm.get_exploration_policy().belief.tolist() == [0.0] * 3
    for latents in (algorithm._latents, algorithm.unadapted(2)["std"]):
        assert not latents.any()
    algorithm = _pearl()
    assert algorithm.get_exploration_policy().belief.all()
    assert algorithm.unadapted(2)["std"].tolist() == [[1.0] * 3] * 2


def test_regularizers_are_mean_squares() -> None:
    algorithm = _pearl(policy_mean_coef=2.0, policy_std_coef=0.5, policy_pre_activation_coef=0.25)
    (add_on,) = algorithm.inner.add_ons.children()
    assert isinstance(add_on, PolicyLossAddOn)
    mean, log_std = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, math.log(2.0)]])
    batch: Any = None
    term, _ = add_on.compute_loss_term(batch, DiagonalGaussian(mean, log_std), {})
    # Mean squares of means 2.5, of logarithms ln(2)^2 / 2, and the action's own 1 + 1 + 4 + 4.
    expected = 2.0 * 2.5 + 0.5 * math.log(2.0) ** 2 / 2.0 + 0.25 * 10.0
    assert term.item() == pytest.approx(expected)


def test_train_tasks_are_warned_about_in_evaluations() -> None:
    algorithm = _pearl(num_exploration_episodes=1)
    trainer = _trainer(algorithm)
    trainer.train(total_updates=1)

    class Known(PointNavigation):
        def tasks_of_evaluation(self, count: int, seed: int) -> torch.Tensor:
            assert algorithm.train_tasks is not None
            return algorithm.train_tasks[:count]

    with pytest.warns(RuntimeWarning, match="3 of 3 test tasks are train tasks too"):
        evaluate_adaptation(algorithm, Known(3), 3)


def test_a_generator_of_ones_own_leaves_the_run_as_it_is() -> None:
    algorithm = _pearl()
    before = algorithm.generator.get_state()
    own = torch.Generator().manual_seed(1)
    latent = algorithm.get_exploration_policy(own).belief
    assert torch.equal(latent, torch.randn(3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(algorithm.generator.get_state(), before)


@pytest.mark.parametrize("use_next", [False, True])
def test_the_next_observation_is_part_of_the_context_if_asked_for(use_next: bool) -> None:
    algorithm = _pearl({"use_next_observation": use_next})
    trainer = _trainer(algorithm)
    trainer.train(total_updates=5)
    batch = _batch(trainer)
    before = algorithm.infer(batch)[0]
    name = "context/next_observation"
    extras = {**batch.extras, name: batch.extras[name] + 1.0}
    object.__setattr__(batch, "extras", extras)
    assert torch.equal(algorithm.infer(batch)[0], before) is not use_next
    rollout = _exploration(algorithm.get_exploration_policy())
    other = replace(rollout, final_observation=rollout.final_observation + 1.0)
    policy = algorithm.get_exploration_policy()
    beliefs = [algorithm.adapt_policy(policy, [one]).belief for one in (rollout, other)]
    assert torch.equal(*beliefs) is not use_next


def _exploration(actor: ContextConditionedActor) -> Any:
    envs = PointNavigation(1)
    envs.set_tasks(torch.tensor([[0.4, 0.0]]))
    generator = torch.Generator().manual_seed(0)

    def choose(observation: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output = actor.get_action(observation, {}, actor.draw_noise((1,), generator))
        return output.action, output.env_action

    return collect_episodes(envs, choose, 1, torch.device("cpu"))


def test_a_policy_adapts_by_hand_to_the_posterior_of_its_episodes() -> None:
    algorithm = _pearl()
    policy = algorithm.get_exploration_policy()
    assert not torch.equal(policy.belief, algorithm.get_exploration_policy().belief)
    rollouts = [_exploration(policy), _exploration(policy)]
    shown = torch.zeros(1, 2)
    wanted = policy.with_belief(torch.ones(3)).get_action(shown, {}, None, True).action
    with torch.no_grad():
        believed = algorithm.adapt_policy(policy, rollouts).belief
        for parameter in algorithm.actor.parameters():  # which goes on learning meanwhile
            parameter.add_(0.1)
    got = algorithm.adapt_policy(policy, rollouts)
    assert torch.equal(got.belief, believed)
    again = got.with_belief(torch.ones(3)).get_action(shown, {}, None, True)
    assert torch.equal(again.action, wanted)
    adapted = algorithm.adapt_policy(algorithm.get_exploration_policy(), rollouts)
    generator = torch.Generator().manual_seed(1)
    exploring = algorithm.adapt_policy(algorithm.get_exploration_policy(), rollouts, generator)
    beliefs = algorithm.unadapted(1)
    for rollout in rollouts:
        beliefs = algorithm.adapt_to(beliefs, rollout)
    assert beliefs["context"].shape[1] == 200
    torch.testing.assert_close(adapted.belief, beliefs["mean"][0])
    drawn = torch.randn(1, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(exploring.belief, (beliefs["mean"] + beliefs["std"] * drawn)[0])
    observation = torch.zeros(1, 2)
    expected, _ = algorithm.act(beliefs, observation, None)
    torch.testing.assert_close(adapted.get_action(observation, {}, None, True).action, expected)
    assert not algorithm.actor.belief.any()
    with pytest.raises(ConfigError, match="no transitions to adapt to"):
        algorithm.adapt_policy(policy, [])


def test_evaluations_reset_the_belief_for_each_task_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = _pearl()
    before = {name: value.clone() for name, value in algorithm.named_parameters().items()}
    results = [evaluate_policy(algorithm, PointNavigation(2), 6, seed=2) for _ in range(2)]
    assert results[0].stages == results[1].stages
    assert list(results[0].stages) == ["oracle", *STAGES]
    assert results[0].returns == results[0].stages["after step 2"].returns
    check_same_state(dict(algorithm.named_parameters()), before)
    asked: list[int] = []
    unadapted = algorithm.unadapted

    def note(num_tasks: int) -> Any:
        asked.append(num_tasks)
        return unadapted(num_tasks)

    monkeypatch.setattr(algorithm, "unadapted", note)
    evaluate_policy(algorithm, PointNavigation(2), 6, seed=2)
    assert asked == [2, 2, 2]  # as many tasks as there are environments, each from the prior


def test_the_encoder_has_the_optimizer_of_the_inner_algorithm() -> None:
    chosen = {"name": "rmsprop", "eps": 0.01}
    groups = _pearl(inner_options={"optimizer": chosen}).parameter_groups()
    assert groups[-1].name == "encoder"
    assert {group.optimizer for group in groups} == {OptimizerConfig(name="rmsprop", eps=0.01)}


def test_schedules_of_the_inner_algorithm_move() -> None:
    algorithm = _pearl(inner_options={"critic_learning_rate": "linear(1e-3, 0)", "gamma": 0.9})
    algorithm.schedules.set_progress(0.5)
    assert algorithm.inner.hyper["critic_learning_rate"].item() == pytest.approx(5e-4)
    assert algorithm.hyper["critic_learning_rate"] is algorithm.inner.hyper["critic_learning_rate"]
    with pytest.raises(ConfigError, match="critic_learning_rate"):
        algorithm.update_algorithm_parameter("critic_learning_rate", -1.0)


def test_an_actor_moves_to_a_device_with_all_its_parts() -> None:
    actor = _actor().to("meta")
    assert {p.device.type for p in [*actor.parameters(), *actor.buffers()]} == {"meta"}


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="latent_dim"):
        _actor(latent_dim=0)
    with pytest.raises(ConfigError, match="running"):
        _actor(inner_options={"normalize_observations": True})
    with pytest.raises(ConfigError, match="num_sampled_tasks=7 is more than"):
        _pearl(num_sampled_tasks=7)
    for name in ("dqn", "td3"):  # without two losses, and with noise of its own on actions
        with pytest.raises(ConfigError, match=f"'{name}' must have critic_loss"):
            _pearl(inner_algorithm=name)
    with pytest.raises(ConfigError, match=r"inner_options\.start_steps=10 would not act as in"):
        _pearl(inner_options={"start_steps": 10})
    with pytest.raises(ConfigError, match="only 3 test tasks"):
        evaluate_adaptation(_pearl(), PointNavigation(4, num_test_tasks=3), 4)
    with pytest.raises(ConfigError, match="only 5 train tasks"):
        _trainer(_pearl(), envs=PointNavigation(4, num_train_tasks=5))
    with pytest.raises(ConfigError, match="num_sampled_tasks=4 does not divide the 6"):
        _trainer(_pearl(), envs=PointNavigation(6))
    with pytest.raises(ConfigError, match="needs a TaskReplayStorage"):
        Trainer(PointNavigation(4), _pearl(), ReplayBuffer(100))
    with pytest.raises(ConfigError, match="capacity=59 is less than the 60 steps that a task gets"):
        Trainer(PointNavigation(4), _pearl(), TaskReplayStorage(20, capacity=59))
    with pytest.raises(ConfigError, match=r"less than the 120 steps.*are 6 rollouts of 20 steps"):
        Trainer(PointNavigation(8), _pearl(), TaskReplayStorage(20, capacity=119))
    few = PointNavigation(4, num_train_tasks=2)  # each in two of the four environments
    with pytest.raises(ConfigError, match=r"less than the 120 steps.*are 6 rollouts of 20 steps"):
        Trainer(few, _pearl(num_train_tasks=None), TaskReplayStorage(20, capacity=119))
    # six tasks, of which two are shown twice in the first two rollouts
    short = _pearl(num_posterior_rollouts=0, num_extra_rollouts=0)
    with pytest.raises(ConfigError, match=r"less than the 40 steps.*are 2 rollouts of 20 steps"):
        Trainer(PointNavigation(4), short, TaskReplayStorage(20, capacity=39))
    with pytest.raises(ConfigError, match=r"set actor\.inner_options\.policy to 'stochastic'"):
        _pearl({"inner_options": {"policy": "deterministic"}})
    policy = _pearl().get_exploration_policy()
    with pytest.raises(ConfigError, match="rollouts must be a list, got Rollout"):
        _pearl().adapt_policy(policy, _exploration(policy))


def test_environments_without_tasks_are_refused() -> None:
    envs = make_vec("Pendulum-v1", 4)
    actor = ContextConditionedActor(envs.single_observation_space, envs.single_action_space)
    algorithm = PEARL(actor, PEARLConfig(**SMALL))
    with pytest.raises(ConfigError, match="and Pendulum-v1 is one"):
        _trainer(algorithm, envs=envs)
