"""Networks from data."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_core.errors import ConfigError
from rl_core.nn.layers import LayerConfig, LayeredEncoder, build_layers
from rl_core.types import Json

IMAGE = spaces.Box(0, 255, (8, 10, 3), np.uint8)


def _layer(func: str, **kwargs: Json) -> LayerConfig:
    return LayerConfig(func, kwargs)


CONVOLUTION = _layer("Conv2d", out_channels=4, kernel_size=3, stride=2)


def test_sizes_follow_from_what_is_before() -> None:
    stack = build_layers(
        [_layer("Linear", out_features=5), _layer("Tanh"), _layer("LayerNorm"), _layer("Flatten")],
        (3,),
    )
    assert stack.out_features == 5
    assert stack(torch.zeros(2, 7, 3)).shape == (2, 7, 5)


def test_layers_are_applied_in_their_order() -> None:
    stack = build_layers([_layer("Linear", out_features=1, bias=False), _layer("ReLU")], (2,))
    with torch.no_grad():
        next(stack.parameters()).copy_(torch.tensor([[1.0, -2.0]]))
    values = torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    assert stack(values).tolist() == [[1.0], [0.0]]


def test_images_come_as_pixels_between_0_and_1_with_channels_first() -> None:
    encoder = LayeredEncoder(IMAGE, [CONVOLUTION, _layer("ReLU"), _layer("Flatten")])
    assert encoder.out_features == 4 * 3 * 4  # (8 - 3) // 2 + 1 by (10 - 3) // 2 + 1
    flat = LayeredEncoder(IMAGE, [_layer("Flatten")])
    image = torch.zeros(1, 8, 10, 3, dtype=torch.uint8)
    image[0, 0, 1, 2] = 255
    features = flat(image)
    assert features[0, 2 * 80 + 1] == 1.0
    assert features.sum() == 1.0


@pytest.mark.parametrize("channels_last", [False, True])
def test_stacked_images_come_with_the_channels_of_all_frames_first(channels_last: bool) -> None:
    shape = (4, 40, 36, 2) if channels_last else (4, 2, 40, 36)
    encoder = LayeredEncoder(spaces.Box(0, 255, shape, np.uint8), [_layer("Flatten")])
    assert encoder.body.in_shape == (8, 40, 36)
    stack = torch.zeros(1, *shape, dtype=torch.uint8)
    third = stack[0, 2] if channels_last else stack[0, 2].movedim(0, -1)
    third[0, 1, 1] = 255  # row, column, channel
    (index,) = encoder(stack)[0].nonzero().flatten().tolist()
    assert index == (2 * 2 + 1) * 40 * 36 + 1
    assert encoder(stack.unsqueeze(0)).shape == (1, 1, 8 * 40 * 36)


def test_other_observations_come_as_usual_features() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    encoder = LayeredEncoder(space, [_layer("Flatten")], normalize=True)
    seen = {"a": torch.tensor([1]), "b": torch.tensor([[0.5, -0.5]])}
    assert encoder(seen).tolist() == [[0.0, 1.0, 0.0, 0.5, -0.5]]
    encoder.update_normalization(
        {"a": torch.tensor([1, 1]), "b": torch.tensor([[0.0] * 2, [1.0] * 2])}
    )
    assert encoder(seen)[0, 3:].tolist() == pytest.approx([0.0, -2.0])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"func": "Linear"}], r"net\[0\] must be a LayerConfig, got \{'func': 'Linear'\}"),
        ([_layer("Linaer", out_features=3)], r"net\[0\]: unknown layer 'Linaer'.*Linear"),
        ([_layer("Tanh"), _layer("Linear")], r"net\[1\]: the option 'out_features' is missing"),
        ([_layer("Linear", out=3)], "Linear has no option 'out'"),
        ([_layer("Linear", out_features=0)], "whole number of at least 1"),
        (
            [_layer("Linear", out_features=3, bias=1)],
            r"net\[0\]\.bias must be True or False, got 1",
        ),
        ([_layer("Linear", out_features=3, in_features=9)], "in_features=9, but .* has 4"),
        ([CONVOLUTION], r"Conv2d does not fit an input of shape \(4,\)"),
        ([_layer("GroupNorm", num_groups=3)], "GroupNorm does not fit"),
    ],
)
def test_bad_layers_are_refused(layers: list[LayerConfig], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_layers(layers, (4,), "net")


def test_layers_that_do_not_fit_an_image_are_refused() -> None:
    with pytest.raises(ConfigError, match="use FlattenLinear"):
        LayeredEncoder(IMAGE, [_layer("Linear", out_features=3)])
    with pytest.raises(ConfigError, match=r"Conv2d does not fit an input of shape \(3, 8, 10\)"):
        LayeredEncoder(IMAGE, [_layer("Conv2d", out_channels=2, kernel_size=9)])
