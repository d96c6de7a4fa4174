"""One session of training: the loop, from its start to its result."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rl_core.algorithm import UpdateWatch
from rl_core.errors import CheckpointError, EnvironmentFaultError, NonFiniteError, RLError
from rl_core.logger import Logger
from rl_core.seeding import spawn_seed
from rl_core.types import StateDict
from rl_train.evaluation import EvaluationResult, EvaluationStoppedError, evaluation_metrics
from rl_train.trainer.checkpoint_times import CheckpointTimes
from rl_train.trainer.every import Every
from rl_train.trainer.goal import Goal
from rl_train.trainer.listening import overriders, watch_of
from rl_train.trainer.means import UpdateMeans
from rl_train.trainer.parts import rows_per_update
from rl_train.trainer.recent import RecentEpisodes
from rl_train.trainer.result import TrainingResult
from rl_train.trainer.run_directory import RunDirectory
from rl_train.trainer.tester import Tester

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer


class Session:
    """One session of training: collect, update, evaluate, log and checkpoint until a goal.

    Args:
        trainer: whose parts are used and whose counts go on.
        goal: when it is over.
        loggers: sinks for metrics; closed when the session ends.
        recent: the run's newest episodes.
        means: what updates answered since the run's last line of the log.
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
        means: UpdateMeans,
        tester: Tester,
        directory: RunDirectory | None,
    ) -> None:
        self._trainer = trainer
        self._goal = goal
        self._loggers = loggers
        self._recent = recent
        self._means = means
        self._tester = tester
        self._directory = directory
        self._update_starts = overriders(trainer.callbacks, "on_update_start")
        self._started_steps = trainer.total_steps
        self._started_at = time.perf_counter()
        self._is_stopping = False

    def stop(self) -> None:
        """End as soon as the run can go on from there."""
        self._is_stopping = True

    def run(self) -> TrainingResult:
        """Train until the goal is reached or somebody asks to stop."""
        trainer, goal = self._trainer, self._goal
        callbacks = trainer.callbacks
        with ExitStack() as endings:  # each is run, from the last to the first, whatever fails
            for logger in reversed(self._loggers):
                endings.callback(logger.close)
            for callback in reversed(callbacks):
                endings.callback(callback.on_training_end, trainer)
            endings.callback(setattr, trainer.algorithm, "watch", UpdateWatch())
            endings.callback(self._tester.close)
            endings.enter_context(trainer.algorithm.compiling_aside(self._stops))
            trainer.algorithm.watch = watch_of(callbacks, trainer)
            starts = [c.on_training_start(trainer, goal.target, goal.unit) for c in callbacks]
            if not any(starts):
                self._go_on()
            seconds = time.perf_counter() - self._started_at
            if self._directory is not None:
                trainer.save_checkpoint()  # before an evaluation that could fail
            return self._result(seconds)

    def _warm_up(self) -> None:
        """Let the algorithm see random steps before the first one of a run."""
        steps = self._trainer.algorithm.warm_up_steps
        if steps and self._trainer.total_steps == 0:
            self._trainer.collector.warm_up(steps, self._stops)

    def _go_on(self) -> None:
        try:
            self._warm_up()
            self._loop()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {self._keep_evidence(str(error))}") from error
        except EnvironmentFaultError as error:
            raise EnvironmentFaultError(f"{error}{self._kept_state()}") from error

    def _kept_state(self) -> str:
        """Save what was reached before an environment failed, and say where it is."""
        if self._directory is None or self._trainer.total_steps == 0:
            return ""
        try:
            return f"; the state before it is in {self._trainer.save_checkpoint()}"
        except RLError as failure:  # such as environments that cannot be saved any more
            return f"; the state before it could not be saved: {failure}"

    def _keep_evidence(self, message: str) -> str:
        """Save the last good state and the batch that led out of it, and say where they are."""
        trainer = self._trainer
        if self._directory is None:
            return "with a run_dir, the batch would have been saved"
        trainer.storage.after_update()  # whoever resumes begins with a fresh rollout
        trainer.turn.end()
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
        trainer, goal, turn = self._trainer, self._goal, self._trainer.turn
        update_every = rows_per_update(trainer.envs, trainer.algorithm, trainer.storage)
        log_every = trainer.config.log_every or goal.default_log_every(update_every)
        log = Every(log_every, turn.start.get("steps", trainer.total_steps))
        checkpoints = CheckpointTimes(trainer, goal)
        stop = False
        while not (stop or self._is_stopping) and goal.reached_before(trainer) < goal.target:
            trainer.algorithm.await_compiled()
            if self._is_stopping:
                return
            turn.begin(trainer)
            if not turn.has_learned:
                if not self._collect(update_every):
                    return
                stop = self._learn()
            tested: Mapping[str, float] = {}
            if self._is_test_due():
                result = self._evaluate(trainer.algorithm.schedule.num_test_episodes)
                if result is None:
                    return
                stop = self._use(result) or stop
                tested = evaluation_metrics(result)
            is_over = stop or goal.reached(trainer) >= goal.target
            is_log_due = tested or is_over or log.is_due(trainer.total_steps)
            metrics = {**self._training_metrics(), **tested} if is_log_due else {}
            left_over = max(0, turn.transitions - update_every)
            trainer.algorithm.adopt_compiled()
            turn.end(left_over)  # before callbacks, which may save what has no line to come
            if metrics:
                self._log(metrics)
                log.done(trainer.total_steps)
            if checkpoints.is_due(trainer) and self._directory is not None:
                trainer.save_checkpoint()

    def _stops(self) -> bool:
        return self._is_stopping

    def _collect(self, update_every: int) -> bool:
        """Collect what the turn still lacks, and say whether that is complete."""
        trainer = self._trainer
        progress = self._goal.reached_before(trainer) / self._goal.target  # no last step gets none
        trainer.algorithm.set_progress(progress)
        trainer.storage.set_progress(progress)
        trainer.collector.set_progress(progress)
        while (lacks := update_every - self._collected()) > 0 and not self._is_stopping:
            before = trainer.total_steps
            try:
                if trainer.algorithm.collects:
                    collection = trainer.collector.collect(lacks, trainer.storage, self._stops)
                else:
                    collection = trainer.collector.skip(lacks)
            finally:
                trainer.turn.transitions += trainer.total_steps - before
            self._recent.extend(collection.episodes)
            trainer.storage.note_returns([e.episode_return for e in collection.episodes])
        return lacks <= 0

    def _collected(self) -> int:
        """Return the rows of a rollout, or the transitions to replay, that the next update has."""
        trainer = self._trainer
        if trainer.storage.rollout_steps is not None:
            return len(trainer.storage) * trainer.envs.num_envs
        return trainer.turn.transitions

    def _learn(self) -> bool:
        """Update if there is anything to learn from, and say whether a callback asks to stop."""
        trainer = self._trainer
        collected = trainer.total_steps - trainer.filled_since
        may_learn = collected >= trainer.algorithm.schedule.update_after
        brought = trainer.total_steps - trainer.turn.start["steps"]
        if may_learn and brought > 0:
            return self._update()
        if trainer.storage.rollout_steps is not None:  # its rows only reset, and have to make room
            trainer.storage.after_update()
        return False

    def _update(self) -> bool:
        """Learn, unless a callback leaves this update out, and say whether one asks to stop."""
        trainer = self._trainer
        starts = [callback.on_update_start(trainer) for callback in self._update_starts]
        if any(starts):
            trainer.storage.after_update()  # a rollout that is not learned from makes room
        else:
            self._means.add(trainer.algorithm.update(trainer.storage))
            trainer.updates += 1
        trainer.turn.has_learned = True
        ends = [callback.on_update_end(trainer) for callback in trainer.callbacks]
        return any(ends)

    def _is_test_due(self) -> bool:
        trainer = self._trainer
        every = trainer.algorithm.schedule.test_every
        has_updated = trainer.updates > trainer.turn.start["updates"]  # no callback left it out
        return has_updated and every is not None and trainer.updates % every == 0

    def _evaluate(self, episodes: int) -> EvaluationResult | None:
        """Evaluate on the test environments; None when that was broken off."""
        trainer = self._trainer
        if self._is_stopping:
            return None
        seed = spawn_seed(trainer.seed, "test")
        try:
            return self._tester.evaluate(trainer.algorithm, episodes, seed, self._stops)
        except EvaluationStoppedError:
            return None

    def _use(self, result: EvaluationResult) -> bool:
        """Keep the best weights, and say whether a callback asks to stop."""
        trainer = self._trainer
        if self._directory is not None and trainer.config.keep_best:
            state: StateDict = {"algorithm": trainer.algorithm.state_dict()}
            self._directory.save_best(
                trainer.total_steps, state, result.mean, recipe=trainer.recipe
            )
        ends = [callback.on_evaluation(trainer, result) for callback in trainer.callbacks]
        return any(ends)

    def _training_metrics(self) -> dict[str, float]:
        trainer = self._trainer
        elapsed = time.perf_counter() - self._started_at
        return {
            "steps_per_second": (trainer.total_steps - self._started_steps) / max(elapsed, 1e-9),
            **self._recent.metrics(),
            "train/episodes": float(trainer.collector.total_episodes),
            "train/updates": float(trainer.updates),
            **{f"storage/{name}": value for name, value in trainer.storage.metrics().items()},
            **self._means.read(),
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
        usual = trainer.algorithm.schedule.num_test_episodes
        episodes = trainer.config.final_test_episodes or usual
        evaluation = self._evaluate(episodes) if self._tester.has_envs else None
        steps = trainer.total_steps - self._started_steps
        return TrainingResult(
            trainer.total_steps, trainer.updates, seconds, steps / max(seconds, 1e-9), evaluation
        )
