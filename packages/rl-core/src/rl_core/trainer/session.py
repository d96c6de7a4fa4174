"""One session of training: the loop, from its start to its result."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rl_core.algorithm import UpdateWatch
from rl_core.collector import Collection
from rl_core.errors import CheckpointError, NonFiniteError
from rl_core.evaluation import evaluation_metrics
from rl_core.logger import Logger
from rl_core.trainer.every import Every
from rl_core.trainer.goal import Goal
from rl_core.trainer.listening import overriders, watch_of
from rl_core.trainer.parts import rows_per_update
from rl_core.trainer.recent import RecentEpisodes
from rl_core.trainer.result import TrainingResult
from rl_core.trainer.run_directory import RunDirectory
from rl_core.trainer.tester import Tester
from rl_core.types import StateDict

if TYPE_CHECKING:
    from rl_core.trainer.trainer import Trainer


class Session:
    """One session of training: collect, update, evaluate, log and checkpoint until a goal.

    Args:
        trainer: whose parts are used and whose counts go on.
        goal: when it is over.
        loggers: sinks for metrics; closed when the session ends.
        recent: the run's newest episodes.
        tester: closed when the session ends.
        directory: where checkpoints go; None writes none.
    """

    def __init__(
        self,
        trainer: "Trainer",
        goal: Goal,
        *,
        loggers: Sequence[Logger],
        recent: RecentEpisodes,
        tester: Tester,
        directory: RunDirectory | None,
    ) -> None:
        self._trainer = trainer
        self._goal = goal
        self._loggers = loggers
        self._recent = recent
        self._tester = tester
        self._directory = directory
        self._update_starts = overriders(trainer.callbacks, "on_update_start")
        self._prepared: dict[str, float] = {}
        self._started_steps = trainer.total_steps
        self._started_at = time.perf_counter()
        self._is_stopping = False

    def stop(self) -> None:
        """End after the update that is going on."""
        self._is_stopping = True

    def run(self) -> TrainingResult:
        """Train until the goal is reached or somebody asks to stop."""
        trainer, goal = self._trainer, self._goal
        callbacks = trainer.callbacks
        trainer.algorithm.watch = watch_of(callbacks, trainer)
        starts = [c.on_training_start(trainer, goal.target, goal.unit) for c in callbacks]
        try:
            if not any(starts):
                self._warm_up()
                self._go_on()
            seconds = time.perf_counter() - self._started_at
            if self._directory is not None:
                trainer.save_checkpoint()  # before an evaluation that could fail
            return self._result(seconds)
        finally:
            self._tester.close()
            trainer.algorithm.watch = UpdateWatch()
            for callback in callbacks:
                callback.on_training_end(trainer)
            for logger in self._loggers:
                logger.close()

    def _warm_up(self) -> None:
        """Let the algorithm see random steps before the first one of a run."""
        steps = self._trainer.algorithm.warm_up_steps
        if steps and self._trainer.total_steps == 0:
            self._trainer.collector.warm_up(steps)

    def _go_on(self) -> None:
        try:
            self._loop()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {self._keep_evidence(str(error))}") from error

    def _keep_evidence(self, message: str) -> str:
        """Save the last good state and the batch that led out of it, and say where they are."""
        trainer = self._trainer
        if self._directory is None:
            return "with a run_dir, the batch would have been saved"
        trainer.storage.after_update()  # whoever resumes begins with a fresh rollout
        faulty = trainer.algorithm.gradients.guard.faulty
        try:
            kept = f"the state before it is in {trainer.save_checkpoint()}"
            if faulty is not None:
                path = self._directory.save_faulty(
                    trainer.total_steps, faulty, message, recipe=trainer.recipe
                )
                kept = f"its batch is in {path}, {kept}"
        except CheckpointError as failure:
            return f"what led to it could not be saved: {failure}"
        return kept

    def _loop(self) -> None:
        trainer, goal = self._trainer, self._goal
        update_every = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
        log_every = trainer.config.log_every or goal.default_log_every(update_every)
        log = Every(log_every, trainer.total_steps)
        checkpoint = Every(trainer.config.checkpoint_every, trainer.total_steps)
        schedule = trainer.algorithm.schedule
        stop = False
        while not stop and goal.reached(trainer) < goal.target:
            progress = goal.reached(trainer) / goal.target  # before, so that no last step gets none
            trainer.algorithm.set_progress(progress)
            trainer.storage.set_progress(progress)
            collection = self._collect(update_every)
            tested: Mapping[str, float] = {}
            may_learn = trainer.total_steps >= schedule.update_after
            if may_learn and collection.steps:  # a row that only reset brings nothing to learn
                stop = self._update()
                if schedule.test_every and trainer.updates % schedule.test_every == 0:
                    tested, is_enough = self._test()
                    stop = stop or is_enough
            stop = stop or self._is_stopping
            is_over = stop or goal.reached(trainer) >= goal.target
            if tested or is_over or log.is_due(trainer.total_steps):
                self._log({**self._training_metrics(), **tested})
                log.done(trainer.total_steps)
            if checkpoint.is_due(trainer.total_steps):
                if self._directory is not None:
                    trainer.save_checkpoint()
                checkpoint.done(trainer.total_steps)

    def _collect(self, rows: int) -> Collection:
        trainer = self._trainer
        if trainer.storage.rollout_steps is not None:  # an interrupted rollout is finished
            rows -= len(trainer.storage) * trainer.envs.num_envs
        if trainer.algorithm.collects:
            collection = trainer.collector.collect(rows, into=trainer.storage)
        else:
            collection = trainer.collector.skip(rows)
        self._recent.extend(collection.episodes)
        trainer.storage.note_returns([e.episode_return for e in collection.episodes])
        return collection

    def _update(self) -> bool:
        """Learn, unless a callback leaves this update out, and say whether one asks to stop."""
        trainer = self._trainer
        starts = [callback.on_update_start(trainer) for callback in self._update_starts]
        if any(starts):
            trainer.storage.after_update()  # a rollout that is not learned from makes room
        else:
            self._prepared = trainer.algorithm.update(trainer.storage)
            trainer.updates += 1
        ends = [callback.on_update_end(trainer) for callback in trainer.callbacks]
        return any(ends)

    def _test(self) -> tuple[Mapping[str, float], bool]:
        """Evaluate, and answer metrics and whether a callback asks to stop."""
        trainer = self._trainer
        result = trainer.evaluate()
        if self._directory is not None and trainer.config.keep_best:
            state: StateDict = {"algorithm": trainer.algorithm.state_dict()}
            self._directory.save_best(
                trainer.total_steps, state, result.mean, recipe=trainer.recipe
            )
        ends = [callback.on_evaluation(trainer, result) for callback in trainer.callbacks]
        return evaluation_metrics(result), any(ends)

    def _training_metrics(self) -> dict[str, float]:
        trainer = self._trainer
        elapsed = time.perf_counter() - self._started_at
        return {
            "steps_per_second": (trainer.total_steps - self._started_steps) / max(elapsed, 1e-9),
            **self._recent.metrics(),
            "train/episodes": float(trainer.collector.total_episodes),
            "train/updates": float(trainer.updates),
            **{f"storage/{name}": value for name, value in trainer.storage.metrics().items()},
            **self._prepared,
            **trainer.algorithm.read_metrics(),
        }

    def _log(self, metrics: Mapping[str, float]) -> None:
        trainer = self._trainer
        for logger in self._loggers:
            logger.log(trainer.total_steps, metrics)
            if trainer.config.log_histograms:
                for name, values in trainer.algorithm.named_parameters().items():
                    logger.histogram(trainer.total_steps, f"parameters/{name}", values)
        for callback in trainer.callbacks:
            callback.on_log(trainer, metrics)

    def _result(self, seconds: float) -> TrainingResult:
        trainer = self._trainer
        evaluation = trainer.evaluate() if self._tester.has_envs else None
        steps = trainer.total_steps - self._started_steps
        return TrainingResult(
            trainer.total_steps, trainer.updates, seconds, steps / max(seconds, 1e-9), evaluation
        )
