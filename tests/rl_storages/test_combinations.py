"""Every combination of what a replay buffer can do, compared with slow and obvious storages.

Each subset of the options goes through scripted lives: rows are overwritten many times, episodes
end in every way, environments are reset from outside, slices of other workers come in between, and
the storage is resumed halfway. Whatever is drawn must be what happened, and what happened be drawn.
Each option meets every script and, with goals in hindsight, every strategy with and without ends
that depend on goals; not every subset does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch

from rl_core.batch import ReplayBatch, Transition
from rl_core.errors import ConfigError, DataError
from rl_core.goals import GoalFunctions
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.testing.replay import (
    LIVES,
    RandomTransitionScript,
    ReferenceGoals,
    ReferenceReplayStorage,
    ReferenceSequenceStorage,
    check_sequences,
    check_transitions,
    must_hold,
)
from rl_core.testing.replay._faults import misfits
from rl_core.testing.replay.goals import WITH_ENDS, WITHOUT_ENDS, Strategy
from rl_core.testing.stacks import StackedRandomScript
from rl_core.testing.stateful import check_same_state, copy_state
from rl_core.testing.storages import columns_of, seeded
from rl_storages import (
    HindsightConfig,
    PrioritizedConfig,
    RecentConfig,
    ReplayBuffer,
    SequenceConfig,
)
from rl_storages._newest import Windows

ROWS = 24
"""Transitions of each environment; episodes of 40 steps are longer."""

STEPS = 66
NEWEST = 10
"""Transitions in the windows of newest-first draws."""

LEARNED, BURN_IN, FRAMES = 3, 2, 3

FEATURES: Mapping[str, Any] = {
    "n_step": 3,
    "prioritized": PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0),
    "recent": RecentConfig(eta=1e-9, cmin=NEWEST),
    "hindsight": HindsightConfig(k=2.0),
    "sequences": SequenceConfig(length=LEARNED + BURN_IN, overlap=0.4),
    "frame_stack": FRAMES,
}

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
NAMES = tuple(LIVES)
SUBSETS = [
    tuple(name for name, is_in in zip(FEATURES, chosen, strict=True) if is_in)
    for chosen in product((False, True), repeat=len(FEATURES))
]


@dataclass
class _Life:
    """A storage with some options, and all that is known of what it was given.

    Attributes:
        subset: names of `FEATURES`.
        number: decides which script it lives through.
        strategy: which goals it gets in hindsight.
        functions: how these are rewarded, and whether episodes end by them.
    """

    subset: tuple[str, ...]
    number: int
    strategy: Strategy = "future"
    functions: GoalFunctions = WITHOUT_ENDS
    errors: dict[tuple[str, int], float] = field(default_factory=dict)
    keys: dict[str, list[int]] = field(default_factory=dict)
    largest: float = 1.0
    units: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        life = LIVES[NAMES[self.number % len(NAMES)]]
        if "hindsight" in self.subset:
            life = replace(life, observation="goals")
        if "sequences" in self.subset:
            life = replace(life, recurrent=True)
        if "frame_stack" in self.subset:
            fields = RandomTransitionScript.__dataclass_fields__
            life = StackedRandomScript(
                **{name: getattr(life, name) for name in fields},
                frame_stack=FRAMES,
                padding="zero" if self.number % 2 else "reset",
            )
        self.life = life
        self.goals = None
        if "hindsight" in self.subset:
            self.goals = ReferenceGoals(self.strategy, self.functions)
        self.storage = self.new_storage()
        n_step = self.storage.n_step
        self.oracle: ReferenceReplayStorage = (
            ReferenceSequenceStorage(10**6, n_step, learned=LEARNED, burn_in=BURN_IN)
            if "sequences" in self.subset
            else ReferenceReplayStorage(10**6, n_step)
        )
        self.oracle.allocate(self.spec, seeded())

    @property
    def spec(self) -> StorageSpec:
        goals = self.goals
        spec = self.life.spec()
        return spec if goals is None else replace(spec, goal_functions=lambda: goals.functions)

    @property
    def rows(self) -> int:
        """Rows of each environment beside the head's: no step is stored that is older."""
        extra = (FRAMES - 1) * ("frame_stack" in self.subset)
        return ROWS + extra + (LEARNED + BURN_IN - 1) * ("sequences" in self.subset)

    def new_storage(self, seed: int = 0) -> ReplayBuffer:
        options = {name: FEATURES[name] for name in self.subset}
        if self.goals is not None:
            options["hindsight"] = replace(options["hindsight"], strategy=self.goals.strategy)
        storage = ReplayBuffer(ROWS * self.life.num_envs, **options)
        storage.allocate(self.spec, seeded(seed))
        return storage

    def look(self) -> None:
        """Find out what could be drawn if nothing were overwritten, the oldest first.

        ``units`` has, by step and environment of its first transition, the action of this one, and
        how many transitions are learned from. What is new, or has grown, has the largest priority.
        """
        learned = LEARNED if "sequences" in self.subset else 1
        units = {
            (episode[start].step, env): (
                str(episode[start].columns["action"].tolist()),
                min(len(episode) - start, learned),
            )
            for env, episode, start in self.oracle.places()
            if start % learned == 0
        }
        self.units = dict(sorted(units.items()))
        self.lengths = dict(self.units.values())
        for unit in units.values():
            self.errors.setdefault(unit, self.largest)

    def draw(self, size: int) -> ReplayBatch:
        (batch,) = self.storage.generate_batches(1, size)
        return batch

    def check(self, batch: ReplayBatch) -> list[str]:
        """Assert that a batch is what it must be; return first actions."""
        oldest = len(self.oracle) - self.rows
        if isinstance(self.oracle, ReferenceSequenceStorage):
            check_sequences(batch, self.oracle, goals=self.goals, oldest=oldest)
            firsts = [str(action) for action in batch.action[0].tolist()]
        else:
            check_transitions(batch, self.oracle, goals=self.goals, oldest=oldest)
            firsts = [str(action) for action in batch.action.tolist()]
        for first, key in zip(firsts, batch.key.tolist(), strict=True):
            assert self.keys.setdefault(first, key) == key, f"another key of {first}"
        self.check_weights(batch, firsts)
        if "recent" in self.subset:
            assert set(firsts) <= self.newest, "what was drawn is not the newest"
        return firsts

    @property
    def newest(self) -> set[str]:
        """What is drawn where only the newest is."""
        width = -(-NEWEST // LEARNED) if "sequences" in self.subset else NEWEST
        return {first for first, _ in list(self.units.values())[-width:]}

    def check_weights(self, batch: ReplayBatch, firsts: list[str]) -> None:
        """Eq. (2) of prioritised draws with beta 1, from a dictionary of errors."""
        weight = batch.weight[0] if "sequences" in self.subset else batch.weight
        if "prioritized" not in self.subset:
            assert bool((weight == 1.0).all())
            return
        priorities = np.array([self.errors[(first, self.lengths[first])] for first in firsts])
        np.testing.assert_allclose(weight, priorities.min() / priorities, rtol=1e-5)

    def answer(self, batch: ReplayBatch, firsts: list[str], generator: Any) -> None:
        """Let the storage learn errors, which are the same for each row of a sequence."""
        errors = {first: float(generator.integers(1, 9)) for first in firsts}
        given = torch.tensor([errors[first] for first in firsts])
        self.storage.after_gradients(batch, {"td_error": given.expand(batch.mask.shape)})
        for first, error in errors.items():
            self.errors[(first, self.lengths[first])] = error
        self.largest = max(self.largest, *errors.values())

    def bring_slice(self, transitions: list[Transition]) -> None:
        """Insert what another worker lived through, where nothing goes on from what is stored."""
        worker, source = self.new_storage(), ReferenceReplayStorage(10**6)
        source.allocate(self.spec, seeded())
        for transition in transitions:
            worker.insert_transition(transition)
            source.insert_transition(transition)
        self.storage.insert_data_slice(worker.get_all_buffer_data())
        self.oracle.insert_data_slice(source.get_all_buffer_data())

    def resume(self, others: list[Transition]) -> None:
        """Go on with a storage that had other transitions, after seeing that both draw alike."""
        state = copy_state(self.storage.state_dict())
        assert isinstance(state, dict)
        restored = self.new_storage(seed=9)
        for transition in others:
            restored.insert_transition(transition)
        list(restored.generate_batches(1, 8))
        restored.load_state_dict(state)
        for _ in range(2):
            (expected,) = self.storage.generate_batches(1, 20)
            (actual,) = restored.generate_batches(1, 20)
            check_same_state(columns_of(actual), columns_of(expected))
            for storage, batch in ((self.storage, expected), (restored, actual)):
                storage.after_gradients(batch, {"td_error": torch.ones(batch.mask.shape)})
            for first in self.check(expected):
                self.errors[(first, self.lengths[first])] = 1.0
        self.storage = restored

    def check_complete(self) -> None:
        """Assert that all is drawn that there must be room for."""
        batch = self.draw(15 * ROWS * self.life.num_envs)
        actions = batch.action[0] if "sequences" in self.subset else batch.action
        drawn = {str(action) for action in actions.tolist()}
        if "recent" in self.subset:
            assert drawn == self.newest
            return
        per_episode = FRAMES if "frame_stack" in self.subset else 1
        places = self.oracle.places()
        must = {
            (places[i][1][places[i][2]].step, places[i][0])
            for i in must_hold(self.oracle, ROWS, per_episode)
        }
        missing = {self.units[place][0] for place in must & self.units.keys()} - drawn
        assert not missing, f"{missing} were never drawn"


def _lives(subset: tuple[str, ...]) -> Iterator[_Life]:
    """Yield two lives of a subset; with goals in hindsight four, one for each strategy.

    Ends depend on goals in every other one, beginning with the first where the subset has an even
    number of options: so no option decides it, nor do any two.
    """
    number = 3 * SUBSETS.index(subset)
    if "hindsight" not in subset:
        yield _Life(subset, number)
        yield _Life(subset, number + 1)
        return
    for place, strategy in enumerate(STRATEGIES):
        functions = (WITH_ENDS, WITHOUT_ENDS)[(place + len(subset)) % 2]
        yield _Life(subset, number + place, strategy, functions)


def _go_through(life: _Life, steps: int = STEPS) -> None:
    generator = np.random.default_rng(life.number)
    transitions = life.life.transitions(steps + 12)
    for step, transition in enumerate(transitions[:steps]):
        life.storage.insert_transition(transition)
        life.oracle.insert_transition(transition)
        if step == steps // 3:
            life.bring_slice(transitions[steps : steps + 9])
        if step == steps // 2:
            life.look()
            life.resume(transitions[: steps - 9])
        if step % 9 == 4 or step == steps - 1:
            life.look()
            batch = life.draw(24)
            life.answer(batch, life.check(batch), generator)
    life.check_complete()


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset) or "plain")
def test_every_subset_replays_what_happened(subset: tuple[str, ...]) -> None:
    """Other lives for every subset, so that all occur with every option."""
    for life in _lives(subset):
        _go_through(life)


