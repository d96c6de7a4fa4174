"""The loop of one training session: collect, update, evaluate, log and checkpoint."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.algorithm import UpdateWatch
from rl_core.errors import EnvironmentFaultError, NonFiniteError, RLError
from rl_core.logger import Logger
from rl_core.seeding import spawn_seed
from rl_core.types import Json
from rl_train.evaluation import EvaluationResult, EvaluationStoppedError, evaluation_metrics
from rl_train.trainer.budget import Budget, CheckpointInterval, Interval
from rl_train.trainer.callbacks import Callback
from rl_train.trainer.evaluator import Evaluator
from rl_train.trainer.listeners import overriders, watch_of
from rl_train.trainer.run_directory import RunDirectory
from rl_train.trainer.setup import rows_per_update

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a training run ended.

    Attributes:
        total_steps: environment transitions in all, earlier sessions included.
        total_updates: updates in all.
        wall_seconds: time spent in this session.
        steps_per_second: transitions of this session per second.
        evaluation: of the final policy; None without test environments, or when the run was
            stopped before it was complete.
        stopped: whether `Trainer.stop` or Ctrl-C ended it before its target.
    """

    total_steps: int
    total_updates: int
    wall_seconds: float
    steps_per_second: float
    evaluation: EvaluationResult | None
    stopped: bool = False

    def as_dict(self) -> dict[str, Json]:
        """Return the figures as a JSON object."""
        evaluation = self.evaluation
        return {
            "total_steps": self.total_steps,
            "total_updates": self.total_updates,
            "wall_seconds": self.wall_seconds,
            "steps_per_second": self.steps_per_second,
            "final_return_mean": None if evaluation is None else evaluation.mean,
            "final_evaluation": None if evaluation is None else evaluation.as_dict(),
            "stopped": self.stopped,
        }


