"""Environments whose task can be set, for meta-learning."""

from rl_envs.tasks.point_navigation import PointNavigation as PointNavigation
from rl_envs.tasks.pool import BuildEnv as BuildEnv
from rl_envs.tasks.pool import TaskPool as TaskPool
from rl_envs.tasks.sampler import DrawTasks as DrawTasks
from rl_envs.tasks.sampler import TaskSampler as TaskSampler
from rl_envs.tasks.sampler import uniform as uniform
from rl_envs.tasks.sync import SyncTaskVecEnv as SyncTaskVecEnv
from rl_envs.tasks.sync import TaskEnv as TaskEnv
