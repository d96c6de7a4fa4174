"""The tests that every storage of replayed transitions must pass, and their oracles."""

from rl_testing.replay.checks import Relabeling as Relabeling
from rl_testing.replay.checks import check_sequences as check_sequences
from rl_testing.replay.checks import check_trajectories as check_trajectories
from rl_testing.replay.checks import check_transitions as check_transitions
from rl_testing.replay.checks import must_hold as must_hold
from rl_testing.replay.reference import ReferenceReplayStorage as ReferenceReplayStorage
from rl_testing.replay.reference import ReferenceSequence as ReferenceSequence
from rl_testing.replay.reference import ReferenceSequenceStorage as ReferenceSequenceStorage
from rl_testing.replay.suite import LIVES as LIVES
from rl_testing.replay.suite import ReplayStorageSuite as ReplayStorageSuite
from rl_testing.replay.suite import ReplaySuite as ReplaySuite
from rl_testing.replay.suite import SequenceReplaySuite as SequenceReplaySuite
