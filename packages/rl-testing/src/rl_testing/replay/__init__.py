"""The tests that every storage of replayed transitions must pass, and their oracle."""

from rl_testing.replay.checks import check_trajectories as check_trajectories
from rl_testing.replay.checks import check_transitions as check_transitions
from rl_testing.replay.checks import must_hold as must_hold
from rl_testing.replay.goals import ReferenceGoals as ReferenceGoals
from rl_testing.replay.reference import ReferenceReplayStorage as ReferenceReplayStorage
from rl_testing.replay.script import LIVES as LIVES
from rl_testing.replay.script import RandomTransitionScript as RandomTransitionScript
from rl_testing.replay.sequence_suite import SequenceReplaySuite as SequenceReplaySuite
from rl_testing.replay.sequences import ReferenceSequence as ReferenceSequence
from rl_testing.replay.sequences import ReferenceSequenceStorage as ReferenceSequenceStorage
from rl_testing.replay.sequences import check_sequences as check_sequences
from rl_testing.replay.suite import ReplayStorageSuite as ReplayStorageSuite
