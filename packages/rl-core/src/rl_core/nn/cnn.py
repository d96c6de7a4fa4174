"""Convolutional networks for image observations."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import SpaceError
from rl_core.nn.images import image_layout
from rl_core.nn.init import orthogonal_


class NatureCNN(nn.Module):
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
        super().__init__()
        self.layout = image_layout(image_shape)
        self._event_dims = len(image_shape)
        channels, height, width = self.layout.planes_shape
        if min(height, width) < 36:
            raise SpaceError(
                f"image of {height}x{width} is too small for NatureCNN, which needs 36x36; "
                "pass a feature extractor of your own"
            )
        self.scale = scale
        self.convolutions = nn.ModuleList(
            orthogonal_(layer, math.sqrt(2.0))
            for layer in (
                nn.Conv2d(channels, 32, kernel_size=8, stride=4),
                nn.Conv2d(32, 64, kernel_size=4, stride=2),
                nn.Conv2d(64, 64, kernel_size=3, stride=1),
            )
        )
        with torch.no_grad():
            flat_size = self._convolve(torch.zeros(1, channels, height, width)).shape[1]
        self.linear = orthogonal_(nn.Linear(flat_size, out_features), math.sqrt(2.0))
        self.out_features = out_features

    def forward(self, image: Tensor) -> Tensor:
        """Map `(*, H, W, C)` or `(*, C, H, W)` pixels, or stacks, to `(*, out_features)`."""
        batch_shape = image.shape[: -self._event_dims]
        image = image.reshape(-1, *image.shape[-self._event_dims :])
        pixels = self.layout.planes(image).to(self.linear.weight.dtype) / self.scale
        features = F.relu(self.linear(self._convolve(pixels)))
        return features.reshape(*batch_shape, self.out_features)

    def _convolve(self, pixels: Tensor) -> Tensor:
        for convolution in self.convolutions:
            pixels = F.relu(convolution(pixels))
        return pixels.flatten(1)
