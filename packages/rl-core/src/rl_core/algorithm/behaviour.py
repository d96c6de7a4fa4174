"""The behaviour policy: how an algorithm chooses actions while it collects."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from rl_core.actor import ActionOutput, Actor
from rl_core.algorithm.acting import CompiledActing
from rl_core.compile import CompiledFunction, CompileMode
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State


class Behaviour:
    """Chooses actions while collecting: the part of an algorithm that acts.

    Args:
        actor: what acts; on its device already.

    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self._compile_mode: CompileMode = "off"
        self._is_recurrent = actor.is_recurrent
        self._acting = CompiledActing(self.explore, actor)

    @property
    def compile_mode(self) -> CompileMode:
        """Whether `explore` and gradient steps are compiled."""
        return self._compile_mode

    @compile_mode.setter
    def compile_mode(self, mode: CompileMode) -> None:
        self._compile_mode = mode
        for compiled in self._compiled_functions().values():
            compiled.mode = mode

    def begin_acting(self) -> None:
        """Begin a phase of acting in which nobody exchanges parameters; see `end_acting`."""
        if self._compile_mode != "off":
            self._acting.look()
            self._acting.looks = False

    def end_acting(self) -> None:
        """End a phase of acting: from now on every step looks for exchanged parameters."""
        self._acting.looks = True

    @contextmanager
    def compiling_aside(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Let the compiler work beside the run within a block.

        What is to be compiled runs uncompiled until `adopt_compiled`.

        Args:
            is_stopping: asked while something waits for the compiler; True ends the waiting.
        """
        functions = self._compiled_functions().values()
        for compiled in functions:
            compiled.waits, compiled.is_stopping = False, is_stopping
        try:
            yield
        finally:
            for compiled in functions:
                compiled.waits, compiled.is_stopping = True, lambda: False

    def adopt_compiled(self) -> None:
        """Use from now on what was met since the last call; see `await_compiled`."""
        for compiled in self._compiled_functions().values():
            compiled.adopt()

    def await_compiled(self) -> None:
        """Wait for the compiler where something that it still works on was adopted."""
        for compiled in self._compiled_functions().values():
            compiled.wait()

    def _compiled_functions(self) -> Mapping[str, CompiledFunction]:
        """Return by name what `compile_mode` is about."""
        return {"acting": self._acting.compiled}

    @property
    def extras(self) -> Mapping[str, TensorSpec]:
        """Say what `acting_step` answers in ``extras``, without the environment axis."""
        return {}

    @property
    def needs_episode_start(self) -> bool:
        """Whether acting looks at ``episode_start``; recurrent actors do."""
        return self._is_recurrent

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what `acting_step` needs for these steps."""
        return self.actor.draw_noise(batch_shape, generator)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions while collecting: a pure function, which is compiled where that pays.

        The default samples the policy; exploration beyond the policy's own belongs here.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            episode_start: shape `(B,)`, bool; only recurrent actors need it.
        """
        return self.actor.get_action(observation, state, noise, False, episode_start)

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions, exploring unless ``deterministic``.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            deterministic: take the mode, explore nothing.
            episode_start: shape `(B,)`, bool.
        """
        if deterministic or noise is None:
            return self.actor.get_action(observation, state, noise, deterministic, episode_start)
        if self._compile_mode == "off" or self._is_recurrent or self.extras:
            return self.explore(observation, state, noise, episode_start)
        actions = self._acting(observation, noise)
        if actions is None:
            return self.explore(observation, state, noise, episode_start)
        return ActionOutput(*actions, None, state)

    def random_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        generator: torch.Generator,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose uniformly random actions, for the first ``start_steps`` of a run.

        Extras are those that acting would have answered, and so is the state but for memories
        that see actions.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, as for `acting_step`.
            generator: draws the actions; on the actor's device.
            episode_start: shape `(B,)`, bool.
        """
        output = self.acting_step(observation, state, noise, episode_start=episode_start)
        actor = self.actor
        action = actor.random_actions(len(noise), generator, observation)
        return replace(
            output,
            action=action,
            env_action=actor.to_env_action(action),
            log_prob=None,
            state=actor.remember_action(observation, action, state, output.state, episode_start),
        )
