"""Off-policy actor and algorithms."""

from rl_algos_offpolicy.actor.actor import OffPolicyActor as OffPolicyActor
from rl_algos_offpolicy.actor.config import OffPolicyActorConfig as OffPolicyActorConfig
from rl_algos_offpolicy.bc import BC as BC
from rl_algos_offpolicy.bc import BCConfig as BCConfig
from rl_algos_offpolicy.ddpg import DDPG as DDPG
from rl_algos_offpolicy.ddpg import DDPGConfig as DDPGConfig
from rl_algos_offpolicy.dqn import DQN as DQN
from rl_algos_offpolicy.dqn import DQNConfig as DQNConfig
from rl_algos_offpolicy.dqn import Rainbow as Rainbow
from rl_algos_offpolicy.redq import REDQ as REDQ
from rl_algos_offpolicy.redq import DroQ as DroQ
from rl_algos_offpolicy.sac import SAC as SAC
from rl_algos_offpolicy.sac_config import SACConfig as SACConfig
from rl_algos_offpolicy.td3 import TD3 as TD3
from rl_algos_offpolicy.td3 import TD3Config as TD3Config

__version__ = "0.1.0"
