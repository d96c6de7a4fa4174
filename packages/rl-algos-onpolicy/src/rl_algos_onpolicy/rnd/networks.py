"""The networks of random network distillation, and what they are given."""

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.nn.cnn import image_network
from rl_core.nn.images import ImageLayout, image_layout
from rl_core.nn.mlp import MLP
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.torso import ObservationEncoder
from rl_core.spaces import ACTION_MASK_KEY, event_shape, is_image, named_leaves
from rl_core.types import Observation


class NormalizedObservation(nn.Module):
    """Normalize vectors and images by running statistics and clip them to 5; one-hot the rest.

    Args:
        space: the environment's observation space.
        frame_stack: frames in an image's channels, of which the last is used, as of those along an
            axis of their own.

    Attributes:
        shapes: of each part, flat vectors `(F,)` or images `(H, W, C)`.

    Raises:
        ConfigError: when an image's channels are not a multiple of ``frame_stack``, or no part is
            an image although frames are stacked.
    """

    def __init__(self, space: gymnasium.Space[object], frame_stack: int = 1) -> None:
        super().__init__()
        named = named_leaves(space)
        named.pop(ACTION_MASK_KEY, None)
        self._keys = tuple(named)
        self._stack = frame_stack
        self._layouts: list[ImageLayout | None] = []
        self.shapes: list[tuple[int, ...]] = []
        encoders: list[nn.Module] = []
        norms: list[nn.Module] = []
        for leaf in named.values():
            if is_image(leaf):
                layout = image_layout(event_shape(leaf))
                if layout.channels % frame_stack:
                    raise ConfigError(
                        f"frame_stack is {frame_stack}, but the image has {layout.channels} "
                        "channels; leave it out where frames have an axis of their own"
                    )
                newest = list(layout.frame_shape)
                newest[layout.channel_axis] //= frame_stack
                self._layouts.append(layout)
                self.shapes.append(tuple(newest))
                encoders.append(nn.Identity())
            else:
                encoder = ObservationEncoder(leaf)
                self._layouts.append(None)
                self.shapes.append((encoder.out_features,))
                encoders.append(encoder)
            is_real = isinstance(leaf, spaces.Box)
            norms.append(RunningNorm(self.shapes[-1], clip=5.0) if is_real else nn.Identity())
        if frame_stack > 1 and all(layout is None for layout in self._layouts):
            raise ConfigError(
                f"frame_stack={frame_stack} is for images, and {space} has none; leave it out"
            )
        self.encoders, self.norms = nn.ModuleList(encoders), nn.ModuleList(norms)

    def forward(self, observation: Observation) -> list[Tensor]:
        """Return the parts, each `(*batch, *shape)`."""
        return [norm(part) for norm, part in zip(self.norms, self._parts(observation), strict=True)]

    def update(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the statistics."""
        for norm, part in zip(self.norms, self._parts(observation), strict=True):
            if isinstance(norm, RunningNorm):
                norm.update(part, mask)

    def _parts(self, observation: Observation) -> list[Tensor]:
        parts = []
        for key, layout, encoder in zip(self._keys, self._layouts, self.encoders, strict=True):
            part = observation if isinstance(observation, Tensor) else observation[key]
            if layout is not None:
                frame, channels = layout.newest_frame(part), layout.channels // self._stack
                newest = frame.narrow(layout.channel_axis, layout.channels - channels, channels)
                part = newest.to(torch.float32)
            parts.append(encoder(part))
        return parts


class FeatureNet(nn.Module):
    """Features of normalized observations, the default target and predictor.

    Args:
        shapes: of the parts, see `NormalizedObservation`.
        hidden_sizes: widths of the layers.
        num_features: width of the output.
        bias_std: spread of the layers' biases; 0 leaves them at zero.
    """

    def __init__(
        self,
        shapes: list[tuple[int, ...]],
        hidden_sizes: tuple[int, ...],
        num_features: int,
        *,
        bias_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.images = nn.ModuleList(
            image_network((shape[0], shape[1], shape[2]), 256, scale=1.0)
            if len(shape) == 3
            else nn.Identity()
            for shape in shapes
        )
        width = sum(256 if len(shape) == 3 else shape[0] for shape in shapes)
        self.layers = MLP(width, hidden_sizes, num_features, activation="relu")
        for layer in self.layers.hidden:
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.bias, std=bias_std)

    def forward(self, parts: list[Tensor]) -> Tensor:
        """Map the parts to features `(*batch, n)`."""
        encoded = [net(part) for net, part in zip(self.images, parts, strict=True)]
        features: Tensor = self.layers(torch.cat(encoded, -1))
        return features
