"""Callbacks and loggers of a run: checking, building and opening them."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from rl_core import plugins
from rl_core.config import ComponentSpec, encode
from rl_core.errors import ConfigError
from rl_core.logger import Logger
from rl_core.types import Json
from rl_train.builder.components import complete_component, construct_component, spec_from
from rl_train.trainer.callbacks import Callback
from rl_train.trainer.config import Named

_Listener = TypeVar("_Listener", Callback, Logger)


def listeners(
    name: str,
    given: Iterable[_Listener | Named],
    kind: type[_Listener],
    configured: Sequence[str | dict[str, Json]],
) -> tuple[tuple[str | dict[str, Json], ...], tuple[_Listener, ...]]:
    """Separate registered names of callbacks or loggers from objects.

    Args:
        name: what they are called in the error.
        given: those that the user gave.
        kind: `Callback` or `Logger`.
        configured: further names, which come first.

    Raises:
        ConfigError: when they are not a list, or one of them is neither.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ConfigError(
            f"{name}: got {type_name(given)}; expected a list of {kind.__name__} objects or "
            f"registered names, as in {name}=[...]"
        )
    named = list(configured)
    objects: list[_Listener] = []
    for index, listener in enumerate(given):
        if isinstance(listener, str | Mapping):
            plain = cast("str | dict[str, Json]", encode(listener))
            named += [plain] if plain not in named else []
        elif isinstance(listener, kind):
            objects.append(listener)
        else:
            raise ConfigError(
                f"{name}[{index}]: got {type_name(listener)}; expected an object of a subclass of "
                f"{kind.__module__}.{kind.__name__}, or a registered name"
            )
    return tuple(named), tuple(objects)


def named_specs(kind: str, parts: Sequence[str | dict[str, Json]]) -> list[ComponentSpec]:
    """Look up registered loggers or callbacks, and check their options.

    Args:
        kind: ``logger`` or ``callback``.
        parts: names, or tables with names and options.

    Raises:
        ConfigError: when an option is unknown or does not fit.
        PluginError: for an unknown name.
    """
    path = f"trainer.{kind}s"
    specs = [spec_from(kind, part, f"{path}[{index}]") for index, part in enumerate(parts)]
    for index, spec in enumerate(specs):
        if spec in specs[:index]:
            raise ConfigError(f"{path} names '{spec.name}' twice; leave one out")
    return [complete_component(kind, spec.name, spec.kwargs) for spec in specs]


def build_callbacks(parts: Sequence[str | dict[str, Json]]) -> list[Callback]:
    """Build registered callbacks, see `named_specs`."""
    specs = named_specs("callback", parts)
    return [cast("Callback", construct_component("callback", spec, {})) for spec in specs]


def open_loggers(specs: Sequence[ComponentSpec], run_dir: Path | None, step: int) -> list[Logger]:
    """Build registered loggers for a session of training.

    Args:
        specs: of the loggers.
        run_dir: where those that need a directory write.
        step: up to which earlier sessions logged; 0 in a new run.

    Raises:
        ConfigError: when one needs a run directory and there is none, or cannot write into it.
        MissingExtraError: when one needs a package that is not installed.
    """
    context = {"run_dir": run_dir, "resume_step": step or None}
    loggers: list[Logger] = []
    for spec in specs:
        needs = inspect.signature(plugins.load("logger", spec.name)).parameters
        if run_dir is None and "run_dir" in needs:
            raise ConfigError(
                f"logger {spec.name!r} needs a run_dir, where its files go; give one, or leave it "
                "out of trainer.loggers"
            )
        loggers.append(cast("Logger", construct_component("logger", spec, context)))
    return loggers


def type_name(given: object) -> str:
    """Return the name of an object's type, or of a class that was given in its place."""
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def check_histograms(loggers: Sequence[Logger], specs: Sequence[ComponentSpec]) -> None:
    """Make sure that somebody shows the histograms which are to be logged.

    Args:
        loggers: objects.
        specs: registered loggers.

    Raises:
        ConfigError: when nobody does.
    """
    classes = [*map(type, loggers), *(plugins.load("logger", spec.name) for spec in specs)]
    if any(getattr(cls, "histogram", None) is not Logger.histogram for cls in classes):
        return
    raise ConfigError(
        "trainer.log_histograms has no effect, because no logger shows histograms; add "
        "'tensorboard' to trainer.loggers, which needs a run_dir, or a logger of your own that "
        "overrides histogram, or leave log_histograms out"
    )