@pytest.mark.parametrize("option", FEATURES)
def test_every_option_meets_every_script_and_all_goals(option: str) -> None:
    lives = [life for subset in SUBSETS if option in subset for life in _lives(subset)]
    assert {life.number % len(NAMES) for life in lives} == set(range(len(NAMES)))
    relabelled = [life for life in lives if "hindsight" in life.subset]
    goals = Counter((life.strategy, life.functions) for life in relabelled)
    assert set(goals) == set(product(STRATEGIES, (WITH_ENDS, WITHOUT_ENDS)))
    assert len(set(goals.values())) == 1, "some occur more often than others"


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset) or "plain")
def test_every_subset_refuses_what_is_wrong(subset: tuple[str, ...]) -> None:
    """Draws before there is anything, transitions that do not fit, and errors without a value."""
    life = _Life(subset, SUBSETS.index(subset))
    transitions = life.life.transitions(8)
    with pytest.raises(ConfigError, match="holds no transition yet"):
        life.draw(4)
    for transition in transitions[:7]:
        life.storage.insert_transition(transition)
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


def test_goals_are_no_stacks_of_frames() -> None:
    """Images that are goals are stored whole, even where they look like stacks."""
    life = _Life(("hindsight", "frame_stack"), 1)
    image = TensorSpec((FRAMES, 2, 2, 1), torch.uint8)
    goals = {"achieved_goal": image, "desired_goal": image}
    config = HindsightConfig()
    with pytest.raises(ConfigError, match="frame_stack=3 needs an image"):
        ReplayBuffer(60, hindsight=config, frame_stack=FRAMES).allocate(
            replace(life.spec, observation=goals), seeded()
        )
    spec = replace(life.spec, observation={"camera": image, **goals})
    frames, whole = (
        ReplayBuffer(60, hindsight=config, frame_stack=size) for size in (FRAMES, None)
    )
    for storage in (frames, whole):
        storage.allocate(spec, seeded())
    rows = 60 // spec.num_envs + 1
    per_row = 1 - 2 * 4  # a depth, and of three frames one
    assert frames.nbytes == spec.num_envs * (rows + 2) * (
        whole.nbytes // (spec.num_envs * rows) + per_row
    )


def test_cmin_counts_sequences() -> None:
    """Of 1000 transitions, in sequences of 7 that are learned from: 142.9, so 143."""
    windows = Windows(RecentConfig(eta=1e-9, cmin=1000), learned=7)
    assert windows.width(10_000, 0, 1) == 143
    assert windows.width(90, 0, 1) == 90
