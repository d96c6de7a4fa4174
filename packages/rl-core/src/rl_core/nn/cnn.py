"""Convolutional networks for image observations."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import SpaceError
from rl_core.nn.images import image_layout
from rl_core.nn.init import orthogonal_

_NATURE_SIZE = 36
"""Height and width that `NatureCNN` needs."""


class _ImageNetwork(nn.Module):
    """Convolutions with ReLU, and a linear layer over the flattened result.

    Args:
        image_shape: `(H, W, C)` or `(C, H, W)`, or a stack of such frames, whose channels are
            joined; see `image_layout`.
        convolutions: applied in this order.
        out_features: width of the final linear layer.
        scale: pixels are divided by it before the first layer.
    """

    def __init__(
        self,
        image_shape: tuple[int, ...],
        convolutions: Sequence[nn.Conv2d],
        out_features: int,
        scale: float,
    ) -> None:
        super().__init__()
        self.layout = image_layout(image_shape)
        self._event_dims = len(image_shape)
        self.scale = scale
        self.convolutions = nn.ModuleList(
            orthogonal_(layer, math.sqrt(2.0)) for layer in convolutions
        )
        with torch.no_grad():
            flat_size = self._convolve(torch.zeros(1, *self.layout.planes_shape)).shape[1]
        self.linear = orthogonal_(nn.Linear(flat_size, out_features), math.sqrt(2.0))
        self.out_features = out_features

    def forward(self, image: Tensor) -> Tensor:
        """Map `(*, H, W, C)` or `(*, C, H, W)` pixels, or stacks, to `(*, out_features)`."""
        batch_shape = image.shape[: -self._event_dims]
        image = image.reshape(-1, *image.shape[-self._event_dims :])
        pixels = self.layout.planes(image).to(self.linear.weight.dtype) / self.scale
        # With the channels of a pixel together, convolutions and their gradients take 2/3 the time;
        # vmap cannot ask for that by its name, memory_format=torch.channels_last.
        pixels = pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        features = F.relu(self.linear(self._convolve(pixels)))
        return features.reshape(*batch_shape, self.out_features)

    def _convolve(self, pixels: Tensor) -> Tensor:
        for convolution in self.convolutions:
            pixels = F.relu(convolution(pixels))
        return pixels.flatten(1)


class NatureCNN(_ImageNetwork):
    """The convolutional network of the Nature DQN paper.

    Args:
        image_shape: `(H, W, C)` or `(C, H, W)`, or a stack of such frames, whose channels are
            joined; see `image_layout`.
        out_features: width of the final linear layer.
        scale: pixels are divided by it before the first layer.

    Raises:
        SpaceError: if the image is too small for the three convolutions (36x36 at least), or the
            shape is not that of an image.

    Source:
        Mnih et al. 2015, https://doi.org/10.1038/nature14236, "Model architecture".
    """

    def __init__(
        self, image_shape: tuple[int, ...], out_features: int = 512, *, scale: float = 255.0
    ) -> None:
        channels, height, width = image_layout(image_shape).planes_shape
        if min(height, width) < _NATURE_SIZE:
            raise SpaceError(
                f"image of {height}x{width} is too small for NatureCNN, which needs 36x36; "
                "use SmallCNN"
            )
        layers = (
            nn.Conv2d(channels, 32, kernel_size=8, stride=4),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
        )
        super().__init__(image_shape, layers, out_features, scale)


class SmallCNN(_ImageNetwork):
    """Three small convolutions, for images that are too small for `NatureCNN`.

    Below 12 pixels, as in MiniGrid's views of 7x7, all three are 2x2 with stride 1 (1 along an
    axis that is used up). From 12 pixels on two of 3x3 with stride 2 come before one of 2x2.

    Args:
        image_shape: as in `NatureCNN`, of any height and width.
        out_features: width of the final linear layer.
        scale: pixels are divided by it before the first layer.

    Raises:
        SpaceError: if the shape is not that of an image.
    """

    def __init__(
        self, image_shape: tuple[int, ...], out_features: int = 512, *, scale: float = 255.0
    ) -> None:
        channels, height, width = image_layout(image_shape).planes_shape
        is_tiny = min(height, width) < 12
        layers = []
        for out_channels, size, stride in (
            ((16, 2, 1), (32, 2, 1), (64, 2, 1))
            if is_tiny
            else ((32, 3, 2), (64, 3, 2), (64, 2, 1))
        ):
            kernel = (min(size, height), min(size, width))
            layers.append(nn.Conv2d(channels, out_channels, kernel, stride))
            channels = out_channels
            height, width = (height - kernel[0]) // stride + 1, (width - kernel[1]) // stride + 1
        super().__init__(image_shape, layers, out_features, scale)


def image_network(
    image_shape: tuple[int, ...], out_features: int = 512, *, scale: float = 255.0
) -> NatureCNN | SmallCNN:
    """Return `NatureCNN` for images of at least 36x36, and `SmallCNN` for smaller ones."""
    _, height, width = image_layout(image_shape).planes_shape
    network = NatureCNN if min(height, width) >= _NATURE_SIZE else SmallCNN
    return network(image_shape, out_features, scale=scale)
