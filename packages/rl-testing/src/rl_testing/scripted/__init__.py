"""Tiny environments whose every value is known beforehand."""

from rl_testing.scripted.counting import CountingEnv as CountingEnv
from rl_testing.scripted.faulty import FaultName as FaultName
from rl_testing.scripted.faulty import FaultyEnv as FaultyEnv
from rl_testing.scripted.identity import IDENTITY_SPACES as IDENTITY_SPACES
from rl_testing.scripted.identity import IdentityEnv as IdentityEnv
from rl_testing.scripted.info import Info as Info
from rl_testing.scripted.memory import MemoryCueEnv as MemoryCueEnv
from rl_testing.scripted.plain import PlainVecEnv as PlainVecEnv
from rl_testing.scripted.walks import LateWalkVecEnv as LateWalkVecEnv
from rl_testing.scripted.walks import WalkVecEnv as WalkVecEnv
