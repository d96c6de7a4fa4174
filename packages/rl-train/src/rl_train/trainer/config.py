"""Options of the training loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Interval

from rl_core.compile.function import CompileMode
from rl_core.config import Config, Count, NonNegativeInt
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
        scale_rewards: divide the rewards that are learned from by the running standard deviation
            of their discounted sum. The discount is the algorithm's ``gamma``, or 0.99 if it has
            none.
        log_every: environment transitions between log lines; None writes about 200 lines in a run
            whose length is given in steps, and otherwise a line every 1,000 transitions.
        checkpoint_every: environment transitions between checkpoints, if there is a run directory;
            at most one is written per update. ``"auto"`` spreads about 20 evenly over a run, or
            about 10 if they hold a replay buffer, at least 5,000 transitions apart; ``"end"``
            writes only the last one. A run that is killed loses what came after its newest
            checkpoint.
        keep_checkpoints: number of the newest checkpoints that stay on disk, besides the one that
            a resumed run went on from.
        checkpoint_replay: save the replay buffer in checkpoints. Without it they are small, but a
            resumed run first collects ``update_after`` transitions again before it learns.
        compile: compile the gradient step; ``"auto"`` compiles if the run is long enough to save
            time by it.
        on_nonfinite: what to do when a loss or gradient is not finite. Such a gradient step never
            changes anything. ``"stop"`` ends the run with an error, after saving the state before
            that step and, in ``nonfinite`` of the run directory, the batch; ``"skip"`` goes on and
            counts these steps in ``gradients/skipped_steps``.
        num_threads: number of threads that PyTorch uses while training; None chooses by the size
            of the networks.
        demonstrations: fill the replay storage before the first step from a run directory, a saved
            storage, or a Minari data set (its id or directory).
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: number of episodes per evaluation, divided among the test environments.
        final_test_episodes: number of episodes in the evaluation at the end; None takes
            ``num_test_episodes``, 0 leaves it out.
        explore_in_tests: evaluate with the exploration of the algorithm, as in training.
        max_test_steps: steps after which an episode of an evaluation is cut off and counts as it
            is; None takes the environment's own limit, or 5,000 if it has none.
        keep_best: keep the weights of the best evaluation so far in ``best`` of the run directory;
            only evaluations of ``test_every`` count.
        loggers: registered loggers besides the JSON lines of the run directory, each a name such
            as ``"csv"``, or a table with a name and options.
        callbacks: registered callbacks, each a name, or a table with a name and options.
        log_histograms: log the distribution of every parameter. This needs a logger that shows
            histograms: ``tensorboard``, ``wandb``, or one of your own.

    Raises:
        ConfigError: for a value of another type, or a count that is too small.
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
    final_test_episodes: NonNegativeInt | None = None
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
                "set scale_rewards to False, or leave demonstrations out"
            )
