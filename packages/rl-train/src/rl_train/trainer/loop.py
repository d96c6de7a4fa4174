"""The loop of one training session: collect, update, evaluate, log and save a checkpoint."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.algorithm import UpdateCallbacks
from rl_core.errors import ConfigError, DataError, EnvironmentFaultError, NonFiniteError, RLError
from rl_core.logger import Logger
from rl_core.seeding import spawn_seed
from rl_core.types import Json
from rl_train.collecting.episodes import Episode
from rl_train.evaluation import EvaluationResult, StoppedError, evaluation_metrics
from rl_train.trainer.budget import Budget, CheckpointInterval, Interval
from rl_train.trainer.callbacks import Callback, overriding
from rl_train.trainer.setup import rows_per_update

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a training run ended.

    Attributes:
        total_steps: environment transitions in all, earlier sessions included.
        total_episodes: finished episodes in all.
        total_updates: updates in all.
        session_steps: transitions of this session.
        wall_seconds: time spent in this session, compilation included.
        steps_per_second: transitions of this session per second.
        evaluation: of the final policy; None without test environments, or when the run was
            stopped before it was complete.
        stopped: whether `Trainer.stop` or Ctrl-C ended it before its target.
    """

    total_steps: int
    total_episodes: int
    total_updates: int
    session_steps: int
    wall_seconds: float
    steps_per_second: float
    evaluation: EvaluationResult | None
    stopped: bool = False

    def as_dict(self) -> dict[str, Json]:
        """Return the result as a JSON object."""
        evaluation = self.evaluation
        return {
            "total_steps": self.total_steps,
            "total_episodes": self.total_episodes,
            "total_updates": self.total_updates,
            "session_steps": self.session_steps,
            "wall_seconds": self.wall_seconds,
            "steps_per_second": self.steps_per_second,
            "final_return_mean": None if evaluation is None else evaluation.mean,
            "final_evaluation": None if evaluation is None else evaluation.as_dict(),
            "stopped": self.stopped,
        }


