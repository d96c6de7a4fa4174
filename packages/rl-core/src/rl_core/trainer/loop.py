"""The loop itself."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast, get_args

from rl_core.algorithm import Algorithm, AnyAlgorithm, UpdateWatch
from rl_core.callbacks import Callback
from rl_core.checkpoint import Checkpoint
from rl_core.collector import Collection, Collector
from rl_core.demonstrations import fill_storage
from rl_core.description import describe
from rl_core.env import AnyEnv, VecEnv, as_vec_env
from rl_core.errors import CheckpointError, ConfigError, NonFiniteError
from rl_core.evaluation import EvaluationResult, evaluate_policy, evaluation_metrics
from rl_core.gradients import CompileMode
from rl_core.graphs import check_compiler
from rl_core.logger import Logger, TensorBoardLogger
from rl_core.recipe import Recipe
from rl_core.rewards import RewardScaler
from rl_core.seeding import spawn_generators, spawn_seed
from rl_core.stateful import StateReader
from rl_core.storage import AnyStorage, Storage
from rl_core.storage_files import check_spec, state_of
from rl_core.threads import num_threads_for, thread_count
from rl_core.trainer.goal import Goal
from rl_core.trainer.listening import overriders, watch_of
from rl_core.trainer.parts import check_parts, rows_per_update, worthwhile_compile_mode
from rl_core.trainer.result import TrainingResult
from rl_core.trainer.run_directory import RunDirectory
from rl_core.trainer_config import TrainerConfig
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")

_RECENT_EPISODES = 100
"""How many episodes ``train/episode_return`` averages over."""


class Trainer:
    """Collect, update, evaluate, log and checkpoint, until the run is over.

    Args:
        envs: environments to learn in; Gymnasium's own go straight in.
        algorithm: what learns.
        storage: where transitions go; allocated here.
        config: options.
        seed: of every random generator in the run; None draws one and keeps it, and leaves the
            environments to the seed they were made with.
        run_dir: where logs, checkpoints and the summary go; None writes nothing.
        test_envs: separate environments to evaluate in, or what makes them.
        loggers: further sinks for metrics; closed when `train` ends.
        callbacks: called at the turns of the loop.
        recipe: what the parts were built from, kept in the run directory and its checkpoints;
            None writes one from the parts.

    Attributes:
        num_demonstrations: transitions that the storage was filled with; 0 before `train`.

    Raises:
        ConfigError: when parts or options contradict each other.
        SpaceError: when the actor was built for other spaces than the environments have.
    """

    def __init__(
        self,
        envs: AnyEnv,
        algorithm: Algorithm[ConfigT, BatchT],
        storage: Storage[BatchT],
        *,
        config: TrainerConfig | None = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        test_envs: AnyEnv | Callable[[], AnyEnv] | None = None,
        loggers: Sequence[Logger] = (),
        callbacks: Sequence[Callback] = (),
        recipe: Recipe | None = None,
    ) -> None:
        self.config = config or TrainerConfig()
        if not isinstance(self.config, TrainerConfig):
            raise ConfigError(f"config: expected a TrainerConfig, got {type(config).__name__}")
        self.algorithm: AnyAlgorithm = algorithm
        self.storage: AnyStorage = storage
        self.envs = envs = as_vec_env(envs)
        check_parts(envs, algorithm, storage)
        self.seed = secrets.randbits(31) if seed is None else seed
        self._directory = None if run_dir is None else RunDirectory(Path(run_dir))
        self.recipe = recipe or describe(envs, algorithm, storage, self.config, self.seed)
        self.callbacks = tuple(callbacks)
        self.updates = 0
        self.num_demonstrations = 0
        self._is_stopping = False
        self._test_envs = test_envs
        self._open_test_envs: VecEnv | None = None
        if algorithm.schedule.test_every is not None and test_envs is None:
            raise ConfigError("test_every needs test environments: give the Trainer test_envs")
        generators = spawn_generators(self.seed, ["storage"])
        on_device = spawn_generators(self.seed, ["algorithm", "collector"], device=algorithm.device)
        algorithm.generator = on_device["algorithm"]
        algorithm.gradients.guard.mode = self.config.on_nonfinite
        scaler = (
            RewardScaler(envs.num_envs, gamma=_gamma(algorithm))
            if self.config.scale_rewards
            else None
        )
        self.collector = Collector(
            envs,
            algorithm,
            generator=on_device["collector"],
            reward_scaler=scaler,
            seed=None if seed is None else spawn_seed(self.seed, "envs"),
        )
        storage.allocate(self.collector.storage_spec(), generators["storage"])
        self._loggers = tuple(loggers)
        self._run_loggers: list[Logger] = []
        self._recent_returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._recent_lengths: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._prepared: dict[str, float] = {}
        self._started_steps = 0
        self._started_at = 0.0

    @property
    def run_dir(self) -> Path | None:
        """Where logs, checkpoints and the summary go."""
        return None if self._directory is None else self._directory.path

    @property
    def total_steps(self) -> int:
        """Environment transitions so far."""
        return self.collector.total_steps

    def train(
        self,
        total_steps: int | None = None,
        *,
        total_episodes: int | None = None,
        total_updates: int | None = None,
    ) -> TrainingResult:
        """Train until one count is reached; counts go on over resumed sessions.

        Args:
            total_steps: environment transitions over all environments.
            total_episodes: finished episodes.
            total_updates: updates.

        Raises:
            ConfigError: when not just one count is given, or it is not above what was reached.
            NonFiniteError: when a loss or gradient was not finite; the state before that step is
                saved, and so is its batch.
        """
        goal = Goal.choose(total_steps, total_episodes, total_updates)
        if goal.target <= self._reached(goal):
            raise ConfigError(
                f"total_{goal.unit} is {goal.target}, but the run already has "
                f"{self._reached(goal)} {goal.unit}; ask for more"
            )
        self._demonstrate()
        threads = self._settle(goal)
        if self._directory is not None:
            self._run_loggers = [self._directory.open(self.recipe, self.total_steps)]
            if self.config.tensorboard:
                folder, purge = self._directory.path / "tensorboard", self.total_steps + 1
                self._run_loggers.append(TensorBoardLogger(folder, purge_step=purge))
        try:
            result = self._run(goal, threads)
        finally:
            if self._directory is not None:
                self._directory.close()
        return result

    def _run(self, goal: Goal, threads: int) -> TrainingResult:
        with thread_count(threads):
            self._started_at = time.perf_counter()
            self._started_steps = self.total_steps
            self._is_stopping = False
            self.algorithm.watch = watch_of(self.callbacks, self)
            starts = [c.on_training_start(self, goal.target, goal.unit) for c in self.callbacks]
            try:
                if not any(starts):
                    self._warm_up()
                    self._loop_to(goal)
                seconds = time.perf_counter() - self._started_at
                if self.run_dir is not None:
                    self.save_checkpoint()  # before an evaluation that could fail
                result = self._result(seconds)
            finally:
                self._close_test_envs()
                self.algorithm.watch = UpdateWatch()
                for callback in self.callbacks:
                    callback.on_training_end(self)
                for logger in (*self._loggers, *self._run_loggers):
                    logger.close()
        if self._directory is not None:
            self._directory.write_summary(result.as_dict())
        return result

    def stop(self) -> None:
        """End the run after the update that is going on, with its checkpoint and summary.

        It may be called by callbacks, signal handlers and other threads.
        """
        self._is_stopping = True

    def evaluate(self, num_episodes: int | None = None) -> EvaluationResult:
        """Evaluate the current policy deterministically on the test environments.

        Raises:
            ConfigError: when there are no test environments.
        """
        if self._test_envs is None:
            raise ConfigError("give the Trainer test_envs to evaluate on")
        if self._open_test_envs is None:
            given = self._test_envs
            self._open_test_envs = as_vec_env(given() if callable(given) else given)
        if num_episodes is None:
            num_episodes = self.algorithm.schedule.num_test_episodes
        seed = spawn_seed(self.seed, "test")
        return evaluate_policy(self.algorithm, self._open_test_envs, num_episodes, seed=seed)

    def save_checkpoint(self) -> Path:
        """Write a checkpoint of the whole run; a step that has one already is left alone.

        Raises:
            ConfigError: without a run directory.
            CheckpointError: when it cannot be written.
        """
        if self._directory is None:
            raise ConfigError("give the Trainer a run_dir to save checkpoints in")
        return self._directory.save(
            self.total_steps,
            self.state_dict(),
            recipe=self.recipe,
            resume_grade=self.envs.resume_grade,
            keep=self.config.keep_checkpoints,
        )

    def resume(self) -> Checkpoint:
        """Go on from the newest readable checkpoint of the run directory.

        Newer ones that are damaged are renamed, so that their steps can be saved again.

        Returns:
            The checkpoint; its ``skipped`` names those that had to be passed over.

        Raises:
            ConfigError: without a run directory.
            CheckpointError: when there is no readable checkpoint.
        """
        if self._directory is None:
            raise ConfigError("give the Trainer the run_dir to resume from")
        checkpoint = self._directory.latest()
        self.load_state_dict(checkpoint.state)
        self._directory.go_on_from(checkpoint)
        return checkpoint

    def state_dict(self) -> StateDict:
        """Return the state of every part."""
        return {
            "seed": self.seed,
            "updates": self.updates,
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            **state_of(self.storage),
            "demonstrations": self.num_demonstrations,
            "recent_returns": list(self._recent_returns),
            "recent_lengths": list(self._recent_lengths),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`."""
        saved = StateReader(state, "trainer")
        self.seed, self.updates = saved.count("seed"), saved.count("updates")
        self.algorithm.load_state_dict(saved.tree("algorithm"))
        self.collector.load_state_dict(saved.tree("collector"))
        check_spec(self.storage, saved)
        self.storage.load_state_dict(saved.tree("storage"))
        self.num_demonstrations = saved.count("demonstrations")
        if self.storage.rollout_steps is not None and self.envs.resume_grade != "exact":
            self.storage.reset()  # its running episodes are lost; a rollout must not span the seam
        for recent, key in (
            (self._recent_returns, "recent_returns"),
            (self._recent_lengths, "recent_lengths"),
        ):
            recent.clear()
            recent.extend(saved.numbers(key))

    def _loop_to(self, goal: Goal) -> None:
        try:
            self._loop(goal)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {self._keep_evidence(str(error))}") from error

    def _keep_evidence(self, message: str) -> str:
        """Save the last good state and the batch that led out of it, and say where they are."""
        if self._directory is None:
            return "with a run_dir, the batch would have been saved"
        self.storage.after_update()  # whoever resumes begins with a fresh rollout
        faulty = self.algorithm.gradients.guard.faulty
        try:
            kept = f"the state before it is in {self.save_checkpoint()}"
            if faulty is not None:
                path = self._directory.save_faulty(
                    self.total_steps, faulty, message, recipe=self.recipe
                )
                kept = f"its batch is in {path}, {kept}"
        except CheckpointError as failure:
            return f"what led to it could not be saved: {failure}"
        return kept

    def _loop(self, goal: Goal) -> None:
        schedule = self.algorithm.schedule
        update_every = rows_per_update(self.envs, self.algorithm, self.storage)
        log_every = self.config.log_every or self._default_log_every(goal, update_every)
        checkpoint_every = self.config.checkpoint_every
        next_log = (self.total_steps // log_every + 1) * log_every
        next_checkpoint = (
            None
            if checkpoint_every is None
            else (self.total_steps // checkpoint_every + 1) * checkpoint_every
        )
        stop = False
        starts = overriders(self.callbacks, "on_update_start")
        while not stop and self._reached(goal) < goal.target:
            progress = self._reached(goal) / goal.target  # before, so that no last step gets none
            rows = update_every
            if self.storage.rollout_steps is not None:
                rows -= len(self.storage) * self.envs.num_envs  # an interrupted rollout is finished
            collection = self._collect(rows)
            for episode in collection.episodes:
                self._recent_returns.append(episode.episode_return)
                self._recent_lengths.append(float(episode.length))
            self.storage.note_returns([e.episode_return for e in collection.episodes])
            tested: Mapping[str, float] = {}
            may_learn = self.total_steps >= max(schedule.update_after, schedule.start_steps)
            if may_learn and collection.steps:  # a row that only reset brings nothing to learn
                self.algorithm.set_progress(progress)
                self.storage.set_progress(progress)
                answers = [callback.on_update_start(self) for callback in starts]
                if any(answers):
                    self.storage.after_update()  # a rollout that is not learned from makes room
                else:
                    self._prepared = self.algorithm.update(self.storage)
                    self.updates += 1
                ends = [callback.on_update_end(self) for callback in self.callbacks]
                stop = any(ends)
                if schedule.test_every and self.updates % schedule.test_every == 0:
                    result = self.evaluate()
                    tested = evaluation_metrics(result)
                    self._keep_if_best(result)
                    ends = [callback.on_evaluation(self, result) for callback in self.callbacks]
                    stop = stop or any(ends)
            stop = stop or self._is_stopping
            is_over = stop or self._reached(goal) >= goal.target
            if tested or is_over or self.total_steps >= next_log:
                self._log({**self._training_metrics(), **tested})
                next_log = (self.total_steps // log_every + 1) * log_every
            if next_checkpoint is not None and self.total_steps >= next_checkpoint:
                assert checkpoint_every is not None
                if self.run_dir is not None:
                    self.save_checkpoint()
                next_checkpoint = (self.total_steps // checkpoint_every + 1) * checkpoint_every

    def _collect(self, rows: int) -> Collection:
        if self.algorithm.collects:
            return self.collector.collect(rows, into=self.storage)
        return self.collector.skip(rows)

    def _warm_up(self) -> None:
        """Let the algorithm see random steps before the first one of a run."""
        steps = self.algorithm.warm_up_steps
        if steps and self.total_steps == 0:
            self.collector.warm_up(steps)

    def _demonstrate(self) -> None:
        """Fill the storage once in the life of a run, before its first step."""
        source = self.config.demonstrations
        if source is not None and self.num_demonstrations == 0:
            self.num_demonstrations = fill_storage(self.storage, source, self.algorithm.actor)

    def _training_metrics(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._started_at
        returns, lengths = self._recent_returns, self._recent_lengths
        return {
            "steps_per_second": (self.total_steps - self._started_steps) / max(elapsed, 1e-9),
            "train/episode_return": _mean(returns),
            "train/episode_length": _mean(lengths),
            "train/episodes": float(self.collector.total_episodes),
            "train/updates": float(self.updates),
            **{f"storage/{name}": value for name, value in self.storage.metrics().items()},
            **self._prepared,
            **self.algorithm.read_metrics(),
        }

    def _log(self, metrics: Mapping[str, float]) -> None:
        for logger in (*self._loggers, *self._run_loggers):
            logger.log(self.total_steps, metrics)
            if self.config.log_histograms:
                for name, values in self.algorithm.named_parameters().items():
                    logger.histogram(self.total_steps, f"parameters/{name}", values)
        for callback in self.callbacks:
            callback.on_log(self, metrics)

    def _keep_if_best(self, result: EvaluationResult) -> None:
        if self._directory is not None and self.config.keep_best:
            self._directory.save_best(
                self.total_steps,
                {"algorithm": self.algorithm.state_dict()},
                result.mean,
                recipe=self.recipe,
            )

    def _close_test_envs(self) -> None:
        """Close test environments that were made here; given ones belong to the giver."""
        if self._open_test_envs is not None and callable(self._test_envs):
            self._open_test_envs.close()
        self._open_test_envs = None

    def _result(self, seconds: float) -> TrainingResult:
        evaluation = None if self._test_envs is None else self.evaluate()
        steps = self.total_steps - self._started_steps
        return TrainingResult(
            self.total_steps, self.updates, seconds, steps / max(seconds, 1e-9), evaluation
        )

    def _reached(self, goal: Goal) -> int:
        counts = {
            "steps": self.total_steps,
            "episodes": self.collector.total_episodes,
            "updates": self.updates,
        }
        return counts[goal.unit]

    def _default_log_every(self, goal: Goal, update_every: int) -> int:
        """Aim at 200 lines in a run, but at most one per update."""
        if goal.unit == "steps":
            return max(update_every, goal.target // 200)
        return max(update_every, 1000)

    def _settle(self, goal: Goal) -> int:
        """Settle what was left open, once per run: a resumed run must compute as it began.

        Returns:
            The number of threads.
        """
        resolved = dict(self.recipe.resolved)
        compile_mode, threads = resolved.get("compile"), resolved.get("num_threads")
        if not isinstance(threads, int) or self.config.num_threads is not None:
            threads = self.config.num_threads or num_threads_for(self.algorithm.actor)
        if compile_mode not in get_args(CompileMode) or self.config.compile != "auto":
            compile_mode = self._resolve_compile(goal)
        self.algorithm.compile_mode = cast("CompileMode", compile_mode)
        resolved |= {"compile": compile_mode, "num_threads": threads}
        self.recipe = self.recipe.replace(resolved=resolved)
        return threads

    def _resolve_compile(self, goal: Goal) -> CompileMode:
        if self.config.compile == "on":
            check_compiler(self.algorithm.device)
        if self.config.compile != "auto":
            return self.config.compile
        rows = rows_per_update(self.envs, self.algorithm, self.storage)
        left = goal.target - self._reached(goal)
        updates = left if goal.unit == "updates" else left / rows if goal.unit == "steps" else 0
        return worthwhile_compile_mode(self.algorithm, updates, rows)


def _gamma(algorithm: AnyAlgorithm) -> float:
    return algorithm.schedules["gamma"].value(0.0) if "gamma" in algorithm.schedules else 0.99


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
