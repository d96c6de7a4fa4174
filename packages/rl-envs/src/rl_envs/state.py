"""Saves and restores environments in the middle of an episode, where the simulator allows it.

The state of an environment is the attributes of each layer, from the outermost wrapper to the
simulator: numbers, texts, arrays, random generators, and lists, dicts and objects of these. The
simulators of MuJoCo and Atari are asked for theirs. Everything else (spaces, functions, windows) is
taken to be the same in an environment that was built in the same way. This holds for the classes in
`EXACT_MODULES`, which tests compare bit for bit; of other classes nothing is assumed. They can be
restored if they have `state_dict` and `load_state_dict` themselves, and so can objects that
Gymnasium's `Transform...` wrappers call. Gymnasium's `SyncVectorEnv` is saved with each of its
environments.
"""

import contextlib
import importlib
import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import PassiveEnvChecker

from rl_core.errors import CheckpointError, in_brief
from rl_core.seeding import numpy_generator_state, set_numpy_generator_state
from rl_core.stateful import Stateful
from rl_core.types import StateDict, StateValue
from rl_envs.atari import STICKINESS

EXACT_MODULES = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.toy_text.",
    "gymnasium.envs.mujoco.",
    "gymnasium.wrappers.",
    "gymnasium_robotics.envs.adroit_hand.",
    "gymnasium_robotics.envs.fetch.",
    "gymnasium_robotics.envs.shadow_dexterous_hand.",
    "ale_py.env",
    "minigrid.",
    "rl_envs.bit_flipping",
    "rl_envs.atari",
    "rl_envs.rescaling",
    "rl_envs.wrappers",
    "rl_envs.tasks.locomotion",
    "rl_envs.tasks.meta_world",
    "rl_envs.tasks.physics",
)
"""Beginnings of the modules whose environments and wrappers can be saved."""

_OBJECT_MODULES = ("minigrid.", "gymnasium.wrappers.utils")
"""Beginnings of the modules whose objects are part of an environment's state."""

_PLAIN = (type(None), bool, int, str)

_RENDERED = ("recorded_frames", "frame_list", "render_history")
"""Where Gymnasium's wrappers collect images, on which no step depends."""

_TABLES = "gymnasium.envs.toy_text."
"""Beginning of the modules whose environments have a large constant ``P``: all transitions."""

_MUJOCO_DERIVED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos"),
    *("site_xmat", "subtree_com", "cinert", "cvel", "cfrc_int", "cfrc_ext", "qfrc_actuator"),
    *("qfrc_constraint", "qacc", "actuator_force", "sensordata"),
)
"""What environments read of MuJoCo's data beyond its state: it lags behind the state by a step."""

_MUJOCO_MOVED = ("body_pos", "body_quat", "site_pos", "geom_pos")
"""What environments change in MuJoCo's model when an episode begins: where fixed things are."""


def can_save(env: gymnasium.Env | VectorEnv) -> bool:
    """Tell whether `get_state` returns all of an environment's state."""
    return all(map(_can_save_layer, _layers(env)))


def _can_save_layer(layer: Any) -> bool:
    if isinstance(layer, Stateful):
        return True
    if type(layer) is SyncVectorEnv:
        return all(map(can_save, layer.envs))
    module = type(layer).__module__
    if module.startswith("ale_py.env") and layer.ale.getFloat(STICKINESS):
        return False
    if module.startswith("gymnasium.wrappers."):
        # The function that a `Transform...` wrapper calls: a user's may count, or draw numbers.
        if isinstance(vars(layer).get("func"), Stateful):
            return True
        function = vars(vars(layer).get("wrapper", layer)).get("func")
        function = getattr(function, "func", function)  # of a partial one
        if function is not None and not _is_exact(function):
            return False
    return _is_exact(type(layer))


def _is_exact(definition: object) -> bool:
    return str(getattr(definition, "__module__", None)).startswith(EXACT_MODULES)


def get_state(env: gymnasium.Env | VectorEnv) -> StateDict:
    """Return the state of an environment and its wrappers, generators included.

    Args:
        env: `can_save` says whether its state is complete.
    """
    encoder = _Encoder(env)
    return {str(depth): encoder.layer(layer) for depth, layer in enumerate(encoder.layers)}


