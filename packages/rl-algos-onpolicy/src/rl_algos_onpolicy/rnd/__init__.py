"""Random network distillation."""

from rl_algos_onpolicy.rnd.rnd import RND as RND
from rl_algos_onpolicy.rnd.rnd import RNDConfig as RNDConfig
from rl_algos_onpolicy.rnd.rnd_ppo import RNDPPO as RNDPPO
from rl_algos_onpolicy.rnd.rnd_ppo import RNDPPOConfig as RNDPPOConfig
