"""The training loop, on-policy and off-policy alike."""

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast, get_args

from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.batch import RolloutBatch
from rl_core.callbacks import Callback
from rl_core.checkpoint import (
    Checkpoint,
    clean_temporary,
    latest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    set_aside_checkpoint,
)
from rl_core.collector import Collector
from rl_core.description import describe
from rl_core.env import AnyEnv, VecEnv, as_vec_env
from rl_core.errors import CheckpointError, ConfigError
from rl_core.evaluation import EvaluationResult, evaluate_policy, evaluation_metrics
from rl_core.gradients import CompileMode
from rl_core.logger import JsonlLogger, Logger
from rl_core.recipe import Recipe
from rl_core.rewards import RewardScaler
from rl_core.seeding import spawn_generators, spawn_seed
from rl_core.spaces import check_same_space
from rl_core.storage import AnyStorage, Storage
from rl_core.threads import num_threads_for, thread_count
from rl_core.trainer_config import TrainerConfig as TrainerConfig
from rl_core.types import Json, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")

_RECENT_EPISODES = 100
"""How many episodes ``train/episode_return`` averages over."""

_COMPILE_PAYS_AFTER = {"cpu": 30_000, "cuda": 3_000}
"""Gradient steps from which compiling saves more time than it takes, by kind of device."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a training run ended.

    Attributes:
        total_steps: environment transitions in all, earlier sessions included.
        total_updates: updates in all.
        wall_seconds: time spent in this session.
        steps_per_second: transitions of this session per second.
        evaluation: of the final policy; None without test environments.
    """

    total_steps: int
    total_updates: int
    wall_seconds: float
    steps_per_second: float
    evaluation: EvaluationResult | None

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
        }


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
        self.algorithm: AnyAlgorithm = algorithm
        self.storage: AnyStorage = storage
        self.envs = envs = as_vec_env(envs)
        self.seed = secrets.randbits(31) if seed is None else seed
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.recipe = recipe or describe(envs, algorithm, storage, self.config, self.seed)
        self.callbacks = tuple(callbacks)
        self.updates = 0
        self._test_envs = test_envs
        self._open_test_envs: VecEnv | None = None
        self._check_parts()
        generators = spawn_generators(self.seed, ["storage"])
        on_device = spawn_generators(self.seed, ["algorithm", "collector"], device=algorithm.device)
        algorithm.generator = on_device["algorithm"]
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
        self._resumed_from: Path | None = None
        self._owns_run_dir = False

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
        """
        goal = _Goal.choose(total_steps, total_episodes, total_updates)
        if goal.target <= self._reached(goal):
            raise ConfigError(
                f"total_{goal.unit} is {goal.target}, but the run already has "
                f"{self._reached(goal)} {goal.unit}; ask for more"
            )
        threads = self._settle(goal)
        self._open_run_dir()
        with thread_count(threads):
            self._started_at = time.perf_counter()
            self._started_steps = self.total_steps
            for callback in self.callbacks:
                callback.on_training_start(self, goal.target, goal.unit)
            try:
                self._loop(goal)
                seconds = time.perf_counter() - self._started_at
                if self.run_dir is not None:
                    self.save_checkpoint()  # before an evaluation that could fail
                result = self._result(seconds)
            finally:
                self._close_test_envs()
                for callback in self.callbacks:
                    callback.on_training_end(self)
                for logger in (*self._loggers, *self._run_loggers):
                    logger.close()
        if self.run_dir is not None:
            _write_json(self.run_dir / "summary.json", result.as_dict())
        return result

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
        if self.run_dir is None:
            raise ConfigError("give the Trainer a run_dir to save checkpoints in")
        directory = self.run_dir / "checkpoints"
        path = directory / f"step-{self.total_steps}"
        if not path.exists():
            path = save_checkpoint(
                directory,
                self.total_steps,
                self.state_dict(),
                recipe=self.recipe,
                metadata={},
                resume_grade=self.envs.resume_grade,
            )
        self._owns_run_dir = True
        protect = [path] if self._resumed_from is None else [path, self._resumed_from]
        prune_checkpoints(directory, keep=self.config.keep_checkpoints, protect=protect)
        return path

    def resume(self) -> Checkpoint:
        """Go on from the newest readable checkpoint of the run directory.

        Newer ones that are damaged are renamed, so that their steps can be saved again.

        Returns:
            The checkpoint; its ``skipped`` names those that had to be passed over.

        Raises:
            ConfigError: without a run directory.
            CheckpointError: when there is no readable checkpoint.
        """
        if self.run_dir is None:
            raise ConfigError("give the Trainer the run_dir to resume from")
        directory = self.run_dir / "checkpoints"
        checkpoint = latest_checkpoint(directory)
        if checkpoint is None:
            raise CheckpointError(f"{directory} holds no checkpoint to resume from")
        self.load_state_dict(checkpoint.state)
        for skipped in checkpoint.skipped:
            set_aside_checkpoint(skipped.path)
        self._resumed_from = checkpoint.path
        self._owns_run_dir = True
        return checkpoint

    def state_dict(self) -> StateDict:
        """Return the state of every part."""
        return {
            "seed": self.seed,
            "updates": self.updates,
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "storage": self.storage.state_dict(),
            "recent_returns": list(self._recent_returns),
            "recent_lengths": list(self._recent_lengths),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`."""
        seed, updates = state["seed"], state["updates"]
        algorithm, collector, storage = state["algorithm"], state["collector"], state["storage"]
        returns, lengths = state["recent_returns"], state["recent_lengths"]
        assert isinstance(seed, int)
        assert isinstance(updates, int)
        assert isinstance(algorithm, Mapping)
        assert isinstance(collector, Mapping)
        assert isinstance(storage, Mapping)
        assert isinstance(returns, Sequence)
        assert isinstance(lengths, Sequence)
        self.seed, self.updates = seed, updates
        self.algorithm.load_state_dict(algorithm)
        self.collector.load_state_dict(collector)
        self.storage.load_state_dict(storage)
        if self.storage.rollout_steps is not None and self.envs.resume_grade != "exact":
            self.storage.reset()  # its running episodes are lost; a rollout must not span the seam
        for recent, values in ((self._recent_returns, returns), (self._recent_lengths, lengths)):
            recent.clear()
            recent.extend(value for value in values if isinstance(value, float))

    def _loop(self, goal: "_Goal") -> None:
        schedule = self.algorithm.schedule
        update_every = schedule.update_every or _rollout_rows(self.storage, self.envs.num_envs)
        log_every = self.config.log_every or self._default_log_every(goal, update_every)
        checkpoint_every = self.config.checkpoint_every
        next_log = (self.total_steps // log_every + 1) * log_every
        next_checkpoint = (
            None
            if checkpoint_every is None
            else (self.total_steps // checkpoint_every + 1) * checkpoint_every
        )
        stop = False
        while not stop and self._reached(goal) < goal.target:
            progress = self._reached(goal) / goal.target  # before, so that no last step gets none
            rows = update_every
            if self.storage.rollout_steps is not None:
                rows -= len(self.storage) * self.envs.num_envs  # an interrupted rollout is finished
            collection = self.collector.collect(rows, into=self.storage)
            for episode in collection.episodes:
                self._recent_returns.append(episode.episode_return)
                self._recent_lengths.append(float(episode.length))
            tested: Mapping[str, float] = {}
            if self.total_steps >= max(schedule.update_after, schedule.start_steps):
                self.algorithm.set_progress(progress)
                self._prepared = self.algorithm.update(self.storage)
                self.updates += 1
                ends = [callback.on_update_end(self) for callback in self.callbacks]
                stop = any(ends)
                if schedule.test_every and self.updates % schedule.test_every == 0:
                    result = self.evaluate()
                    tested = evaluation_metrics(result)
                    ends = [callback.on_evaluation(self, result) for callback in self.callbacks]
                    stop = stop or any(ends)
            is_over = stop or self._reached(goal) >= goal.target
            if tested or is_over or self.total_steps >= next_log:
                self._log({**self._training_metrics(), **tested})
                next_log = (self.total_steps // log_every + 1) * log_every
            if next_checkpoint is not None and self.total_steps >= next_checkpoint:
                assert checkpoint_every is not None
                if self.run_dir is not None:
                    self.save_checkpoint()
                next_checkpoint = (self.total_steps // checkpoint_every + 1) * checkpoint_every

    def _training_metrics(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._started_at
        returns, lengths = self._recent_returns, self._recent_lengths
        return {
            "steps_per_second": (self.total_steps - self._started_steps) / max(elapsed, 1e-9),
            "train/episode_return": _mean(returns),
            "train/episode_length": _mean(lengths),
            "train/episodes": float(self.collector.total_episodes),
            "train/updates": float(self.updates),
            **self._prepared,
            **self.algorithm.read_metrics(),
        }

    def _log(self, metrics: Mapping[str, float]) -> None:
        for logger in (*self._loggers, *self._run_loggers):
            logger.log(self.total_steps, metrics)
        for callback in self.callbacks:
            callback.on_log(self, metrics)

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

    def _reached(self, goal: "_Goal") -> int:
        counts = {
            "steps": self.total_steps,
            "episodes": self.collector.total_episodes,
            "updates": self.updates,
        }
        return counts[goal.unit]

    def _default_log_every(self, goal: "_Goal", update_every: int) -> int:
        """Aim at 200 lines in a run, but at most one per update."""
        if goal.unit == "steps":
            return max(update_every, goal.target // 200)
        return max(update_every, 1000)

    def _settle(self, goal: "_Goal") -> int:
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

    def _resolve_compile(self, goal: "_Goal") -> CompileMode:
        if self.config.compile != "auto":
            return self.config.compile
        if self.algorithm.actor.is_recurrent:
            return "off"
        schedule = self.algorithm.schedule
        rows = schedule.update_every or _rollout_rows(self.storage, self.envs.num_envs)
        batches = schedule.num_mini_batch or -(-rows // (schedule.mini_batch_size or rows))
        left = goal.target - self._reached(goal)
        updates = left if goal.unit == "updates" else left / rows if goal.unit == "steps" else 0
        planned = updates * schedule.num_epochs * batches
        pays = _COMPILE_PAYS_AFTER.get(self.algorithm.device.type, 30_000)
        return "auto" if planned >= pays else "off"

    def _check_parts(self) -> None:
        needs, gives = self.algorithm.batch_type, self.storage.batch_type
        if needs is not gives:
            raise ConfigError(
                f"{type(self.algorithm).__name__} learns from {needs.__name__}, but "
                f"{type(self.storage).__name__} gives {gives.__name__}; choose a storage that fits"
            )
        actor, envs = self.algorithm.actor, self.envs
        check_same_space(
            actor.observation_space,
            envs.single_observation_space,
            "environments' observation space",
        )
        check_same_space(actor.action_space, envs.single_action_space, "environments' action space")
        schedule = self.algorithm.schedule
        if schedule.test_every is not None and self._test_envs is None:
            raise ConfigError("test_every needs test environments: give the Trainer test_envs")
        if self.storage.rollout_steps is None:
            return
        rows = self.storage.rollout_steps * self.envs.num_envs
        if schedule.update_every not in (None, rows):
            raise ConfigError(
                f"update_every={schedule.update_every}, but a rollout is learned from when it is "
                f"complete, after {rows} rows; leave update_every out"
            )
        if schedule.update_after or schedule.start_steps:
            raise ConfigError(
                "update_after and start_steps do not go with a rollout storage, which has no room "
                "for more than it is learned from; leave them at 0"
            )

    def _open_run_dir(self) -> None:
        if self.run_dir is None:
            return
        checkpoints = self.run_dir / "checkpoints"
        metrics = self.run_dir / "metrics.jsonl"
        try:
            is_empty = not self.run_dir.exists() or not any(self.run_dir.iterdir())
            if not (is_empty or self._owns_run_dir):
                raise ConfigError(
                    f"run directory {self.run_dir} is not empty; choose another, or resume the run"
                )
            checkpoints.mkdir(parents=True, exist_ok=True)
            clean_temporary(checkpoints)
            self.recipe.save(self.run_dir / "recipe.toml")
            logger = JsonlLogger(metrics, append=True)
        except OSError as error:
            raise ConfigError(f"run directory {self.run_dir} is not writable: {error}") from error
        self._owns_run_dir = True
        self._run_loggers = [logger]
        logger.truncate_after(self.total_steps)


@dataclass(frozen=True, slots=True)
class _Goal:
    unit: str
    target: int

    @classmethod
    def choose(cls, steps: int | None, episodes: int | None, updates: int | None) -> "_Goal":
        given = {
            unit: count
            for unit, count in (("steps", steps), ("episodes", episodes), ("updates", updates))
            if count is not None
        }
        if len(given) != 1:
            raise ConfigError(
                "give just one of total_steps, total_episodes and total_updates, got "
                f"{', '.join(f'total_{unit}' for unit in given) or 'none'}"
            )
        ((unit, target),) = given.items()
        if target < 1:
            raise ConfigError(f"total_{unit} must be at least 1, got {target}")
        return cls(unit, target)


def _rollout_rows(storage: AnyStorage, num_envs: int) -> int:
    if storage.batch_type is not RolloutBatch or storage.rollout_steps is None:
        raise ConfigError("the algorithm's schedule names no update_every")
    return storage.rollout_steps * num_envs


def _gamma(algorithm: AnyAlgorithm) -> float:
    return algorithm.schedules["gamma"].value(0.0) if "gamma" in algorithm.schedules else 0.99


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _write_json(path: Path, content: Mapping[str, Json]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)
