"""Each test of the replay suite fails for a storage with the fault that it names."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, RolloutBatch, Trajectory, Transition
from rl_core.errors import CheckpointError, RLError
from rl_core.storage import DataSlice
from rl_core.types import Observation, StateDict
from rl_testing._rows import Row
from rl_testing.replay import ReferenceReplayStorage, ReplayStorageSuite
from rl_testing.storages import StorageSuite

Columns = list[dict[str, Tensor]]
Episodes = list[list[Row]]


class CrossesEnds(ReferenceReplayStorage):
    def episodes(self, env: int) -> Episodes:
        return [[row for episode in super().episodes(env) for row in episode]]


class ForgetsInterruptions(ReferenceReplayStorage):
    def episodes(self, env: int) -> Episodes:
        return _joined(super().episodes(env), at_starts=True)


class RunsSlicesTogether(ReferenceReplayStorage):
    def episodes(self, env: int) -> Episodes:
        return _joined(super().episodes(env), at_starts=False)


class CrossesTheWritePosition(ReferenceReplayStorage):
    def episodes(self, env: int) -> Episodes:
        first, *others = super().episodes(env)
        if not others or self._inserted == len(self) or _ended(others[-1][-1]):
            return [first, *others]
        return [first, *others[:-1], others[-1] + first]


class BootstrapsFromTheReset(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        super().insert_transition(replace(transition, final_observation=None))


class TerminatesWhatWasCut(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        terminated, truncated = map(torch.as_tensor, (transition.terminated, transition.truncated))
        super().insert_transition(replace(transition, terminated=terminated | truncated))


class CutsWhatTerminated(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        terminated, truncated = map(torch.as_tensor, (transition.terminated, transition.truncated))
        super().insert_transition(replace(transition, terminated=terminated & ~truncated))


class SamplesResets(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        valid = torch.ones_like(torch.as_tensor(transition.valid))
        super().insert_transition(replace(transition, valid=valid))


class OffByOneAfterWrapping(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        columns = super().transitions()
        if self._inserted == len(self):
            return columns
        rewards = [column["reward"] for column in columns]
        return [c | {"reward": r} for c, r in zip(columns, rewards[1:] + rewards[:1], strict=True)]


class CountsAllSteps(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        return [c | {"num_steps": torch.tensor(self.n_step)} for c in super().transitions()]


class RepeatsTheLastReward(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        columns = super().transitions()
        for column in columns:
            steps = int(column["num_steps"])
            column["reward"][steps:] = column["reward"][steps - 1]
        return columns


class LooksOneStepAhead(ReferenceReplayStorage):
    """The observation after the first step stands where that after the last one belongs."""

    def transitions(self) -> Columns:
        single = ReferenceReplayStorage(self.size)
        single.spec, single._rows = self.spec, self._rows
        following = [
            {k: v for k, v in column.items() if k.startswith("next_observation")}
            for column in single.transitions()
        ]
        return [c | f for c, f in zip(super().transitions(), following, strict=True)]


class KeepsOverwrittenRows(ReferenceReplayStorage):
    def _share(self) -> int:
        return 2 * super()._share()


class KeepsHalf(ReferenceReplayStorage):
    def _share(self) -> int:
        return max(1, super()._share() // 2)


class WaitsForWholeWindows(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        columns = super().transitions()
        whole = [c for c in columns if c["terminated"] or int(c["num_steps"]) == self.n_step]
        return whole or columns


class NeverDrawsTheNewest(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        columns = super().transitions()
        newest = self._rows[0][-1].columns["action"] if len(self) > 1 else torch.tensor(-1)
        return [c for c in columns if not torch.equal(c["action"], newest)]


class FloatsEverything(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        return [
            {
                name: value.float() if name.startswith("observation") else value
                for name, value in column.items()
            }
            for column in super().transitions()
        ]


class FloatsExtras(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        return [
            {
                name: value.float() if name.startswith("extras/") else value
                for name, value in column.items()
            }
            for column in super().transitions()
        ]


class FavoursTheNewest(ReferenceReplayStorage):
    def sample_indices(self, *sizes: int | None) -> Iterator[Tensor]:
        (first,), (second,) = (ReferenceReplayStorage.sample_indices(self, *sizes) for _ in "ab")
        yield torch.maximum(first, second)


class WeighsByHalf(ReferenceReplayStorage):
    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        for batch in super().gather(indices):
            yield replace(batch, weight=0.5 * batch.weight)


class MasksAll(ReferenceReplayStorage):
    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        for batch in super().gather(indices):
            yield replace(batch, mask=torch.zeros_like(batch.mask))


class IndexWithoutGeneration(ReferenceReplayStorage):
    def transitions(self) -> Columns:
        return [c | {"index": c["index"] * torch.tensor([1, 0])} for c in super().transitions()]


class ForgetsItsGenerator(ReferenceReplayStorage):
    def load_state_dict(self, state: StateDict) -> None:
        own = self.generator.get_state()
        super().load_state_dict(state)
        self.generator.set_state(own)


class NumbersFromZeroAgain(ReferenceReplayStorage):
    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._inserted = len(self)


class ResumesWithABoundary(ReferenceReplayStorage):
    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.mark_boundary()


class TakesDamagedStates(ReferenceReplayStorage):
    def load_state_dict(self, state: StateDict) -> None:
        try:
            super().load_state_dict(state)
        except CheckpointError:
            self.reset()


class CutsEverySlice(ReferenceReplayStorage):
    def insert_data_slice(self, data: DataSlice) -> None:
        self.mark_boundary()
        super().insert_data_slice(data)


class IsAnotherWhenEmptied(ReferenceReplayStorage):
    def reset(self) -> None:
        super().reset()
        self._places.cut()


class IgnoresCuts(ReferenceReplayStorage):
    def mark_boundary(self) -> None:
        return


class LosesFinalsInSlices(ReferenceReplayStorage):
    def get_data_slice(self, start: int, end: int) -> DataSlice:
        data = dict(super().get_data_slice(start, end))
        return data | {
            name: data[name.replace("successor/", "next/")]
            for name in data
            if name.startswith("successor/")
        }


class TakesTheOldestOfALongSlice(ReferenceReplayStorage):
    def insert_data_slice(self, data: DataSlice) -> None:
        super().insert_data_slice({k: column[: self._share()] for k, column in data.items()})


class EndsTrajectoriesForGood(ReferenceReplayStorage):
    def trajectories(self) -> Iterator[Trajectory]:
        for trajectory in super().trajectories():
            yield replace(trajectory, terminated=True)


class SkipsLoneSteps(ReferenceReplayStorage):
    def trajectories(self) -> Iterator[Trajectory]:
        yield from (trajectory for trajectory in super().trajectories() if len(trajectory) > 1)


class ForgetsTheFirst(ReferenceReplayStorage):
    def trajectories(self) -> Iterator[Trajectory]:
        _, *others = super().trajectories()
        yield from others


class ForgetsWhatFollowed(ReferenceReplayStorage):
    def trajectories(self) -> Iterator[Trajectory]:
        for trajectory in super().trajectories():
            whole = trajectory.observation
            if isinstance(whole, Tensor):
                whole = torch.cat((whole[:-1], whole[-2:-1]))
            yield replace(trajectory, observation=whole)


class KeepsARowAtAReset(ReferenceReplayStorage):
    def reset(self) -> None:
        last = [rows[-1:] for rows in self._rows]
        super().reset()
        self._rows = last or self._rows


class ForgetsAfterAnUpdate(ReferenceReplayStorage):
    def after_update(self) -> None:
        self.reset()


class TellsAllAgain(ReferenceReplayStorage):
    def new_observations(self) -> tuple[Observation, Tensor]:
        self._reported = 0
        return super().new_observations()


class CountsResets(ReferenceReplayStorage):
    def new_observations(self) -> tuple[Observation, Tensor]:
        observation, counts = super().new_observations()
        return observation, torch.ones_like(counts)


class TellsNothingAfterACheckpoint(ReferenceReplayStorage):
    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.new_observations()


class FailsWhenEmpty(ReferenceReplayStorage):
    def sample_indices(self, *sizes: int | None) -> Iterator[Tensor]:
        try:
            yield from super().sample_indices(*sizes)
        except RLError as error:
            raise IndexError(str(error)) from error


class GuessesSizes(ReferenceReplayStorage):
    def sample_indices(self, *sizes: int | None) -> Iterator[Tensor]:
        yield from super().sample_indices(*(size or 1 for size in sizes))


class RoundsSizesUp(ReferenceReplayStorage):
    def __init__(self, size: int, n_step: int) -> None:
        super().__init__(max(size, 10), max(n_step, 1))


class Casts(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        reward = torch.as_tensor(transition.reward).float()
        super().insert_transition(replace(transition, reward=reward))


class SharesActions(ReferenceReplayStorage):
    def insert_transition(self, transition: Transition) -> None:
        super().insert_transition(transition)
        for env, rows in enumerate(self._rows):
            rows[-1].columns["action"] = transition.action[env]


@cache
def _shared_ones(size: int) -> Tensor:
    return torch.ones(size)


class SharesMasks(ReferenceReplayStorage):
    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        for batch in super().gather(indices):
            yield replace(batch, mask=_shared_ones(len(batch.mask)))


class SharesWeights(ReferenceReplayStorage):
    def gather(self, indices: Tensor) -> Iterator[ReplayBatch]:
        for batch in super().gather(indices):
            yield replace(batch, weight=_shared_ones(len(batch.weight)))


class ForgetsItsScale(ReferenceReplayStorage):
    """Has a live parameter that no checkpoint holds."""

    scale = 1.0

    def live_parameters(self) -> dict[str, float]:
        return {"scale": self.scale}

    def set_live_parameter(self, name: str, value: float) -> None:
        self.scale = value


class ForgetsWhatItLearned(ReferenceReplayStorage):
    """Draws later transitions after each gradient step, which no checkpoint holds."""

    learned_from = 0

    def after_gradients(self, batch: object, info: Mapping[str, Tensor]) -> None:
        self.learned_from += 1

    def sample_indices(self, *sizes: int | None) -> Iterator[Tensor]:
        for indices in super().sample_indices(*sizes):
            yield (indices + self.learned_from) % len(self.transitions())


class ForgetsReturns(ReferenceReplayStorage):
    """Logs the best return so far, which no checkpoint holds."""

    best = 0.0

    def note_returns(self, returns: Sequence[float]) -> None:
        self.best = max(self.best, *returns)

    def metrics(self) -> dict[str, float]:
        return {"best": self.best}


class GivesRollouts(ReferenceReplayStorage):
    batch_type = RolloutBatch


MUTANTS: list[tuple[type[ReferenceReplayStorage], str]] = [
    (GivesRollouts, "test_it_gives_replayed_transitions"),
    (CrossesEnds, "test_every_sample_is_what_happened"),
    (ForgetsInterruptions, "test_every_sample_is_what_happened"),
    (CrossesTheWritePosition, "test_every_sample_is_what_happened"),
    (BootstrapsFromTheReset, "test_every_sample_is_what_happened"),
    (TerminatesWhatWasCut, "test_every_sample_is_what_happened"),
    (CutsWhatTerminated, "test_every_sample_is_what_happened"),
    (SamplesResets, "test_every_sample_is_what_happened"),
    (OffByOneAfterWrapping, "test_every_sample_is_what_happened"),
    (CountsAllSteps, "test_every_sample_is_what_happened"),
    (RepeatsTheLastReward, "test_every_sample_is_what_happened"),
    (LooksOneStepAhead, "test_every_sample_is_what_happened"),
    (KeepsOverwrittenRows, "test_every_sample_is_what_happened"),
    (KeepsHalf, "test_nothing_is_missing"),
    (WaitsForWholeWindows, "test_nothing_is_missing"),
    (NeverDrawsTheNewest, "test_nothing_is_missing"),
    (FloatsEverything, "test_every_sample_is_what_happened"),
    (FloatsExtras, "test_every_sample_is_what_happened"),
    (MasksAll, "test_every_sample_is_what_happened"),
    (FavoursTheNewest, "test_all_samples_are_drawn_alike"),
    (WeighsByHalf, "test_all_samples_are_drawn_alike"),
    (IndexWithoutGeneration, "test_an_index_names_one_sample"),
    (ForgetsItsGenerator, "test_a_restored_storage_goes_on_alike"),
    (NumbersFromZeroAgain, "test_a_restored_storage_goes_on_alike"),
    (ResumesWithABoundary, "test_a_restored_storage_goes_on_alike"),
    (ForgetsItsScale, "test_a_live_parameter_that_was_changed_is_saved"),
    (ForgetsWhatItLearned, "test_what_changes_while_learning_is_saved"),
    (ForgetsReturns, "test_what_changes_while_learning_is_saved"),
    (TakesDamagedStates, "test_a_damaged_state_is_refused"),
    (RunsSlicesTogether, "test_slices_bring_the_same_samples"),
    (LosesFinalsInSlices, "test_slices_bring_the_same_samples"),
    (CutsEverySlice, "test_slices_go_on_where_they_follow_each_other"),
    (IsAnotherWhenEmptied, "test_a_slice_goes_on_after_its_storage_was_emptied"),
    (IgnoresCuts, "test_nothing_goes_on_after_a_cut"),
    (TakesTheOldestOfALongSlice, "test_a_slice_may_fill_the_storage"),
    (ForgetsTheFirst, "test_trajectories_are_what_happened"),
    (ForgetsWhatFollowed, "test_trajectories_are_what_happened"),
    (EndsTrajectoriesForGood, "test_trajectories_are_what_happened"),
    (SkipsLoneSteps, "test_trajectories_are_what_happened"),
    (KeepsARowAtAReset, "test_after_a_reset_nothing_older_is_drawn"),
    (ForgetsAfterAnUpdate, "test_an_update_forgets_nothing"),
    (TellsAllAgain, "test_new_observations_are_returned_once"),
    (CountsResets, "test_new_observations_are_returned_once"),
    (TellsNothingAfterACheckpoint, "test_new_observations_are_returned_once"),
    (FailsWhenEmpty, "test_after_a_reset_nothing_older_is_drawn"),
    (GuessesSizes, "test_batches_need_both_sizes"),
    (RoundsSizesUp, "test_sizes_without_room_are_refused"),
    (Casts, "test_a_transition_that_does_not_fit_is_refused"),
    (SharesActions, "test_nothing_is_shared"),
    (SharesMasks, "test_nothing_is_shared"),
    (SharesWeights, "test_nothing_is_shared"),
]


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
def test_a_broken_storage_is_found_out(mutant: type[ReferenceReplayStorage], name: str) -> None:
    class Suite(ReplayStorageSuite):
        def make_storage(self, *, size: int, n_step: int) -> ReferenceReplayStorage:
            return mutant(size, n_step)

    assert any(_fails(Suite(), name, case) for case in _cases(name)), f"{name} does not notice"


@pytest.mark.parametrize(
    ("mutant", "name", "message"),
    [
        (
            ForgetsItsScale,
            "test_a_live_parameter_that_was_changed_is_saved",
            "live parameter 'scale' was set to 0.5 and is 1.0 after a restore; is the field in",
        ),
        (
            ForgetsWhatItLearned,
            "test_what_changes_while_learning_is_saved",
            "batch.*after a restore; is the field in state_fields",
        ),
        (
            ForgetsItsGenerator,
            "test_a_restored_storage_goes_on_alike",
            "batch.*after a restore.*does it draw from the generator it was given",
        ),
        (IndexWithoutGeneration, "test_an_index_names_one_sample", "two samples have the same"),
    ],
)
def test_the_message_tells_what_to_look_at(
    mutant: type[ReferenceReplayStorage], name: str, message: str
) -> None:
    class Suite(ReplayStorageSuite):
        def make_storage(self, *, size: int, n_step: int) -> ReferenceReplayStorage:
            return mutant(size, n_step)

    with pytest.raises(AssertionError, match=message):
        getattr(Suite(), name)(**next(_cases(name)))


def test_every_test_of_the_suite_has_its_mutant() -> None:
    own = {name for name in dir(ReplayStorageSuite) if name.startswith("test_")}
    own -= set(dir(StorageSuite))
    assert own == {name for _, name in MUTANTS}


def _cases(name: str) -> Iterator[dict[str, object]]:
    """Yield the arguments with which pytest would call a test of the suite."""
    method = getattr(ReplayStorageSuite, name)
    axes: list[list[dict[str, object]]] = []
    parameters = inspect.signature(method).parameters
    numbers = {"n_step": ReplayStorageSuite.n_steps, "count": ReplayStorageSuite.counts}
    if given := parameters.keys() & numbers.keys():
        (key,) = given
        cases = ReplayStorageSuite.cases(numbers[key]).values()
        axes.append([{"life": life, key: number} for life, number in cases])
    elif "life" in parameters:
        axes.append([{"life": life} for life in ReplayStorageSuite.lives.values()])
    for mark in getattr(method, "pytestmark", []):
        names, values = mark.args
        if isinstance(names, str):
            axes.append([{names: value} for value in values])
        else:
            axes.append([dict(zip(names, value, strict=True)) for value in values])
    for parts in product(*axes):
        yield {key: value for part in parts for key, value in part.items()}


def _fails(suite: ReplayStorageSuite, name: str, case: dict[str, object]) -> bool:
    try:
        getattr(suite, name)(**case)
    except (AssertionError, pytest.fail.Exception):
        return True
    except IndexError:
        return name == "test_after_a_reset_nothing_older_is_drawn"
    return False


def _ended(row: Row) -> bool:
    return bool(row.columns["terminated"] or row.columns["truncated"])


def _joined(episodes: Episodes, *, at_starts: bool) -> Episodes:
    """Join episodes that were left to those that follow them."""
    joined: Episodes = []
    for episode in episodes:
        starts = bool(episode[0].columns["episode_start"])
        if joined and not _ended(joined[-1][-1]) and (at_starts or not starts):
            joined[-1] = joined[-1] + episode
        else:
            joined.append(episode)
    return joined
