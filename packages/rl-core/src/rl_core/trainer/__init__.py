"""The training loop, on-policy and off-policy alike."""

from rl_core.trainer.goal import Goal as Goal
from rl_core.trainer.result import TrainingResult as TrainingResult
from rl_core.trainer.trainer import Trainer as Trainer
from rl_core.trainer_config import TrainerConfig as TrainerConfig
