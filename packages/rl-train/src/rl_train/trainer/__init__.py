"""The training loop, on-policy and off-policy alike."""

from rl_train.trainer.config import TrainerConfig as TrainerConfig
from rl_train.trainer.goal import Goal as Goal
from rl_train.trainer.result import TrainingResult as TrainingResult
from rl_train.trainer.trainer import Trainer as Trainer
