from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rl_core.actor import ActionEvaluation
from rl_core.algorithm import evaluate_rollout
from rl_core.batch import Rollout
from rl_core.errors import ConfigError
from rl_core.types import Observation, State
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import Collector
from support.envs import counting_envs

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def _actor(envs_lengths: Sequence[Sequence[int]], *, remembers: bool) -> ToyActor:
    """Values the observation `[index, episode, step]` at ``100 episode + step``."""
    envs = counting_envs(envs_lengths, [True] * len(envs_lengths))
    actor = ToyActor(envs.single_observation_space, envs.single_action_space, remembers=remembers)
    with torch.no_grad():
        actor.value_layer.weight.copy_(torch.tensor([[0.0, 100.0, 1.0]]))
        actor.value_layer.bias.zero_()
    return actor


def _rollouts(
    mode: AutoresetMode, num_steps: int, *, remembers: bool = False, count: int = 1
) -> tuple[ToyActor, list[Rollout]]:
    """The first row terminates after 2 steps, the second one is cut after 3."""
    lengths = [[2], [3]]
    actor = _actor(lengths, remembers=remembers)
    collector = Collector(
        counting_envs(lengths, [True, False], mode),
        ToyActorCritic(actor),
        generator=torch.Generator(),
    )
    rollouts = []
    for _ in range(count):
        storage = ReferenceRolloutStorage(num_steps)
        storage.allocate(collector.storage_spec(), torch.Generator())
        collector.collect(2 * num_steps, into=storage)
        rollouts.append(storage.rollout())
    return actor, rollouts


def _matters(rollout: Rollout) -> Tensor:
    return rollout.valid & ~rollout.terminated


def _masked(values: Tensor, rollout: Rollout) -> list[list[float | None]]:
    """The numbers that mean something, by environment."""
    return [
        [float(value) if matters else None for value, matters in zip(row, which, strict=True)]
        for row, which in zip(values.T, _matters(rollout).T, strict=True)
    ]


def test_next_values_when_rows_reset_in_the_same_step() -> None:
    actor, (rollout,) = _rollouts(SAME_STEP, 5)
    values = evaluate_rollout(actor, rollout)
    assert values.value.T.tolist() == [[0, 1, 100, 101, 200], [0, 1, 2, 100, 101]]
    # The second row's third step was cut at [1, 0, 3], although [1, 1, 0] is stored after it.
    assert _masked(values.next_value, rollout) == [[1, None, 101, None, 201], [1, 2, 3, 101, 102]]


def test_next_values_when_rows_reset_in_the_next_step() -> None:
    actor, (rollout,) = _rollouts(NEXT_STEP, 5)
    values = evaluate_rollout(actor, rollout)
    assert values.value.T.tolist() == [[0, 1, 2, 100, 101], [0, 1, 2, 3, 100]]
    assert _masked(values.next_value, rollout) == [
        [1, None, None, 101, None],
        [1, 2, 3, None, 101],
    ]


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_a_cut_in_the_last_row(mode: AutoresetMode) -> None:
    actor, (rollout,) = _rollouts(mode, 3)
    assert bool(rollout.truncated[-1, 1])
    assert _masked(evaluate_rollout(actor, rollout).next_value, rollout)[1] == [1, 2, 3]


def test_a_memory_goes_on_to_the_final_observation_in_the_same_step() -> None:
    actor, (first, second) = _rollouts(SAME_STEP, 4, remembers=True, count=2)
    values = evaluate_rollout(actor, first)
    # The sums over the episode, 0 1 3 and then 100; the episode that was cut reaches 0+1+2+3.
    assert values.value.T.tolist() == [[0, 1, 100, 201], [0, 1, 3, 100]]
    assert _masked(values.next_value, first) == [[1, None, 201, None], [1, 3, 6, 201]]
    # The second rollout begins in the middle of the second row's episode: 100 was seen before.
    values = evaluate_rollout(actor, second)
    assert values.value.T.tolist() == [[200, 401, 300, 601], [201, 303, 200, 401]]
    assert _masked(values.next_value, second) == [[401, None, 601, None], [303, 406, 401, 603]]


def test_a_memory_goes_on_to_the_final_observation_in_the_next_step() -> None:
    actor, (first, second) = _rollouts(NEXT_STEP, 3, remembers=True, count=2)
    values = evaluate_rollout(actor, first)
    assert _masked(values.value, first) == [[0, None, None], [0, 1, 3]]
    # Cut in the last row: the environment still shows the final observation.
    assert _masked(values.next_value, first) == [[1, None, None], [1, 3, 6]]
    values = evaluate_rollout(actor, second)
    assert _masked(values.value, second) == [[100, None, None], [None, 100, 201]]
    assert _masked(values.next_value, second) == [[201, None, None], [None, 201, 303]]


def test_log_probs_are_those_of_acting() -> None:
    for remembers in (False, True):
        actor, (rollout,) = _rollouts(SAME_STEP, 7, remembers=remembers)
        state = dict(rollout.state)
        expected = []
        for row in range(7):
            assert isinstance(rollout.observation, Tensor)
            distribution, after = actor.distribution(
                rollout.observation[row], state, rollout.episode_start[row]
            )
            expected.append(distribution.log_prob(rollout.action[row]))
            state = dict(after)
        torch.testing.assert_close(
            evaluate_rollout(actor, rollout).log_prob, torch.stack(expected).detach()
        )


def test_nothing_is_learned_by_evaluating() -> None:
    actor, (rollout,) = _rollouts(SAME_STEP, 3)
    values = evaluate_rollout(actor, rollout)
    assert not any(t.requires_grad for t in (values.log_prob, values.value, values.next_value))


def test_final_observations_may_be_dicts() -> None:
    actor, (rollout,) = _rollouts(SAME_STEP, 5)
    expected = evaluate_rollout(actor, rollout)
    nested = ToyActor(
        spaces.Dict({"only": actor.observation_space}),
        actor.action_space,
    )
    nested.load_state_dict(actor.state_dict())
    assert isinstance(rollout.observation, Tensor)
    assert isinstance(rollout.next_observation, Tensor)
    assert isinstance(rollout.final_observation, Tensor)
    wrapped = replace(
        rollout,
        observation={"only": rollout.observation},
        next_observation={"only": rollout.next_observation},
        final_observation={"only": rollout.final_observation},
    )
    got = evaluate_rollout(nested, wrapped)
    assert torch.equal(got.next_value, expected.next_value)


def test_an_actor_without_values_is_refused() -> None:
    class Blind(ToyActor):
        def evaluate_actions(
            self,
            observation: Observation,
            action: Tensor,
            state: State,
            episode_start: Tensor | None = None,
        ) -> ActionEvaluation:
            evaluation = super().evaluate_actions(observation, action, state, episode_start)
            return replace(evaluation, value=None)

    actor, (rollout,) = _rollouts(SAME_STEP, 3)
    blind = Blind(actor.observation_space, actor.action_space)
    with pytest.raises(ConfigError, match=r"Blind\.evaluate_actions returns no value"):
        evaluate_rollout(blind, rollout)
