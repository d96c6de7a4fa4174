"""Acting as a compiled graph, and what compiled functions of an algorithm have in common."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from rl_core.actor import ActionOutput, Actor
from rl_core.compile import CompiledFunction, CompileMode
from rl_core.gradients.loss import ModuleWatch
from rl_core.stateful import StateReader
from rl_core.types import Observation, State, StateDict


class CompiledActing:
    """Acting with exploration, compiled where that pays: for feed-forward actors without extras.

    Args:
        explore: see `Algorithm.explore`.
        actor: whose parameters it reads.
        has_extras: whether ``explore`` returns extras.

    Attributes:
        function: one graph per number of environments. It never runs on a GPU, where the
            environments wait for the actions anyway.
    """

    def __init__(
        self, explore: Callable[..., ActionOutput], actor: Actor, *, has_extras: bool = False
    ) -> None:
        self._explore = explore
        self._watch = ModuleWatch(actor)
        self._can_compile = actor.device.type == "cpu" and not actor.is_recurrent and not has_extras
        self.function = CompiledFunction(self._act, "the acting step", actor.device)
        self._is_looked_at = False

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Look for replaced parameters once for all steps of the block, not in each of them."""
        if self.function.mode != "off":
            self._look()
            self._is_looked_at = True
        try:
            yield
        finally:
            self._is_looked_at = False

    def __call__(
        self, observation: Observation, state: State, noise: Tensor, episode_start: Tensor | None
    ) -> ActionOutput:
        """Choose actions, by a graph where there is one; arguments as for `Algorithm.explore`."""
        if self._can_compile and self.function.mode != "off":
            if not self._is_looked_at:
                self._look()
            result = self.function(None, observation, noise)
            if result is not None:
                return ActionOutput(result["action"], result["env_action"], None, state)
        return self._explore(observation, state, noise, episode_start)

    def _look(self) -> None:
        """Have the graphs traced anew where the actor's parameters or modes were replaced."""
        if self._watch.look():
            self.function.forget()

    def _act(self, _: None, observation: Observation, noise: Tensor) -> Mapping[str, Tensor]:
        output = self._explore(observation, {}, noise, None)
        return {"action": output.action, "env_action": output.env_action}


class CompiledFunctions:
    """The functions of an algorithm that are compiled, together.

    Args:
        functions: by name.
    """

    def __init__(self, functions: Mapping[str, CompiledFunction]) -> None:
        self._functions = functions
        self._mode: CompileMode = "off"

    @property
    def mode(self) -> CompileMode:
        """Whether they are compiled."""
        return self._mode

    @mode.setter
    def mode(self, mode: CompileMode) -> None:
        self._mode = mode
        for function in self._functions.values():
            function.mode = mode

    @contextmanager
    def in_background(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Let the compiler work beside the run within a block.

        What is to be compiled runs uncompiled until `adopt` and `wait`.

        Args:
            is_stopping: asked while something waits for the compiler; True ends the waiting.
        """
        for function in self._functions.values():
            function.waits, function.is_stopping = False, is_stopping
        try:
            yield
        finally:
            for function in self._functions.values():
                function.waits, function.is_stopping = True, lambda: False

    def adopt(self) -> None:
        """Use from now on what was met since the last call; see `wait`."""
        for function in self._functions.values():
            function.adopt()

    def wait(self) -> None:
        """Wait for the compiler where something that it still works on was adopted."""
        for function in self._functions.values():
            function.wait()

    def state_dict(self) -> StateDict:
        """Return which graphs are in use."""
        return {name: " ".join(sorted(each.adopted)) for name, each in self._functions.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Use the same graphs, from the first call on."""
        saved = StateReader(state, "algorithm/compiled")
        for name, function in self._functions.items():
            function.adopted = set(saved.text(name).split())
