"""Callbacks and loggers of a run: whether they can be used."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rl_core.errors import ConfigError
from rl_core.logger import Logger
from rl_train.trainer.callbacks import Callback

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
