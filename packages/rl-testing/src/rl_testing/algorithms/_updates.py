"""Tests of whole updates, and of what a loss may look at."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from rl_core.algorithm import AnyAlgorithm, UpdateCallbacks
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch, Transition
from rl_core.errors import ConfigError
from rl_core.storage import AnyStorage, StorageSpec, observation_spec
from rl_core.types import StateDict, StateValue, map_observation
from rl_testing._generators import global_generators_untouched
from rl_testing.algorithms._case import NUM_ENVS, AlgorithmCase, act, period, tensors_of
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.replay.reference import ReferenceReplayStorage
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.stateful import check_same_state, copy_state

_SEQUENCE_LENGTH = 4
"""Rows of the sequences that recurrent actors learn from."""

_MIN_STEPS = 16
"""Rows of rollouts, at least."""


class UpdateTests(AlgorithmCase):
    """What belongs to an algorithm's state, and what its loss may look at."""

    def make_storage(self, algorithm: AnyAlgorithm, seed: int) -> AnyStorage | None:
        """Return a storage with made-up data for one update; None where the kit has none.

        Args:
            algorithm: what acts in the data, and tells how batches are cut.
            seed: of everything random.
        """
        schedule, actor = algorithm.schedule, algorithm.actor
        storage: AnyStorage
        num_steps = _MIN_STEPS
        if algorithm.batch_type is RolloutBatch:
            least = -(-(schedule.minibatch_size or 0) // NUM_ENVS)
            num_steps = max(num_steps, least, schedule.num_minibatches or 0)
            num_steps += -num_steps % _SEQUENCE_LENGTH
            storage = ReferenceRolloutStorage(num_steps, _SEQUENCE_LENGTH)
        elif algorithm.batch_type is ReplayBatch and not actor.is_recurrent:
            storage = ReferenceReplayStorage(num_steps * NUM_ENVS)
        else:
            return None
        try:
            algorithm.check_storage(storage)
        except ConfigError:  # it needs a storage of its own
            return None
        storage.allocate(_storage_spec(algorithm), torch.Generator().manual_seed(seed))
        for transition in _transitions(make_rollout(algorithm, seed, num_steps)):
            storage.insert_transition(transition)
        return storage

    def test_a_whole_update_is_saved(self) -> None:
        """Whatever changes in an update, also before and after its epochs, a restore brings back.

        Updates are cut short after two epochs of two minibatches.
        """
        saved, restored = self._algorithm(), self._algorithm(seed=2)
        self._update(saved, 1)
        state = cast("StateDict", copy_state(saved.state_dict()))
        restored.load_state_dict(state)
        check_same_state(restored.state_dict(), state, restored=True)
        expected = self._update(saved, 2)
        what = "what update() returned"
        check_same_state(self._update(restored, 2), expected, what, restored=True)
        check_same_state(
            restored.state_dict(), saved.state_dict(), "the state after an update", restored=True
        )

    def test_callbacks_within_updates_are_called(self) -> None:
        """A callback sees each pass and each gradient step, and may end them."""
        algorithm, seen = self._algorithm(), set[str]()

        def listener(event: str) -> Callable[[int], None]:
            return lambda _: seen.add(event)

        events = {field.name: [listener(field.name)] for field in fields(UpdateCallbacks)}
        storage, before = self._filled_storage(1), algorithm.gradients.count
        algorithm.callbacks = UpdateCallbacks(**events)
        algorithm.update(storage)
        if algorithm.gradients.count == before:
            pytest.skip("takes no gradient step in its first update")
        missing = ", ".join(sorted(events.keys() - seen))
        assert not missing, (
            f"update() took gradient steps, but called nobody at {missing}; pass over the batches "
            "by run_epochs"
        )

    def _algorithm_that_stops_at_ends(self) -> AnyAlgorithm:
        """Return an algorithm that learns from rollouts; skip where it looks past their ends."""
        algorithm = self._algorithm()
        if algorithm.batch_type is not RolloutBatch:
            pytest.skip("does not learn from rollouts")
        if self.looks_past_ends:
            pytest.skip("looks at what follows an episode's end")
        return algorithm

    def test_ends_of_episodes_are_told_apart(self) -> None:
        """What follows a terminated step is worth nothing, what follows a truncated one is."""
        algorithm = self._algorithm_that_stops_at_ends()
        rollout, other = (make_rollout(algorithm, seed) for seed in (1, 2))

        def is_seen(rollout: Rollout, **changed: object) -> bool:
            columns = (
                _estimates(make_batch(algorithm, each))
                for each in (rollout, replace(rollout, **changed))  # type: ignore[arg-type]
            )
            return not torch.equal(*columns)

        after = other.next_observation  # of all environments, none of which has ended
        is_last = torch.zeros_like(rollout.terminated)
        is_last[-1] = True
        hint = "compute advantages and targets with rl_core.returns"
        over = replace(rollout, terminated=rollout.terminated | is_last)
        assert not is_seen(over, next_observation=after), (
            f"prepare() bootstraps from what follows a terminated step; {hint}"
        )
        assert not is_seen(rollout, reward=torch.where(rollout.valid, rollout.reward, 9.0)), (
            f"prepare() takes the reward of a row that only resets; {hint}"
        )
        if is_seen(rollout, next_observation=after):  # or it never bootstraps
            assert is_seen(rollout, final_observation=other.final_observation), (
                f"prepare() does not bootstrap where an episode is truncated; {hint}"
            )

    def test_no_episode_learns_from_the_next_one(self) -> None:
        """What follows an episode's end, terminated or truncated, is another episode's."""
        algorithm = self._algorithm_that_stops_at_ends()
        rollout = make_rollout(algorithm, 1)
        ends = rollout.terminated | rollout.truncated
        has_end_ahead = ends.flip(0).cumsum(0).flip(0) > 0
        changed = replace(rollout, reward=rollout.reward + 5.0 * ~has_end_ahead)
        before, after = (algorithm.prepare(one)[0] for one in (rollout, changed))
        if not torch.equal(after["value"], before["value"]):
            pytest.skip("fits its values to all rewards of a rollout")
        is_earlier = has_end_ahead & rollout.valid
        torch.testing.assert_close(
            after["value_target"][is_earlier],
            before["value_target"][is_earlier],
            msg=lambda text: (
                f"{text}; prepare() lets rewards after the end of an episode reach it; compute "
                "advantages and targets with rl_core.returns"
            ),
        )

    def test_its_schedule_cuts_rollouts_in_one_way(self) -> None:
        """A rollout storage takes the number of minibatches, or their size."""
        algorithm = self._algorithm()
        if algorithm.batch_type is not RolloutBatch:
            pytest.skip("does not learn from rollouts")
        schedule = algorithm.schedule
        assert (schedule.num_minibatches is None) != (schedule.minibatch_size is None), (
            f"schedule has num_minibatches={schedule.num_minibatches} and "
            f"minibatch_size={schedule.minibatch_size}; let it give just one of them, by which "
            "rollouts are cut"
        )

    def test_every_parameter_of_the_loss_belongs_to_a_module(self) -> None:
        """What no module holds is neither learned nor saved nor sent to workers."""
        algorithm = self._algorithm()
        known = {id(parameter) for parameter in algorithm.named_parameters().values()}
        for leaf in _leaves(algorithm.compute_loss(self.make_batch(algorithm, 1)).loss):
            assert id(leaf) in known, (
                f"the loss uses {_name_of(leaf, algorithm)}, which none of the algorithm's "
                "modules holds, so it is neither learned nor saved; put it into a module that "
                "make_modules() returns"
            )

    def test_scheduled_options_are_read_from_hyper(self) -> None:
        """The config has what they were at first; only ``hyper`` follows their schedules."""
        usual = self._algorithm()
        values = {name: float(usual.hyper[name]) for name in usual.schedules}
        expected = self._outcome(usual)
        for name, value in values.items():
            algorithm = self._algorithm()
            try:
                algorithm.config = replace(algorithm.config, **{name: 0.5 * value})
            except (ConfigError, TypeError):  # it contradicts another option, or lies deeper
                continue
            try:
                check_same_state(self._outcome(algorithm), expected, "outcome")
            except AssertionError as error:
                raise AssertionError(
                    f"config.{name} is read while learning or acting ({error}); it is scheduled, "
                    f"so read self.hyper['{name}'] instead"
                ) from None

    def _update(self, algorithm: AnyAlgorithm, seed: int) -> StateValue:
        storage = self._filled_storage(seed)

        def is_second(count: int) -> bool:
            return count == 1

        algorithm.callbacks = UpdateCallbacks(epoch_end=[is_second], minibatch_end=[is_second])
        with global_generators_untouched("update()", "self.generator"):
            return dict(algorithm.update(storage))

    def _filled_storage(self, seed: int) -> AnyStorage:
        storage = self.make_storage(self._algorithm(), seed)
        if storage is None:
            pytest.skip("the kit has no storage for it; make_storage() of the suite may make one")
        return storage

    def _outcome(self, algorithm: AnyAlgorithm) -> StateValue:
        """Return what some gradient steps and an action led to."""
        samples = [dict(self._step(algorithm, seed)) for seed in range(period(algorithm))]
        return [samples, dict(tensors_of(algorithm)), act(algorithm).action]


def _storage_spec(algorithm: AnyAlgorithm) -> StorageSpec:
    actor = algorithm.actor
    return StorageSpec(
        observation=observation_spec(actor.observation_space),
        action=actor.action_spec,
        num_envs=NUM_ENVS,
        state_sizes=actor.state_sizes,
        extras=algorithm.extras,
        device=algorithm.device,
    )


def _transitions(rollout: Rollout) -> Iterator[Transition]:
    """Yield the rows of a rollout; all have the state of the first one."""
    steps, envs = rollout.final_index.unbind(1)
    num_steps = len(rollout.reward)
    for t in range(num_steps):
        following = rollout.next_observation
        if t + 1 < num_steps:
            following = map_observation(lambda part, t=t: part[t + 1], rollout.observation)  # type: ignore[misc]  # bound now
        here = steps == t

        def put_finals(following: Tensor, final: Tensor, here: Tensor = here) -> Tensor:
            return following.index_put((envs[here],), final[here])

        yield Transition(
            observation=map_observation(lambda part, t=t: part[t], rollout.observation),  # type: ignore[misc]  # bound now
            action=rollout.action[t],
            reward=rollout.reward[t],
            terminated=rollout.terminated[t],
            truncated=rollout.truncated[t],
            valid=rollout.valid[t],
            episode_start=rollout.episode_start[t],
            next_observation=following,
            final_observation=tree_map(put_finals, following, rollout.final_observation),
            state=rollout.state,
            extras={name: extra[t] for name, extra in rollout.extras.items()},
        )


def _estimates(batch: RolloutBatch) -> Tensor:
    """Return advantages and targets of the rows that count."""
    columns = torch.stack([batch.advantage, batch.value_target])
    return torch.where(batch.mask.bool(), columns, 0.0)


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a loss has a gradient in."""
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of nodes that accumulate gradients
        if leaf is not None:
            yield leaf
        nodes += [following for following, _ in node.next_functions]


def _name_of(leaf: Tensor, algorithm: AnyAlgorithm) -> str:
    """Say which attribute of an algorithm holds a parameter."""
    for name, value in vars(algorithm).items():
        held = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(part is leaf for part in held):
            return f"a parameter in self.{name}"
    return f"a parameter of shape {tuple(leaf.shape)}"