def set_state(env: gymnasium.Env | VectorEnv, state: StateDict) -> None:
    """Put an environment, built in the same way, into a state that `get_state` returned.

    Raises:
        CheckpointError: if the state does not fit.
    """
    try:
        decoder = _Decoder(env)
        if len(state) != len(decoder.layers):
            raise ValueError(f"got {len(state)} layers; expected {len(decoder.layers)}")
        for depth, layer in enumerate(decoder.layers):
            decoder.load_layer(layer, state[str(depth)])
    except (AttributeError, LookupError, RuntimeError, SystemError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the saved state does not fit {env}: {in_brief(error)}; build it as the saved one "
            "was, with the same wrappers"
        ) from error
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, PassiveEnvChecker):  # it compares the first step with a reset
            inner.checked_step = inner.checked_data_reuse = True
        inner = inner.env


def _layers(env: Any) -> Iterator[Any]:
    """Yield wrappers and environment, without the checker that `gymnasium.make` may add."""
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        if not isinstance(env, PassiveEnvChecker):
            yield env
        env = env.env
    yield env


class _ConstantError(Exception):
    """Raised for a value that is not part of the state."""


class _Encoder:
    """Turns attributes into a tree; an object that is met again is only named there."""

    def __init__(self, env: gymnasium.Env | VectorEnv) -> None:
        self.layers = list(_layers(env))
        self._met: dict[int, int] = {}

    def layer(self, layer: Any) -> StateDict:
        if isinstance(layer, Stateful):
            return layer.state_dict()
        if type(layer) is SyncVectorEnv:
            return {**self._attributes(layer), "envs": list(map(get_state, layer.envs))}
        return self._attributes(layer)

    def _attributes(self, owner: object) -> StateDict:
        saved: dict[str, StateValue] = {}
        for name, value in vars(owner).items():
            is_wrapped = name == "env" and isinstance(owner, gymnasium.Wrapper | VectorWrapper)
            is_table = name == "P" and type(owner).__module__.startswith(_TABLES)
            if name in _RENDERED or is_wrapped or is_table:
                continue
            if name == "func" and isinstance(value, Stateful):
                saved[name] = {"stateful": value.state_dict()}
                continue
            with contextlib.suppress(_ConstantError):
                saved[name] = self._encode(value)
        return saved

    def _encode(self, value: Any) -> StateValue:
        kind = type(value)
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value  # type: ignore[no-any-return]  # one of the plain kinds
        if kind is float:
            return {"float": str(value)}
        if isinstance(value, np.ndarray) and (view := _mujoco_view(self.layers[-1], value)):
            return {"view": view}
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            tensor = torch.from_numpy(np.array(value))
            return tensor if isinstance(value, np.ndarray) else {"scalar": tensor}
        if isinstance(value, np.random.Generator):
            return {"generator": numpy_generator_state(value)}
        if kind is list:
            return [self._encode(item) for item in value]
        if kind is tuple or kind is deque:
            return {kind.__name__: [self._encode(item) for item in value]}
        if kind is dict and all(type(key) is str for key in value):
            return {"dict": {key: self._encode(item) for key, item in value.items()}}
        if kind is dict:
            return {"items": [[self._encode(part) for part in pair] for pair in value.items()]}
        return self._encode_object(value)

    def _encode_object(self, value: Any) -> StateValue:
        kind = type(value)
        if kind.__name__ == "ALEInterface":
            state = value.cloneState(include_rng=True).serialize()
            return {"ale": torch.frombuffer(bytearray(state), dtype=torch.uint8)}
        if kind.__name__ == "MjData":
            return {"mujoco": _mujoco_state(value)}
        for depth, layer in enumerate(self.layers):
            if value is layer:
                return {"layer": depth}
        if not kind.__module__.startswith(_OBJECT_MODULES) or isinstance(value, type):
            raise _ConstantError
        if id(value) in self._met:
            return {"met": self._met[id(value)]}
        number = self._met[id(value)] = len(self._met)
        name = f"{kind.__module__}:{kind.__name__}"
        return {"object": name, "number": number, "state": self._attributes(value)}


