"""Callbacks: hooks into the training loop."""

import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rl_core.errors import ConfigError, nearest
from rl_core.stateful import StateReader
from rl_core.types import StateDict

if TYPE_CHECKING:
    from rl_train.evaluation import EvaluationResult
    from rl_train.trainer.trainer import Trainer


_OF_BASE_CALLBACK = (
    *("_on_training_start", "_on_rollout_start", "_on_step", "_on_rollout_end"),
    "_on_training_end",
)
"""Methods of Stable-Baselines3's callbacks."""


class Callback:
    """Base class of callbacks; override the methods you need.

    The others cost nothing. Methods that return a bool can end a part of the training by returning
    True. Read the run from the trainer: ``total_steps``, ``updates``, ``algorithm``,
    ``collector``, ``storage``.

    What a callback remembers is saved with the run if `state_dict` returns it.

    Raises:
        ConfigError: when a subclass has a method ``on_...`` that nothing would call or that takes
            other arguments, or one of Stable-Baselines3's.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name, method in vars(cls).items():
            if (name.startswith("on_") and name not in known) or name in _OF_BASE_CALLBACK:
                ours = nearest(name.removeprefix("_"), known)
                raise ConfigError(f"{cls.__name__}.{name}: nothing calls it{ours}")
            if name in known and inspect.isfunction(method):
                names = [*inspect.signature(getattr(Callback, name)).parameters]
                try:
                    inspect.signature(method).bind(*names)
                except TypeError as error:
                    raise ConfigError(
                        f"{cls.__name__}.{name} is called with ({', '.join(names)}): {error}"
                    ) from error

    def state_dict(self) -> StateDict:
        """Return what the next session of the run has to know; nothing by default."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""

    def on_training_start(self, trainer: "Trainer", target: int, unit: str) -> bool | None:
        """Before the first collection; the run ends at ``target`` of ``unit``.

        Returns:
            True ends the run before any step is collected.
        """

    def on_update_start(self, trainer: "Trainer") -> bool | None:
        """Before each update.

        Returns:
            True skips this update; a replay storage keeps the collected steps.
        """

    def on_epoch_start(self, trainer: "Trainer", epoch: int) -> bool | None:
        """Before each pass over the data, counted from 0 in each update.

        Returns:
            True ends this update's passes.
        """

    def on_minibatch_start(self, trainer: "Trainer", index: int) -> bool | None:
        """Before each gradient step, counted from 0 in each pass.

        Returns:
            True ends this pass.
        """

    def on_minibatch_end(self, trainer: "Trainer", index: int) -> bool | None:
        """After each gradient step.

        Returns:
            True ends this pass.
        """

    def on_epoch_end(self, trainer: "Trainer", epoch: int) -> bool | None:
        """After each pass over the data.

        Returns:
            True ends this update's passes.
        """

    def on_update_end(self, trainer: "Trainer") -> bool | None:
        """After each update.

        Returns:
            True ends the run.
        """

    def on_log(self, trainer: "Trainer", metrics: Mapping[str, float]) -> bool | None:
        """After each log line.

        Returns:
            True ends the run.
        """

    def on_evaluation(self, trainer: "Trainer", result: "EvaluationResult") -> bool | None:
        """After each evaluation of ``test_every``; the one at the end is in the result.

        Returns:
            True ends the run.
        """

    def on_tick(self, trainer: "Trainer", activity: str) -> None:
        """Very often: before each environment step, and while the run waits for the compiler.

        The activity says in words what the run is doing: ``collecting``, ``compiling``, or
        ``evaluating`` and how many episodes have finished, in how many steps. While it is
        ``compiling``, a run cannot be saved.
        """

    def on_training_end(self, trainer: "Trainer") -> None:
        """After the last update, also when the run failed."""


def callback_states(callbacks: Sequence[Callback]) -> StateDict:
    """Return the states of all callbacks that have one, by name."""
    states = {name: callback.state_dict() for name, callback in _named(callbacks)}
    return {name: state for name, state in states.items() if state}


def load_callback_states(callbacks: Sequence[Callback], state: StateDict) -> None:
    """Let callbacks take over what those of their names returned; warn of states left over.

    Raises:
        CheckpointError: when one does not fit.
    """
    named, saved = dict(_named(callbacks)), StateReader(state, "callbacks")
    for name in state:
        if name in named:
            named[name].load_state_dict(saved.tree(name))
        else:
            warnings.warn(
                f"the run was saved with a callback {name}, which it goes on without", stacklevel=2
            )


def _named(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """Yield callbacks with the names of their classes, numbered from the second of a class on."""
    counts = Counter[str]()
    for callback in callbacks:
        name = type(callback).__name__
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name} {counts[name]}"), callback


def overriding(callbacks: Sequence[Callback], method: str) -> list[Callback]:
    """Return the callbacks that override a method."""
    return [c for c in callbacks if getattr(type(c), method) is not getattr(Callback, method)]
