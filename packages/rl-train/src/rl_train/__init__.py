"""The runtime: training loop, evaluation, checkpoints, loggers and recipe files."""

from rl_train.agent import Agent as Agent
from rl_train.agent import load as load
from rl_train.agent import make as make
from rl_train.builder.saved_actors import load_actor as load_actor
from rl_train.collecting.collector import Collector as Collector
from rl_train.collecting.episodes import Episode as Episode
from rl_train.collecting.rewards import RewardScaler as RewardScaler
from rl_train.evaluation.evaluation import EvaluationResult as EvaluationResult
from rl_train.evaluation.evaluation import evaluate_policy as evaluate_policy
from rl_train.loggers import ConsoleLogger as ConsoleLogger
from rl_train.loggers import CsvLogger as CsvLogger
from rl_train.loggers import JsonlLogger as JsonlLogger
from rl_train.loggers import TensorBoardLogger as TensorBoardLogger
from rl_train.loggers import TextLogger as TextLogger
from rl_train.loggers import WandbLogger as WandbLogger
from rl_train.trainer import Trainer as Trainer
from rl_train.trainer import TrainerConfig as TrainerConfig
from rl_train.trainer import TrainingResult as TrainingResult
from rl_train.trainer.callbacks import Callback as Callback
from rl_train.trainer.progress import Progress as Progress

__version__ = "0.1.0"
