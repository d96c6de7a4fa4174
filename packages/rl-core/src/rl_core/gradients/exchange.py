"""What gradient workers send each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor, nn

from rl_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients on their way from one worker to another.

    Attributes:
        version: of the weights they were computed at; groups that move after others have theirs
            where these would have moved to.
        num_samples: how many samples they average over.
        tensors: one vector `(P,)` per parameter group.
        finite: whether the loss was finite.
        metrics: the loss's metrics, each 0-dim.
        samples: the loss's per-sample results, each `(N,)`.
        stop: whether the loss asked to end the update.
    """

    version: int
    num_samples: int
    tensors: Mapping[str, Tensor]
    finite: bool
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: bool = False

    def check_sizes(self, expected: Mapping[str, Tensor]) -> None:
        """Make sure that there is a gradient of the right size for each group.

        Args:
            expected: a tensor of the right shape for each group.

        Raises:
            ConfigError: naming the group.
        """
        for name, like in expected.items():
            given = self.tensors.get(name)
            if given is None or given.shape != like.shape:
                got = "none" if given is None else str(tuple(given.shape))
                raise ConfigError(
                    f"gradients of group '{name}': expected shape {tuple(like.shape)}, got {got}"
                )


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters on their way from one worker to another.

    Attributes:
        version: how many gradient steps made them.
        tensors: parameters and buffers by name.
    """

    version: int
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, version: int) -> Self:
        """Copy a module's."""
        return cls(version, {n: value.clone() for n, value in module.state_dict().items()})

    def load_into(self, module: nn.Module) -> None:
        """Copy them into a module.

        Raises:
            ConfigError: when they belong to another one.
        """
        given, own = (
            {n: t.shape for n, t in w.items()} for w in (self.tensors, module.state_dict())
        )
        if misfits := [name for name in {**own, **given} if own.get(name) != given.get(name)]:
            raise ConfigError(
                f"the weights do not fit: of {len(own)} tensors {len(misfits)} are missing, "
                f"unexpected or of another shape, such as '{misfits[0]}'"
            )
        module.load_state_dict(dict(self.tensors))
