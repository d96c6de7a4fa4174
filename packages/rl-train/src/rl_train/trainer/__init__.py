"""Training runs, on-policy and off-policy alike.

`loop` has the order of an iteration; `trainer` saves and resumes a run.
"""

from rl_train.trainer.budget import Budget as Budget
from rl_train.trainer.callbacks import Callback as Callback
from rl_train.trainer.config import TrainerConfig as TrainerConfig
from rl_train.trainer.interruption import Interruption as Interruption
from rl_train.trainer.loop import TrainingResult as TrainingResult
from rl_train.trainer.run_directory import check_unchanged as check_unchanged
from rl_train.trainer.run_directory import is_in_use as is_in_use
from rl_train.trainer.trainer import Trainer as Trainer
