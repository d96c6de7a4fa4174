"""Evaluation of policies, and statistics of their returns."""

from rl_train.evaluation.evaluation import EvaluationResult as EvaluationResult
from rl_train.evaluation.evaluation import StoppedError as StoppedError
from rl_train.evaluation.evaluation import check_limit as check_limit
from rl_train.evaluation.evaluation import check_spaces as check_spaces
from rl_train.evaluation.evaluation import deterministic_policy_error as deterministic_policy_error
from rl_train.evaluation.evaluation import draws_actions as draws_actions
from rl_train.evaluation.evaluation import evaluate_policy as evaluate_policy
from rl_train.evaluation.evaluation import evaluation_metrics as evaluation_metrics
from rl_train.evaluation.evaluation import has_custom_evaluation as has_custom_evaluation
from rl_train.evaluation.evaluation import summarize as summarize
from rl_train.evaluation.statistics import in_words as in_words
from rl_train.evaluation.statistics import interquartile_mean as interquartile_mean
from rl_train.evaluation.statistics import (
    stratified_bootstrap_interval as stratified_bootstrap_interval,
)
