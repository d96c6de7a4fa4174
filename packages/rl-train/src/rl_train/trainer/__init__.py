"""The training loop, on-policy and off-policy alike."""

from rl_train.trainer.budget import Budget as Budget
from rl_train.trainer.callbacks import Callback as Callback
from rl_train.trainer.config import TrainerConfig as TrainerConfig
from rl_train.trainer.interruption import Interruption as Interruption
from rl_train.trainer.loop import TrainingResult as TrainingResult
from rl_train.trainer.trainer import Trainer as Trainer
