"""On-policy actor and algorithms."""

from rl_algos_onpolicy.a2c import A2C as A2C
from rl_algos_onpolicy.a2c import A2CConfig as A2CConfig
from rl_algos_onpolicy.actor.actor import OnPolicyActor as OnPolicyActor
from rl_algos_onpolicy.actor.config import OnPolicyActorConfig as OnPolicyActorConfig
from rl_algos_onpolicy.ppo import PPO as PPO
from rl_algos_onpolicy.ppo import PPOConfig as PPOConfig
from rl_algos_onpolicy.rnd.rnd import RND as RND
from rl_algos_onpolicy.rnd.rnd import RNDConfig as RNDConfig
from rl_algos_onpolicy.rnd.rnd_ppo import RNDPPO as RNDPPO
from rl_algos_onpolicy.rnd.rnd_ppo import RNDPPOConfig as RNDPPOConfig
from rl_algos_onpolicy.trpo import TRPO as TRPO
from rl_algos_onpolicy.trpo import TRPOConfig as TRPOConfig
from rl_algos_onpolicy.vpg import VPG as VPG
from rl_algos_onpolicy.vpg import VPGConfig as VPGConfig

__version__ = "0.1.0"