class Loop:
    """Trains until a budget is used up; everything that lasts is kept in the trainer's parts.

    Args:
        trainer: whose parts are used.
        budget: when it is over.
        callbacks: called in the course of it.
        loggers: closed when the session ends.
        evaluator: closed when the session ends.
        directory: where checkpoints go; None writes none.
    """

    def __init__(
        self,
        trainer: "Trainer",
        budget: Budget,
        callbacks: Sequence[Callback],
        loggers: Sequence[Logger],
        evaluator: Evaluator,
        directory: RunDirectory | None,
    ) -> None:
        self._trainer = trainer
        self._algorithm = trainer.algorithm
        self._storage = trainer.storage
        self._collector = trainer.collector
        self._state = trainer.state
        self._callbacks = callbacks
        self._budget = budget
        self._loggers = loggers
        self._evaluator = evaluator
        self._directory = directory
        self._update_every = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
        self._ticking = overriders(callbacks, "on_tick")
        self._activity = "collecting"
        self._update_starts = overriders(callbacks, "on_update_start")
        self._started_steps = trainer.total_steps
        self._started_at = time.perf_counter()
        self._is_stopping = False

    def stop(self) -> None:
        """End as soon as the run can go on from there."""
        self._is_stopping = True

    def is_stopping(self) -> bool:
        """Tell callbacks that the run is alive, and return whether somebody asked to stop."""
        for callback in self._ticking:
            callback.on_tick(self._trainer, self._activity)
        return self._is_stopping

    def run(self) -> TrainingResult:
        """Train until the budget is used up or somebody asks to stop."""
        trainer, budget = self._trainer, self._budget
        with ExitStack() as endings:  # each is run, from the last to the first, whatever fails
            for logger in reversed(self._loggers):
                endings.callback(logger.close)
            for callback in reversed(self._callbacks):
                endings.callback(callback.on_training_end, trainer)
            endings.callback(setattr, self._algorithm, "watch", UpdateWatch())
            endings.callback(self._evaluator.close)
            endings.enter_context(self._algorithm.compiled.in_background(self.is_stopping))
            self._algorithm.watch = watch_of(self._callbacks, trainer)
            starts = [
                callback.on_training_start(trainer, budget.target, budget.unit)
                for callback in self._callbacks
            ]
            if not any(starts):
                self._train()
            seconds = time.perf_counter() - self._started_at
            if self._directory is not None:
                trainer.save_checkpoint()  # before an evaluation that could fail
            return self._result(seconds)

    def _train(self) -> None:
        """Loop, and keep what was reached when an environment or a gradient step fails."""
        trainer = self._trainer
        try:
            self._warm_up()
            self._loop()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {trainer.keep_evidence(str(error))}") from error
        except EnvironmentFaultError as error:
            raise EnvironmentFaultError(f"{error}{self._kept_state()}") from error

    def _warm_up(self) -> None:
        """Let the add-ons see random steps before the first one of a run."""
        steps = self._algorithm.add_ons.warm_up_steps
        if steps and self._trainer.total_steps == 0:
            self._collector.warm_up(steps, self.is_stopping)

    def _loop(self) -> None:
        trainer, budget, iteration = self._trainer, self._budget, self._state.iteration
        log_every = trainer.config.log_every or budget.default_log_every(self._update_every)
        log = Interval(log_every, iteration.start.get("steps", trainer.total_steps))
        checkpoints = CheckpointInterval(trainer, budget)
        is_over = budget.reached_before(trainer) >= budget.target
        while not (is_over or self.is_stopping()):
            self._activity = "compiling"
            self._algorithm.compiled.wait()
            self._activity = "collecting"
            if self._is_stopping:
                return
            iteration.begin(trainer.counts)
            if not iteration.has_learned:
                if not self._collect():
                    return
                is_over = self._learn()
            tested: Mapping[str, float] = {}
            if self._is_test_due():
                result = self._evaluate(trainer.config.num_test_episodes)
                if result is None:
                    return
                is_over = self._use(result) or is_over
                tested = evaluation_metrics(result)
            is_over = is_over or budget.reached(trainer) >= budget.target
            is_log_due = tested or is_over or log.is_due(trainer.total_steps)
            metrics = {**self._training_metrics(), **tested} if is_log_due else {}
            self._algorithm.compiled.adopt()
            # before callbacks, which may save what has no line to come
            iteration.end(left_over=max(0, iteration.transitions - self._update_every))
            if metrics:
                is_over = self._log(metrics) or is_over
                log.done(trainer.total_steps)
            if checkpoints.is_due(trainer) and self._directory is not None:
                trainer.save_checkpoint()

    def _collect(self) -> bool:
        """Collect what the iteration still lacks, and return whether that is complete."""
        trainer, iteration = self._trainer, self._state.iteration
        # the first step of a run has progress 0, and none has 1
        progress = self._budget.reached_before(trainer) / self._budget.target
        for part in (self._algorithm.schedules, self._storage, self._collector):
            part.set_progress(progress)
        while (lacks := self._update_every - self._collected()) > 0 and not self._is_stopping:
            before = trainer.total_steps
            try:
                if self._algorithm.collects:
                    collection = self._collector.collect(lacks, self._storage, self.is_stopping)
                else:
                    collection = self._collector.skip(lacks)
            finally:
                iteration.transitions += trainer.total_steps - before
            self._state.recent.extend(collection.episodes)
            self._storage.note_returns([e.episode_return for e in collection.episodes])
        return lacks <= 0

    def _collected(self) -> int:
        """Return the rows of a rollout, or the transitions to replay, that the next update has."""
        if self._storage.rollout_steps is not None:
            return len(self._storage) * self._trainer.envs.num_envs
        return self._state.iteration.transitions

    def _learn(self) -> bool:
        """Update if there is anything to learn from, and return whether a callback asks to stop."""
        steps = self._trainer.total_steps
        has_enough = steps - self._state.filled_since >= self._algorithm.schedule.update_after
        if has_enough and steps > self._state.iteration.start["steps"]:
            return self._update()
        if self._storage.rollout_steps is not None:  # its rows only reset, and have to make room
            self._storage.after_update()
        return False

    def _update(self) -> bool:
        """Learn, unless a callback skips this update; return whether one asks to stop."""
        trainer = self._trainer
        skips = [callback.on_update_start(trainer) for callback in self._update_starts]
        if any(skips):
            self._storage.after_update()  # a rollout that is not learned from makes room
        else:
            self._state.means.add(self._algorithm.update(self._storage))
            self._state.updates += 1
        self._state.iteration.has_learned = True
        ends = [callback.on_update_end(trainer) for callback in self._callbacks]
        return any(ends)

    def _is_test_due(self) -> bool:
        every, updates = self._trainer.config.test_every, self._state.updates
        was_skipped = updates == self._state.iteration.start["updates"]
        return not was_skipped and every is not None and updates % every == 0

    def _evaluate(self, episodes: int) -> EvaluationResult | None:
        """Evaluate on the test environments; None when that was interrupted."""
        if self._is_stopping:
            return None
        seed = spawn_seed(self._state.seed, "test")

        def count(finished: int) -> None:
            self._activity = f"evaluating, {finished} of {episodes} episodes"

        count(0)
        try:
            return self._evaluator.evaluate(
                self._algorithm, episodes, seed, self.is_stopping, count
            )
        except EvaluationStoppedError:
            return None
        finally:
            self._activity = "collecting"

    def _use(self, result: EvaluationResult) -> bool:
        """Keep the best weights, and return whether a callback asks to stop."""
        trainer = self._trainer
        if self._directory is not None and trainer.config.keep_best:
            self._directory.save_best(
                trainer.total_steps,
                {"algorithm": self._algorithm.state_dict()},
                result.mean,
                recipe=trainer.recipe,
            )
        ends = [callback.on_evaluation(trainer, result) for callback in self._callbacks]
        return any(ends)

    def _training_metrics(self) -> dict[str, float]:
        trainer = self._trainer
        elapsed = time.perf_counter() - self._started_at
        return {
            "steps_per_second": (trainer.total_steps - self._started_steps) / max(elapsed, 1e-9),
            **self._state.recent.metrics(),
            "train/episodes": float(self._collector.total_episodes),
            "train/updates": float(self._state.updates),
            **{f"storage/{name}": value for name, value in self._storage.metrics().items()},
            **self._state.means.read(),
            **self._algorithm.read_metrics(),
        }

    def _log(self, metrics: Mapping[str, float]) -> bool:
        """Write a line of the log, and return whether a callback asks to stop."""
        trainer = self._trainer
        for logger in self._loggers:
            logger.log(trainer.total_steps, metrics)
            if trainer.config.log_histograms:
                for name, values in self._algorithm.named_parameters().items():
                    logger.histogram(trainer.total_steps, f"parameters/{name}", values)
        ends = [callback.on_log(trainer, metrics) for callback in self._callbacks]
        return any(ends)

    def _kept_state(self) -> str:
        """Save what was reached before an environment failed, and say where it is."""
        if self._directory is None or self._trainer.total_steps == 0:
            return ""
        try:
            return f"; the state before it is in {self._trainer.save_checkpoint()}"
        except RLError as failure:  # such as environments that cannot be saved any more
            return f"; the state before it could not be saved: {failure}"

    def _result(self, seconds: float) -> TrainingResult:
        trainer = self._trainer
        episodes = trainer.config.final_test_episodes or trainer.config.num_test_episodes
        evaluation = self._evaluate(episodes) if self._evaluator.has_envs else None
        steps = trainer.total_steps - self._started_steps
        return TrainingResult(
            trainer.total_steps,
            self._state.updates,
            seconds,
            steps / max(seconds, 1e-9),
            evaluation,
            self._is_stopping,
        )
