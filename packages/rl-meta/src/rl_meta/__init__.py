"""Meta-reinforcement learning.

`maml` and `pearl` draw their tasks, and give them to the environments, in ``before_rollout``.
"""

from rl_meta.config import MAMLConfig as MAMLConfig
from rl_meta.config import MAMLPPOConfig as MAMLPPOConfig
from rl_meta.config import MAMLTRPOConfig as MAMLTRPOConfig
from rl_meta.config import MAMLVPGConfig as MAMLVPGConfig
from rl_meta.context import ContextConditionedActor as ContextConditionedActor
from rl_meta.context import ContextConditionedActorConfig as ContextConditionedActorConfig
from rl_meta.evaluation import evaluate_adaptation as evaluate_adaptation
from rl_meta.maml import MAML as MAML
from rl_meta.maml import MAMLPPO as MAMLPPO
from rl_meta.maml import MAMLVPG as MAMLVPG
from rl_meta.maml_trpo import MAMLTRPO as MAMLTRPO
from rl_meta.pearl import PEARL as PEARL
from rl_meta.pearl import PEARLConfig as PEARLConfig
from rl_meta.rollouts import collect_episodes as collect_episodes
from rl_meta.task_replay import TaskReplayStorage as TaskReplayStorage

__version__ = "0.1.0"
