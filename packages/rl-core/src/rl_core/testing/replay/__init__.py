"""The tests that every storage of replayed transitions must pass, and their oracle."""

from rl_core.testing.replay.checks import check_trajectories as check_trajectories
from rl_core.testing.replay.checks import check_transitions as check_transitions
from rl_core.testing.replay.checks import must_hold as must_hold
from rl_core.testing.replay.goals import ReferenceGoals as ReferenceGoals
from rl_core.testing.replay.reference import ReferenceReplayStorage as ReferenceReplayStorage
from rl_core.testing.replay.script import LIVES as LIVES
from rl_core.testing.replay.script import RandomTransitionScript as RandomTransitionScript
from rl_core.testing.replay.sequence_suite import SequenceReplaySuite as SequenceReplaySuite
from rl_core.testing.replay.sequences import ReferenceSequence as ReferenceSequence
from rl_core.testing.replay.sequences import ReferenceSequenceStorage as ReferenceSequenceStorage
from rl_core.testing.replay.sequences import check_sequences as check_sequences
from rl_core.testing.replay.suite import ReplayStorageSuite as ReplayStorageSuite
