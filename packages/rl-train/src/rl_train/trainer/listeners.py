"""Who listens to a run: whether they can, and to which turns of the loop."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rl_core.algorithm import UpdateWatch
from rl_core.errors import ConfigError
from rl_core.logger import Logger
from rl_train.trainer.callbacks import Callback

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_Listener = TypeVar("_Listener", Callback, Logger)


def listeners(
    name: str, given: Iterable[_Listener], kind: type[_Listener]
) -> tuple[_Listener, ...]:
    """Return what listens to a run.

    Args:
        name: what they are called in the error.
        given: all of them.
        kind: `Callback` or `Logger`.

    Raises:
        ConfigError: when they are no list, or one of them is no object of that class.
    """
    if not isinstance(given, Iterable):
        raise ConfigError(
            f"{name}: got {_called(given)}; expected a list of {kind.__name__} objects, as in "
            f"{name}=[...]"
        )
    listed = tuple(given)
    for index, listener in enumerate(listed):
        if not isinstance(listener, kind):
            raise ConfigError(
                f"{name}[{index}]: got {_called(listener)}; expected an object of a subclass of "
                f"{kind.__module__}.{kind.__name__}"
            )
    return listed


def _called(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def check_histograms(loggers: Sequence[Logger], writes_events: bool) -> None:
    """Make sure that somebody shows the histograms which are to be logged.

    Args:
        loggers: given by the user.
        writes_events: whether event files for TensorBoard are written.

    Raises:
        ConfigError: when nobody does.
    """
    if writes_events or any(type(each).histogram is not Logger.histogram for each in loggers):
        return
    raise ConfigError(
        "trainer.log_histograms has no effect, because no logger shows histograms; set "
        "trainer.tensorboard, which needs a run_dir, give a logger of your own that overrides "
        "histogram, or leave log_histograms out"
    )


def overriders(callbacks: Sequence[Callback], method: str) -> list[Callback]:
    """Return the callbacks whose class has a method of its own in the place of the empty one."""
    return [c for c in callbacks if getattr(type(c), method) is not getattr(Callback, method)]


def watch_of(callbacks: Sequence[Callback], trainer: "Trainer") -> UpdateWatch:
    """Let callbacks listen to the turns of updates, those that do not listen at no cost."""
    return UpdateWatch(
        **{
            turn: [
                partial(getattr(callback, f"on_{turn}"), trainer)
                for callback in overriders(callbacks, f"on_{turn}")
            ]
            for turn in ("epoch_start", "epoch_end", "minibatch_start", "minibatch_end")
        }
    )
