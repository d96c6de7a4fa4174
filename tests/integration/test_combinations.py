"""Every combination of what a replay buffer can do, compared with slow and obvious storages.

Each subset of the options goes through scripted lives, of sizes that are drawn at random: rows are
overwritten many times, episodes end in every way, environments are reset from outside, slices of
other workers come in between, the storage is saved and opened again, and in the end it hands all
it holds to another one. Whatever is drawn must be what happened, and what happened be drawn. An
error says what life it is of.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pytest
import torch

from rl_core.batch import ReplayBatch, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import DataSlice
from rl_storages import (
    HindsightConfig,
    PrioritizedConfig,
    RecentConfig,
    ReplayBuffer,
    SequenceConfig,
)
from rl_testing.replay import (
    ReferenceReplayStorage,
    ReferenceSequenceStorage,
    check_sequences,
    check_trajectories,
    check_transitions,
    must_hold,
)
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, seeded
from rl_testing.transitions import TransitionScript, misfits
from rl_train.storage_files import open_storage, save_storage
from support.goals import WITH_ENDS, WITHOUT_ENDS, ReferenceGoals, Strategy
from support.stacks import StackedScript

FEATURES = ("n_step", "prioritized", "recent", "hindsight", "sequences", "frame_stack")
SUBSETS = [
    tuple(name for name, is_in in zip(FEATURES, chosen, strict=True) if is_in)
    for chosen in product((False, True), repeat=len(FEATURES))
]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

STEPS = 64
NUM_ENVS = (1, 2, 3, 5, 8, 16)
"""Of the lives of a subset, which go through `TRANSITIONS` together."""

TRANSITIONS = 1200
MET = {"transitions", "same-step resets", "next-step resets", "seams", "wrapped slices"}
"""What every subset must meet."""

ValueT = TypeVar("ValueT")


@dataclass
class _Life:
    """A storage with some options, and all that is known of what it was given.

    Attributes:
        script: what its environments live through.
        rows: transitions of each environment that there is room for.
        options: of the storage.
        goals: what samples have in hindsight; None where they keep their own.
    """

    script: TransitionScript
    rows: int
    options: Mapping[str, Any]
    goals: ReferenceGoals | None

    def __post_init__(self) -> None:
        sequences: SequenceConfig | None = self.options.get("sequences")
        self.learned, burn_in = 1, 0
        if sequences is not None:
            self.learned, burn_in = sequences.learned, sequences.burn_in
        self.per_episode: int = self.options.get("frame_stack", 1)
        # Rows of each environment beside its head, of those that can be drawn and of all.
        self.drawable = self.rows + self.per_episode + self.learned - 2
        self.room = self.drawable + burn_in
        self.storage = self.new_storage()
        n_step = self.storage.n_step
        self.oracle: ReferenceReplayStorage = (
            ReferenceReplayStorage(10**6, n_step)
            if sequences is None
            else ReferenceSequenceStorage(10**6, n_step, learned=self.learned, burn_in=burn_in)
        )
        self.oracle.allocate(self.script.spec(), seeded())
        self.errors: dict[tuple[str, int], float] = {}
        self.largest = 1.0
        self.keys: dict[str, list[int]] = {}
        self.lag = 0  # how many rows slices had fewer of an environment than of another
        self.joints = 0  # where something else may go on than what is stored

    def new_storage(self, seed: int = 0) -> ReplayBuffer:
        her_function = None if self.goals is None else self.goals.functions  # rewards are scripted
        size = self.rows * self.script.num_envs
        storage = ReplayBuffer(size, her_function=her_function, **self.options)
        storage.allocate(self.script.spec(), seeded(seed))
        return storage

    def insert(self, transition: Transition) -> None:
        self.storage.insert_transition(transition)
        self.oracle.insert_transition(transition)

    def look(self) -> None:
        """Find out what could be drawn if nothing were overwritten, the oldest first.

        ``units`` has, by step and environment of its first transition, the action of this one, and
        how many transitions are learned from. What is new, or has grown, has the largest priority.
        """
        units = {
            (episode[start].step, env): (
                str(episode[start].columns["action"].tolist()),
                min(len(episode) - start, self.learned),
            )
            for env, episode, start in self.oracle.places()
            if start % self.learned == 0
        }
        self.units: dict[tuple[int, int], tuple[str, int]] = dict(sorted(units.items()))
        self.lengths = dict(self.units.values())
        for unit in units.values():
            self.errors.setdefault(unit, self.largest)

    def draw(self, size: int) -> ReplayBatch:
        (batch,) = self.storage.generate_batches(1, size)
        return batch

    def check(self, batch: ReplayBatch) -> list[str]:
        """Assert that a batch is what it must be; return first actions."""
        oldest = len(self.oracle) - self.room - self.lag
        if isinstance(self.oracle, ReferenceSequenceStorage):
            check_sequences(batch, self.oracle, goals=self.goals, oldest=oldest)
        else:
            check_transitions(batch, self.oracle, goals=self.goals, oldest=oldest)
        firsts = self.firsts(batch)
        for first, key in zip(firsts, batch.index.tolist(), strict=True):
            assert self.keys.setdefault(first, key) == key, f"another key of {first}"
        self.check_weights(batch, firsts)
        if "recent" in self.options:
            assert set(firsts) <= self.newest, "what was drawn is not the newest"
        return firsts

    def firsts(self, batch: ReplayBatch) -> list[str]:
        actions = batch.action[0] if self.storage.gives_sequences else batch.action
        return [str(action) for action in actions.tolist()]

    @property
    def newest(self) -> set[str]:
        """What is drawn where only the newest is."""
        width = -(-self.options["recent"].cmin // self.learned)
        return {first for first, _ in list(self.units.values())[-width:]}

    def check_weights(self, batch: ReplayBatch, firsts: list[str]) -> None:
        """Eq. (2) of prioritized draws with beta 1, from a dictionary of errors."""
        weight = batch.weight[0] if self.storage.gives_sequences else batch.weight
        if "prioritized" not in self.options:
            assert bool((weight == 1.0).all())
            return
        priorities = np.array([self.errors[(first, self.lengths[first])] for first in firsts])
        if "recent" in self.options:
            smallest = min(self.errors[(first, self.lengths[first])] for first in self.newest)
        else:
            saved: Any = self.storage.state_dict()
            stored = saved["sampler"]["priorities"]
            smallest = float(stored[stored > 0].min())
        np.testing.assert_allclose(weight, smallest / priorities, rtol=1e-5)

    def answer(self, batch: ReplayBatch, firsts: list[str], generator: np.random.Generator) -> None:
        """Let the storage learn errors, which are the same for each row of a sequence."""
        errors = {first: float(generator.integers(1, 9)) for first in firsts}
        given = torch.tensor([errors[first] for first in firsts])
        self.storage.after_gradients(batch, {"td_error": given.expand(batch.mask.shape)})
        for first, error in errors.items():
            self.errors[(first, self.lengths[first])] = error
        self.largest = max(self.largest, *errors.values())

    def resume(self, directory: Path | None) -> None:
        """Go on with a storage that was loaded, or opened, after seeing that all draw alike."""
        state = copy_state(self.storage.state_dict())
        assert isinstance(state, dict)
        restored = [self.new_storage(seed=9)]
        for _ in range(9):  # so that it is further than what it takes over
            restored[0].insert_data_slice(self.storage.get_all_buffer_data())
        list(restored[0].generate_batches(1, 8))
        restored[0].load_state_dict(state)
        if directory is not None:
            opened = open_storage(save_storage(self.storage, directory))
            assert isinstance(opened, ReplayBuffer)
            restored.append(opened)
        for _ in range(2):
            storages = [self.storage, *restored]
            batches = [batch for each in storages for batch in each.generate_batches(1, 20)]
            firsts = self.check(batches[0])
            for storage, batch in zip(storages, batches, strict=True):
                check_same_state(columns_of(batch), columns_of(batches[0]))
                storage.after_gradients(batch, {"td_error": torch.ones(batch.mask.shape)})
            for first in firsts:
                self.errors[(first, self.lengths[first])] = 1.0
        self.storage = restored[-1]
        if directory is not None or self.script.interrupted:
            self.storage.mark_boundary()
            self.oracle.mark_boundary()
        self.joints += 1

    def take_over(self, other: "_Life", start: int = 0) -> None:
        """Insert all that another one holds, or its steps from one on."""
        held, end = other.held(), len(other.storage)
        if start:
            held = {name: part[start - end :] for name, part in held.items()}
        self.storage.insert_data_slice(other.storage.get_data_slice(start, end))
        self.oracle.insert_data_slice(held)
        self.lag += int((~held["valid"]).sum(0).max())
        self.joints += 2

    def held(self) -> DataSlice:
        """Compare trajectories, and return the oracle's rows from the oldest of their steps on.

        What is gone of one environment, but not of another, is no transition there.
        """
        known = self.oracle.places()
        places = check_trajectories(self.storage.trajectories(), self.oracle)
        missing = self.must_hold() - set(places)
        assert not missing, f"{len(missing)} steps are missing from the trajectories"
        data = self.oracle.get_all_buffer_data()
        valid = torch.zeros_like(data["valid"])
        for env, episode, start in (known[i] for i in places):
            valid[episode[start].step, env] = True
        first = int(valid.any(1).int().argmax())
        return {name: part[first:] for name, part in {**data, "valid": valid}.items()}

    def must_hold(self) -> set[int]:
        """Return which of the oracle's transitions there must be room for.

        A step that only resets takes a row more where it does not go on from what is stored.
        """
        rows = self.drawable - self.joints * (self.script.autoreset == "next_step")
        return set(must_hold(self.oracle, rows, self.per_episode))

    def check_complete(self) -> None:
        """Assert that all is drawn that there must be room for."""
        self.look()
        count = min(len(self.units), self.rows * self.script.num_envs)
        drawn = set(self.firsts(self.draw(20 * self.learned * count)))
        if "recent" in self.options:
            assert drawn == self.newest
            return
        places = self.oracle.places()
        must = {(places[i][1][places[i][2]].step, places[i][0]) for i in self.must_hold()}
        missing = {self.units[place][0] for place in must & self.units.keys()} - drawn
        assert not missing, f"{missing} were never drawn"


def _lives(subset: tuple[str, ...]) -> Iterator[_Life]:
    """Yield a life for each way to reset, with and without resets from outside.

    Each number of environments and each strategy occurs. All else is drawn at random.
    """
    generator = np.random.default_rng(SUBSETS.index(subset))
    num_envs = generator.permutation(NUM_ENVS).tolist()
    numbers = generator.permutation(len(NUM_ENVS)).tolist()
    for place, (autoreset, interrupted) in enumerate(
        product(("same_step", "next_step", "disabled"), (False, True))
    ):
        goals = None
        if "hindsight" in subset:
            strategy = STRATEGIES[numbers[place] % len(STRATEGIES)]
            goals = ReferenceGoals(strategy, _pick(generator, WITH_ENDS, WITHOUT_ENDS))
        rows = int(generator.integers(6, 32))
        options = _options(generator, subset, rows, goals)
        script: dict[str, Any] = {
            "seed": int(generator.integers(10**6)),
            "autoreset": autoreset,
            "num_envs": num_envs[place],
            "observation": "goals" if goals else _pick(generator, "vector", "image", "dict"),
            "action": _pick(generator, "discrete", "box"),
            "recurrent": "sequences" in subset or _pick(generator, False, True),
            "extras": _pick(generator, False, True),
            "arrays": _pick(generator, "numpy", "torch"),
            "interrupted": interrupted,
        }
        if "frame_stack" in options:
            script["frame_stack"] = options["frame_stack"]
            script["padding"] = _pick(generator, "reset", "zero")
        kind = StackedScript if "frame_stack" in options else TransitionScript
        yield _Life(kind(**script), rows, options, goals)


def _options(
    generator: np.random.Generator, subset: tuple[str, ...], rows: int, goals: ReferenceGoals | None
) -> dict[str, Any]:
    """Draw a storage's options."""
    options: dict[str, Any] = {"n_step": int(generator.integers(2, 6))}
    overlap = round(float(generator.uniform(0.0, 0.9)), 2)
    sequences = SequenceConfig(length=int(generator.integers(1, 11)), overlap=overlap)
    options |= {"sequences": sequences, "frame_stack": int(generator.integers(2, 5))}
    learned = sequences.learned if "sequences" in subset else 1
    frames = options["frame_stack"] if "frame_stack" in subset else 1
    # Each of the newest is stored, even if all episodes are as short as what is drawn at once.
    widest = (rows + learned - 1) // (learned + frames) * learned
    newest = int(generator.integers(1, min(widest, rows - 1) + 1))
    options["recent"] = RecentConfig(eta=1e-9, cmin=newest)
    options["prioritized"] = PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0)
    if goals is not None:
        options["hindsight"] = HindsightConfig(k=2.0, strategy=goals.strategy)
    return {name: options[name] for name in subset}


