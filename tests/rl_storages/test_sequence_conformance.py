from collections.abc import Mapping
from typing import ClassVar

from rl_storages import PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_testing.replay import SequenceReplaySuite
from rl_testing.storages import SCRIPTS
from rl_testing.transitions import TransitionScript
from support.stacks import STACKED_LIVES, StackedScript


def _config(learned: int, burn_in: int) -> SequenceConfig:
    length = learned + burn_in
    config = SequenceConfig(length=length, overlap=(burn_in + 0.5) / length)
    assert (config.learned, config.burn_in) == (learned, burn_in)
    return config


class TestSequences(SequenceReplaySuite):
    def make_storage(self, *, size: int, n_step: int, learned: int, burn_in: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, sequences=_config(learned, burn_in))


class TestPrioritizedSequencesOfStacks(SequenceReplaySuite):
    """Nothing is learned here, so all priorities are the same, and draws merely stratified."""

    lives: ClassVar[Mapping[str, TransitionScript]] = {
        name: STACKED_LIVES[name]
        for name in ("same_step_interrupted", "next_step_recurrent", "disabled_interrupted")
    }
    scripts: ClassVar[Mapping[str, TransitionScript]] = {
        "next_step_recurrent": StackedScript.of(SCRIPTS["next_step_recurrent"])
    }
    per_episode: ClassVar[int] = 3

    def make_storage(self, *, size: int, n_step: int, learned: int, burn_in: int) -> ReplayBuffer:
        return ReplayBuffer(
            size,
            n_step=n_step,
            sequences=_config(learned, burn_in),
            prioritized=PrioritizedConfig(),
            frame_stack=3,
        )