class _Decoder:
    """Turns a tree back into attributes; simulators and generators are changed in place."""

    def __init__(self, env: gymnasium.Env | VectorEnv) -> None:
        self.layers = list(_layers(env))
        self._met: dict[int, object] = {}

    def load_layer(self, layer: Any, state: Any) -> None:
        if isinstance(layer, Stateful):
            layer.load_state_dict(state)
            return
        if type(layer) is SyncVectorEnv:
            for env, saved in zip(layer.envs, state["envs"], strict=True):
                set_state(env, saved)
            state = {name: saved for name, saved in state.items() if name != "envs"}
        self._load_attributes(layer, state)

    def _load_attributes(self, owner: Any, state: Mapping[str, Any]) -> None:
        for name, saved in state.items():
            vars(owner)[name] = self._decode(saved, vars(owner).get(name))

    def _decode(self, saved: Any, current: Any = None) -> Any:
        if isinstance(saved, torch.Tensor):
            return saved.numpy(force=True).copy()
        if isinstance(saved, list | tuple):
            return [self._decode(item) for item in saved]
        if not isinstance(saved, Mapping):
            return saved
        if not saved:
            raise ValueError("an entry is empty")
        kind, value = next(iter(saved.items()))
        match kind:
            case "float":
                return float(value)
            case "scalar":
                return value.numpy(force=True)[()]
            case "generator":
                generator = np.random.default_rng() if current is None else current
                set_numpy_generator_state(generator, value)
                return generator
            case "tuple":
                return tuple(map(self._decode, value))
            case "deque":
                return deque(map(self._decode, value), getattr(current, "maxlen", None))
            case "dict":
                return {key: self._decode(item) for key, item in value.items()}
            case "items":
                return {self._decode(key): self._decode(item) for key, item in value}
            case "layer":
                return self.layers[value]
            case "stateful":
                current.load_state_dict(value)
                return current
            case "met":
                return self._met[value]
            case "view":
                name, start, shape = value
                whole = getattr(self.layers[-1].data, name).reshape(-1)
                return whole[start : start + math.prod(shape)].reshape(shape)
            case "ale":
                ale = importlib.import_module("ale_py")
                current.reset_game()  # without a frame some games go on otherwise
                current.act(0)
                current.restoreState(ale.ALEState(bytes(value.numpy(force=True))))
                return current
            case "mujoco":
                _set_mujoco_state(current, value)
                return current
        made: Any = object.__new__(_object_class(saved["object"]))
        self._met[saved["number"]] = made
        self._load_attributes(made, saved["state"])
        return made


def _object_class(name: str) -> type:
    """Return a class by name, if it is one whose objects are part of a state."""
    module_name, _, class_name = name.partition(":")
    found = getattr(sys.modules[module_name], class_name)
    if not (isinstance(found, type) and found.__module__.startswith(_OBJECT_MODULES)):
        raise ValueError(f"objects of {name} are not part of an environment's state")
    return found


def _mujoco() -> tuple[ModuleType, int]:
    mujoco = importlib.import_module("mujoco")
    return mujoco, int(mujoco.mjtState.mjSTATE_INTEGRATION)


def _mujoco_state(data: Any) -> StateDict:
    mujoco, kind = _mujoco()
    state = np.empty(mujoco.mj_stateSize(data.model, kind))
    mujoco.mj_getState(data.model, data, state, kind)
    arrays = {name: torch.from_numpy(array.copy()) for name, array in _mujoco_arrays(data)}
    return {"state": torch.from_numpy(state), **arrays}


def _set_mujoco_state(data: Any, saved: Mapping[str, Any]) -> None:
    mujoco, kind = _mujoco()
    mujoco.mj_setState(data.model, data, saved["state"].numpy(force=True), kind)
    for name, array in _mujoco_arrays(data):
        array[...] = saved[name].numpy(force=True)


def _mujoco_arrays(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that are saved beside MuJoCo's state."""
    for owner, names in ((data, _MUJOCO_DERIVED), (data.model, _MUJOCO_MOVED)):
        for name in names:
            yield name, getattr(owner, name)


def _mujoco_view(env: Any, array: Any) -> list[StateValue] | None:
    """Return which part of the simulator's memory an array shows: name, start and shape.

    Meta-World has such arrays, which change in every step.
    """
    data = getattr(env, "data", None)
    if array.base is None or type(data).__name__ != "MjData":
        return None
    for name in _MUJOCO_DERIVED:
        whole = getattr(data, name)
        if np.shares_memory(array, whole):
            start = (array.ctypes.data - whole.ctypes.data) // whole.itemsize
            return [name, start, list(array.shape)]
    return None
