"""Acting as a compiled graph, where that gains something."""

from collections.abc import Callable, Mapping

from torch import Tensor

from rl_core.actor import ActionOutput, Actor
from rl_core.compile import CompiledFunction
from rl_core.gradients.parameters import ModuleWatch
from rl_core.types import Observation, State


class CompiledActing:
    """Compiled acting of a feed-forward actor.

    Args:
        explore: from observation, no state, and noise to actions.
        actor: whose parameters it reads.

    Attributes:
        compiled: one graph per number of environments; its ``mode`` says whether acting is
            compiled. It never is on a GPU, where the environments wait for the actions anyway.
        looks: whether every call looks for exchanged parameters. Within a phase of many calls one
            look is enough: `look`.
    """

    def __init__(
        self, explore: Callable[[Observation, State, Tensor], ActionOutput], actor: Actor
    ) -> None:
        self._explore = explore
        self._watch = ModuleWatch(actor)
        self._is_on_cpu = actor.device.type == "cpu"
        self.compiled = CompiledFunction(self._act, "the acting step", actor.device)
        self.looks = True

    def look(self) -> None:
        """Have the graphs traced anew where the actor's parameters or modes were exchanged."""
        if self._watch.look():
            self.compiled.forget()

    def __call__(self, observation: Observation, noise: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sample actions.

        Args:
            observation: shape `(B, ...)`.
            noise: shape `(B, ...)`.

        Returns:
            The actor's and the environment's action, each `(B, ...)`; None where there is no graph.
        """
        if self.compiled.mode == "off" or not self._is_on_cpu:
            return None
        if self.looks:
            self.look()
        result = self.compiled(None, observation, noise)
        return None if result is None else (result["action"], result["env_action"])

    def _act(self, _: None, observation: Observation, noise: Tensor) -> Mapping[str, Tensor]:
        output = self._explore(observation, {}, noise)
        return {"action": output.action, "env_action": output.env_action}