def _pick(generator: np.random.Generator, *values: ValueT) -> ValueT:
    return values[int(generator.integers(len(values)))]


def _go_through(life: _Life, directory: Path | None) -> Counter[str]:
    """Return how often a life met what all must meet; save it if there is a directory."""
    generator = np.random.default_rng(life.script.seed)
    transitions = life.script.transitions(STEPS + life.room + 21)
    seen, own, interrupted = _events(transitions), iter(transitions), life.script.interrupted
    for step in range(STEPS):
        transition = next(own)
        life.insert(transition)
        seen["transitions"] += int(np.count_nonzero(transition.valid))
        if step in (STEPS // 4, STEPS // 2, 2 * STEPS // 3) and interrupted:
            list(islice(own, 3))  # of which no storage is told
        if step == STEPS // 4:
            worker = replace(life)
            for other in islice(own, 9):
                worker.insert(other)
            life.take_over(worker)
        if step == STEPS // 2:
            worker = replace(life, rows=life.rows + 5 * (not interrupted))
            for other in islice(own, worker.room + 3):
                worker.insert(other)
            life.take_over(worker, start=interrupted * len(worker.storage) // 3)
            seen["wrapped slices"] += len(worker.storage) < len(worker.oracle)
        if step == 2 * STEPS // 3:
            life.look()
            life.resume(directory)
        if step % 12 == 5 or step == STEPS - 1:
            life.look()
            batch = life.draw(24)
            life.answer(batch, life.check(batch), generator)
    life.check_complete()
    taker = replace(life, rows=5 * life.room)  # an episode takes up to four rows of its own
    taker.take_over(life)
    taker.check_complete()
    taker.check(taker.draw(24))
    taker.held()
    return seen


def _events(transitions: list[Transition]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for transition, following in pairwise(transitions):
        valid, begins = np.asarray(transition.valid), np.asarray(following.episode_start)
        ended = np.asarray(transition.terminated) | np.asarray(transition.truncated)
        seen["next-step resets"] += int((~valid).sum())
        seen["seams"] += int((valid & ~ended & begins).sum())
        if transition.final_observation is not None:
            seen["same-step resets"] += int((ended & begins).sum())
    return seen


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset) or "plain")
def test_every_subset_replays_what_happened(subset: tuple[str, ...], tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for number, life in enumerate(_lives(subset)):
        is_saved = life.goals is None and (number + len(subset)) % 3 == 0
        try:
            seen += _go_through(life, tmp_path / str(number) if is_saved else None)
        except Exception as error:
            error.add_note(f"It is life {number}: {life}")
            raise
        if life.goals is not None:
            seen[life.goals.strategy] += 1
    assert set(seen) == (MET | set(STRATEGIES) if "hindsight" in subset else MET)
    assert seen["transitions"] >= TRANSITIONS


@pytest.mark.parametrize("option", FEATURES)
def test_every_option_meets_all_goals(option: str) -> None:
    lives = [life for subset in SUBSETS if option in subset for life in _lives(subset)]
    met = {(life.goals.strategy, life.goals.functions) for life in lives if life.goals is not None}
    assert met == set(product(STRATEGIES, (WITH_ENDS, WITHOUT_ENDS)))


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset) or "plain")
def test_every_subset_refuses_what_is_wrong(subset: tuple[str, ...]) -> None:
    """Draws before there is anything, transitions that do not fit, and errors without a value."""
    life = list(_lives(subset))[len(subset) % len(NUM_ENVS)]
    transitions = life.script.transitions(8)
    with pytest.raises(ConfigError, match="holds no transition yet"):
        life.draw(4)
    for transition in transitions[:7]:
        life.insert(transition)
    batch = life.draw(8)
    before = copy_state(life.storage.state_dict())
    for misfit in misfits(transitions[7], with_state="sequences" in subset):
        with pytest.raises(DataError, match="transition"):
            life.storage.insert_transition(misfit)
    if "prioritized" in subset:
        errors = torch.ones(batch.mask.shape)
        errors.view(-1)[0] = float("nan")  # the first row of the first sample, which counts
        with pytest.raises(DataError, match="are not finite"):
            life.storage.after_gradients(batch, {"td_error": errors})
    check_same_state(life.storage.state_dict(), before)
