"""What a storage of replayed transitions must refuse."""

import pytest

from rl_core.errors import CheckpointError, ConfigError, DataError, RLError
from rl_testing.replay._case import STEPS, ReplayCase, draw_one, insert
from rl_testing.replay._faults import damaged_states, misfits
from rl_testing.replay.script import RandomTransitionScript
from rl_testing.stateful import check_same_state
from rl_testing.storages import seeded, stored


class RefusalTests(ReplayCase):
    """Tests of errors that users can mend."""

    def test_a_damaged_state_is_refused(self, life: RandomTransitionScript) -> None:
        """Whatever is missing, of another kind, or too short."""
        state = self.filled_pair(life, n_step=3)[0].state_dict()
        for damaged in damaged_states(state):
            with pytest.raises(CheckpointError):
                self.pair(life, n_step=3)[0].load_state_dict(damaged)

    def test_nothing_is_drawn_from_an_empty_storage(self, life: RandomTransitionScript) -> None:
        """The error is one that users can mend."""
        with pytest.raises(RLError):
            draw_one(self.pair(life, n_step=3)[0], 4)

    @pytest.mark.parametrize("sizes", [(None, 4), (2, None), (0, 4), (2, 0)])
    def test_batches_need_both_sizes(self, sizes: tuple[int | None, int | None]) -> None:
        """There is no epoch that could be cut by one of them."""
        storage, _ = self.filled_pair(next(iter(self.lives.values())), n_step=1)
        with pytest.raises(ConfigError):
            list(storage.generate_batches(*sizes))

    @pytest.mark.parametrize(("size", "steps"), [(0, 1), (20, 0), (1, 1)])
    def test_sizes_without_room_are_refused(self, size: int, steps: int) -> None:
        """Each environment needs a row, and each transition a step."""
        life = next(life for life in self.lives.values() if life.num_envs > 1)
        with pytest.raises(ConfigError):
            self.make_storage(size=size, n_step=steps).allocate(life.spec(), seeded())

    def test_a_transition_that_does_not_fit_is_refused(self, life: RandomTransitionScript) -> None:
        """Every column, before any is written."""
        storage, oracle = self.filled_pair(life, n_step=3)
        before = stored(storage)
        transition = life.transitions(STEPS + 1)[-1]
        for misfit in misfits(transition, with_state=storage.gives_sequences):
            with pytest.raises(DataError):
                storage.insert_transition(misfit)
        check_same_state(stored(storage), before)
        insert(transition, storage, oracle)
        self.check_complete(storage, oracle)
