"""What a trainer is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Interval

from rl_core.compile import CompileMode
from rl_core.config import Config, Count
from rl_core.errors import ConfigError
from rl_core.gradients import OnNonFinite
from rl_core.types import Json

Named: TypeAlias = str | Mapping[str, object]
"""A registered name, or a table with a ``name`` and options, see `rl_core.config.encode`."""

_MOST_THREADS = 10_000
"""More than any machine has; PyTorch takes larger numbers for faults of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig(Config):
    """Options of a `Trainer`.

    Attributes:
        scale_rewards: learn from rewards divided by the running spread of their sum, discounted by
            the algorithm's ``gamma``, or 0.99 where it has none.
        log_every: environment transitions between log lines; None makes about 200 in a run.
        checkpoint_every: environment transitions between checkpoints, where there is a run
            directory; at most one is written per update. ``"auto"`` spreads about 20 evenly over a
            run, or about 10 where they hold a replay buffer, at least 5,000 transitions apart;
            ``"end"`` writes only the last. A run that is killed loses what came after the newest.
        keep_checkpoints: how many checkpoints stay on disk, at least 1.
        checkpoint_replay: let checkpoints hold what is replayed. Without it they are small, and a
            resumed run collects ``update_after`` transitions anew before it goes on learning.
        compile: compile the gradient step; ``"auto"`` does where the run is long enough.
        on_nonfinite: what becomes of a gradient step whose loss or gradient is not finite; it
            changes nothing in any case. ``"stop"`` ends the run with an error, after saving the
            state before that step and, in ``nonfinite`` of the run directory, the batch;
            ``"skip"`` goes on, and counts such steps in ``gradients/skipped_steps``.
        num_threads: of PyTorch while training; None chooses by the size of the networks.
        demonstrations: what the replay storage is filled with before the first step: a run
            directory, what ``Storage.save`` wrote, or the id or directory of a Minari data set.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation, divided among the test environments.
        final_test_episodes: episodes of the evaluation at the end; None takes
            ``num_test_episodes``.
        explore_in_tests: evaluate with the exploration of the algorithm, as in training.
        max_test_steps: steps after which an episode of an evaluation is cut and counts as it is;
            None takes the environment's own limit, or 27,000 where it has none.
        keep_best: keep the weights of the best evaluation so far in ``best`` of the run directory,
            where ``test_every`` asks for evaluations.
        loggers: registered loggers besides the JSON lines of the run directory, each a name such
            as ``"csv"``, or a table with a name and options.
        callbacks: registered callbacks, each a name, or a table with a name and options.
        log_histograms: hand the distribution of every parameter to loggers that show it, of which
            there must be one: ``tensorboard``, ``wandb``, or one of the user's own.

    Raises:
        ConfigError: for a value of another type, or a count below 1.
    """

    scale_rewards: bool = False
    log_every: Count | None = None
    checkpoint_every: Count | Literal["auto", "end"] = "auto"
    keep_checkpoints: Count = 3
    checkpoint_replay: bool = True
    compile: CompileMode = "auto"
    on_nonfinite: OnNonFinite = "stop"
    num_threads: Annotated[int, Interval(ge=1, le=_MOST_THREADS)] | None = None
    demonstrations: str | None = None
    test_every: Count | None = None
    num_test_episodes: Count = 5
    final_test_episodes: Count | None = None
    explore_in_tests: bool = False
    max_test_steps: Count | None = None
    keep_best: bool = True
    loggers: tuple[str | dict[str, Json], ...] = ()
    callbacks: tuple[str | dict[str, Json], ...] = ()
    log_histograms: bool = False

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.demonstrations is not None and self.scale_rewards:
            raise ConfigError(
                "scale_rewards would scale the collected rewards but not those of demonstrations; "
                "leave one of them out"
            )
