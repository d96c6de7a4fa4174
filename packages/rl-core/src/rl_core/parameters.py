"""All parameters of a group as one vector: one optimiser step, one norm, one thing to ship."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_core.errors import ConfigError


class ParameterVector:
    """Hold named parameters in one contiguous vector that the modules' parameters are views of.

    Building it moves the parameters' memory into the vector; modules go on working and loading
    weights into them writes through. Moving a module to another device or dtype afterwards
    breaks the tie, which `check_tied` reports.

    Args:
        parameters: by name; all of one dtype and device.

    Raises:
        ConfigError: when dtypes or devices are mixed.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        kinds = {(p.dtype, p.device) for p in parameters.values()}
        if len(kinds) > 1:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ConfigError(
                f"parameters of one group must share dtype and device, got {listed}; "
                "move the actor before building the algorithm"
            )
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self._sizes = [p.numel() for p in parameters.values()]
        dtype, device = next(iter(kinds), (torch.float32, torch.device("cpu")))
        self.values = torch.empty(sum(self._sizes), dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.values)
        self._first = next(iter(parameters.values()), None)
        for parameter, value, gradient in zip(
            parameters.values(),
            self.split(self.values).values(),
            self.split(self.gradient).values(),
            strict=True,
        ):
            value.copy_(parameter.detach())
            parameter.data = value
            if parameter.requires_grad:
                parameter.grad = gradient

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """View a vector `(P,)` as the named parameters' shapes."""
        pieces = torch.split(vector, self._sizes)
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named tensors into a vector `(P,)`.

        Raises:
            ConfigError: when a name is missing or a shape differs.
        """
        for name, shape in self.shapes.items():
            if name not in tensors or tensors[name].shape != shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise ConfigError(f"'{name}': expected shape {tuple(shape)}, got {got}")
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def check_tied(self) -> None:
        """Make sure that the modules still use this vector.

        Raises:
            ConfigError: when a module was moved, or its parameters or gradients were replaced.
        """
        first = self._first
        if first is None:
            return
        if first.data_ptr() != self.values.data_ptr():
            raise ConfigError(
                "the actor's parameters were moved or replaced after the algorithm was built; "
                "move the actor to its device first, and load weights with load_state_dict"
            )
        if first.requires_grad and (
            first.grad is None or first.grad.data_ptr() != self.gradient.data_ptr()
        ):
            raise ConfigError(
                "the actor's gradients were replaced after the algorithm was built, so that it "
                "learns no more; call zero_grad(set_to_none=False), or not at all"
            )