class Loop:
    """Trains until a budget is used up. What outlives the session is kept by the trainer.

    Args:
        trainer: whose parts are used.
        budget: how long to train.
        callbacks: called by the loop.
        loggers: closed when the session ends, like the trainer's evaluator.
    """

    def __init__(
        self,
        trainer: "Trainer",
        budget: Budget,
        callbacks: Sequence[Callback],
        loggers: Sequence[Logger],
    ) -> None:
        self._trainer = trainer
        self._algorithm = trainer.algorithm
        self._storage = trainer.storage
        self._state = trainer.state
        self._callbacks = callbacks
        self._budget = budget
        self._loggers = loggers
        self._evaluator = trainer.evaluator
        self._directory = trainer.directory
        self._update_every = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
        log_every = trainer.config.log_every or budget.default_log_every(self._update_every)
        begun = trainer.state.iteration.start.get("steps", trainer.total_steps)
        self._log_interval = Interval(log_every, begun)
        self._checkpoint_interval = CheckpointInterval(trainer, budget)
        self._methods = {
            name: [getattr(callback, name) for callback in overriding(callbacks, name)]
            for name in vars(Callback)
            if name.startswith("on_")
        }
        self._activity = "collecting"
        self._started_steps = trainer.total_steps
        self._started_at = time.perf_counter()
        self._is_stopping = False
        self._is_updating = False
        self._final: Path | None = None  # the checkpoint at the end
        if self._state.ended != budget.arguments:  # by another total
            self._state.ended = {}

    def stop(self) -> None:
        """End as soon as the run can go on from there."""
        self._is_stopping = True

    def is_stopping(self) -> bool:
        """Tell callbacks that the run is alive, and return whether somebody asked to stop."""
        self._call("on_tick", self._activity)
        return self._is_stopping

    @property
    def can_save(self) -> bool:
        """Whether a run can go on from here: not within an update, or a step that is compiled."""
        return not self._is_updating and self._activity != "compiling"

    def _is_stopping_while_compiling(self) -> bool:
        """Do the same while a call waits for the compiler, at any point of an iteration."""
        before, self._activity = self._activity, "compiling"
        try:
            return self.is_stopping()
        finally:
            self._activity = before

    def run(self) -> TrainingResult:
        """Train until the budget is used up or somebody asks to stop."""
        try:
            return self._run()
        except Exception as error:  # also of what the end calls
            if self._final is not None:
                error.add_note(f"rl-train: the state before it is in {self._final}")
            raise

    def _run(self) -> TrainingResult:
        trainer, budget = self._trainer, self._budget
        with ExitStack() as endings:  # each is run, from the last to the first, whatever fails
            for logger in reversed(self._loggers):
                endings.callback(logger.close)
            for callback in reversed(self._callbacks):
                endings.callback(callback.on_training_end, trainer)
            endings.callback(setattr, self._algorithm, "callbacks", UpdateCallbacks())
            endings.callback(self._evaluator.close)
            endings.enter_context(
                self._algorithm.compiled.in_background(self._is_stopping_while_compiling)
            )
            self._algorithm.callbacks = UpdateCallbacks(
                **{
                    event: [partial(self._call, f"on_{event}")]
                    for event in ("epoch_start", "epoch_end", "minibatch_start", "minibatch_end")
                    if self._methods[f"on_{event}"]
                }
            )
            if not self._call("on_training_start", budget.target, budget.unit):
                self._train()
            seconds = time.perf_counter() - self._started_at
            if self._directory is not None:
                self._final = trainer.save_checkpoint()  # before an evaluation that could fail
            result = self._result(seconds)
            if self._directory is not None:
                self._directory.write_summary(result.as_dict())
            return result

    def _train(self) -> None:
        """Repeat the iteration; if it fails, save what was reached before."""
        try:
            warm_up_steps = self._algorithm.add_ons.warm_up_steps  # before a run's first step
            self._trainer.collector.warm_up(warm_up_steps, self.is_stopping)
            while not (self._budget.is_over(self._trainer) or self.is_stopping()):
                self._iterate()
        except StoppedError:
            return
        except (NonFiniteError, EnvironmentFaultError, DataError) as error:
            raise self._after_saving(error) from error

    def _iterate(self) -> None:
        """Collect, update, evaluate, log and save a checkpoint, in this order.

        Raises:
            StoppedError: when somebody asks to stop before the update or evaluation is over.
        """
        trainer, iteration = self._trainer, self._state.iteration
        self._wait_for_compiler()
        iteration.begin(trainer.counts)
        if not iteration.has_learned:  # a resumed iteration may have
            self._collect()
            self._update()
        self._algorithm.compiled.adopt()  # the next iteration waits for graphs met in this one
        result = self._evaluate_if_due()
        is_last = bool(self._state.ended) or self._budget.reached(trainer) >= self._budget.target
        metrics: dict[str, float] = {}
        if result or is_last or self._log_interval.is_due(trainer.total_steps):
            metrics = {**self._training_metrics(), **(evaluation_metrics(result) if result else {})}
        # Callbacks may save a checkpoint when they see the metrics; its iteration must be over.
        iteration.end(left_over=max(0, iteration.transitions - self._update_every))
        if metrics:
            self._log(metrics, result)
        if self._checkpoint_interval.is_due(trainer) and self._directory is not None:
            trainer.save_checkpoint()

    def _wait_for_compiler(self) -> None:
        """Wait for the graphs that the previous iteration asked for."""
        try:
            self._algorithm.compiled.wait()
        except ConfigError as error:
            raise self._after_saving(error) from error
        if self._is_stopping:
            raise StoppedError

    def _collect(self) -> None:
        """Collect what the iteration still lacks; the collector inserts it into the storage."""
        trainer, iteration = self._trainer, self._state.iteration
        # from 0 at the first step of a run to just below 1
        progress = self._budget.reached_before(trainer) / self._budget.target
        for part in (self._algorithm.schedules, self._storage, trainer.collector):
            part.set_progress(progress)
        while (lacks := self._update_every - self._collected()) > 0:
            if self._is_stopping:
                raise StoppedError
            if not self._algorithm.collects:  # it learns offline: count steps without acting
                trainer.collector.total_steps += lacks
                iteration.transitions += lacks
                continue
            trainer.collector.collect(lacks, self._storage, self.is_stopping, self._note_row)

    def _note_row(self, steps: int, ended: Sequence[Episode]) -> None:
        """Count what was collected; a callback may save a checkpoint before the next step."""
        self._state.iteration.transitions += steps
        if ended:
            self._state.recent.extend(ended)
            self._storage.note_returns([episode.episode_return for episode in ended])

    def _collected(self) -> int:
        """Return what was collected for the next update: rows of a rollout, or transitions."""
        if self._storage.rollout_steps is not None:
            return len(self._storage) * self._trainer.envs.num_envs
        return self._state.iteration.transitions

    def _update(self) -> None:
        """Update the algorithm, unless there is too little to learn from or a callback skips it."""
        state, steps = self._state, self._trainer.total_steps
        # A run that was resumed without its replay buffer has to fill it again first.
        has_enough = steps - state.filled_since >= self._algorithm.schedule.update_after
        if not has_enough or steps == state.iteration.start["steps"]:
            if self._storage.rollout_steps is not None:  # it has only resets: make room
                self._storage.after_update()
            return
        is_skipped = self._call("on_update_start")
        if is_skipped:
            self._storage.after_update()  # a rollout that is not learned from makes room
        else:
            self._is_updating = True
            state.means.add(self._algorithm.update(self._storage))
            self._is_updating = False
            state.updates += 1
        state.iteration.has_learned = True
        if not is_skipped and self._call("on_update_end"):
            state.ended = self._budget.arguments

    def _evaluate_if_due(self) -> EvaluationResult | None:
        """Evaluate and keep the best weights; None if it is not due."""
        trainer, state = self._trainer, self._state
        every = trainer.config.test_every
        has_updated = state.updates > state.iteration.start["updates"]
        if every is None or not has_updated or state.updates % every:
            return None
        result = self._evaluate(trainer.config.num_test_episodes)
        if self._directory is not None and trainer.config.keep_best:
            self._directory.save_best(
                trainer.total_steps,
                {"algorithm": self._algorithm.state_dict()},
                result.mean,
                recipe=trainer.recipe,
            )
        return result

    def _evaluate(self, episodes: int) -> EvaluationResult:
        """Evaluate on the test environments.

        Raises:
            StoppedError: when somebody asks to stop before it is over.
        """

        def count(finished: int, steps: int) -> None:
            self._activity = f"evaluating, {finished} of {episodes} episodes, {steps:,} steps"

        if self._is_stopping:
            raise StoppedError
        count(0, 0)
        try:
            seed = spawn_seed(self._state.seed, "test")
            return self._evaluator.evaluate(episodes, seed, self.is_stopping, count)
        finally:
            self._activity = "collecting"

    def _training_metrics(self) -> dict[str, float]:
        trainer = self._trainer
        elapsed = time.perf_counter() - self._started_at
        return {
            "steps_per_second": (trainer.total_steps - self._started_steps) / max(elapsed, 1e-9),
            **self._state.recent.metrics(),
            "train/episodes": float(trainer.collector.total_episodes),
            "train/updates": float(self._state.updates),
            **{f"algorithm/{name}": v for name, v in self._algorithm.schedules.metrics().items()},
            **{f"storage/{name}": value for name, value in self._storage.metrics().items()},
            **self._state.means.read(),
            **self._algorithm.read_metrics(),
        }

    def _log(self, metrics: Mapping[str, float], result: EvaluationResult | None) -> None:
        """Write a line of the log, then show callbacks the evaluation, if there was one, and it.

        What they record of the evaluation is another line of the same step: a checkpoint that one
        of them saves is that of a run whose line is written.
        """
        trainer = self._trainer
        calls: list[Callable[..., object]] = [
            partial(self._write, logger, metrics) for logger in self._loggers
        ]
        if result is not None:
            calls += [partial(method, trainer, result) for method in self._methods["on_evaluation"]]
            calls.append(self._write_recorded)
        calls += [partial(method, trainer, metrics) for method in self._methods["on_log"]]
        if self._call_all(calls):
            self._state.ended = self._budget.arguments
        self._log_interval.restart(self._trainer.total_steps)

    def _write(self, logger: Logger, metrics: Mapping[str, float]) -> None:
        trainer = self._trainer
        logger.log(trainer.total_steps, metrics)
        if trainer.config.log_histograms:
            for name, values in self._algorithm.named_parameters().items():
                logger.histogram(trainer.total_steps, f"parameters/{name}", values)

    def _write_recorded(self) -> None:
        if recorded := self._state.means.read():
            for logger in self._loggers:
                logger.log(self._trainer.total_steps, recorded)

    def _call(self, name: str, *arguments: object) -> bool:
        """Call the callbacks that override a method; return whether one of them returned True."""
        methods = self._methods[name]
        if not methods:  # the common case
            return False
        return self._call_all(methods, self._trainer, *arguments)

    def _call_all(self, functions: Sequence[Callable[..., object]], *arguments: object) -> bool:
        """Call loggers and callbacks; return whether one of them returned True.

        If one fails, the others are called all the same, because a resumed run goes on after them;
        then what was reached is saved, and noted in the first error.
        """
        is_true, failure = False, None
        for function in functions:
            try:
                is_true = bool(function(*arguments)) or is_true
            except Exception as error:
                failure = error if failure is None else failure
        if failure is not None:
            if saved := self._save_after(failure):
                failure.add_note(f"rl-train: {saved}")
            raise failure
        return is_true

    def _after_saving(self, error: RLError) -> RLError:
        """Save what was reached before a failure, and return an error that says where it is."""
        return type(error)(f"{error}; {self._save_after(error)}".removesuffix("; "))

    def _save_after(self, error: Exception) -> str:
        """Save what was reached before a failure, and say where it is."""
        trainer, directory = self._trainer, self._directory
        faulty = None
        if isinstance(error, NonFiniteError):  # which changed nothing
            self._is_updating = False
            if directory is None:
                return "with a run_dir, the batch would have been saved"
            self._storage.after_update()  # a resumed run begins with a fresh rollout
            self._state.iteration.end()
            faulty = self._algorithm.gradients.guard.faulty
        elif directory is None or trainer.total_steps == 0:
            return ""
        if not self.can_save:
            return "nothing was saved, as a run cannot go on from the middle of an update or a step"
        try:
            saved = f"the state before it is in {trainer.save_checkpoint()}"
            if faulty is not None:
                path = directory.save_faulty(
                    trainer.total_steps, faulty, str(error), recipe=trainer.recipe
                )
                saved = f"its batch is in {path}; {saved}"
        except RLError as failure:  # such as environments that cannot be saved any more
            return f"the state before it could not be saved: {failure}"
        return saved

    def _result(self, seconds: float) -> TrainingResult:
        trainer = self._trainer
        evaluation = None
        config = trainer.config
        count = config.final_test_episodes
        count = config.num_test_episodes if count is None else count
        if self._evaluator.has_envs and count > 0:
            with suppress(StoppedError):
                evaluation = self._evaluate(count)
        session_steps = trainer.total_steps - self._started_steps
        return TrainingResult(
            trainer.total_steps,
            trainer.collector.total_episodes,
            self._state.updates,
            session_steps,
            seconds,
            session_steps / max(seconds, 1e-9),
            evaluation,
            self._is_stopping and not self._budget.is_over(trainer),
        )
