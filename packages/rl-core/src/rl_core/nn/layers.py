"""Networks from data: lists of layers by name, with input sizes that follow from what is before.

A layer is written as ``{func = "Linear", kwargs = {out_features = 64}}``. Only the names of
`LAYERS` are known, so that data never chooses code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import gymnasium
import torch
from torch import Tensor, nn

from rl_core.config import Count, NonNegativeInt, check_argument
from rl_core.errors import ConfigError, nearest
from rl_core.nn.images import image_layout
from rl_core.nn.init import orthogonal_
from rl_core.nn.torso import ObservationEncoder
from rl_core.spaces import brightest, event_shape, is_image, leaf_spaces
from rl_core.types import Json, Observation

Shape = tuple[int, ...]
"""The shape of one sample between two layers: `(F,)`, or `(C, H, W)` of images."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer, as data.

    Attributes:
        func: its name, one of `LAYERS`.
        kwargs: its options; sizes of inputs are found out, and compared where they are given.
    """

    func: str
    kwargs: Mapping[str, Json] = field(default_factory=dict, hash=False)


class LayerStack(nn.Module):
    """Layers one after the other.

    Args:
        layers: each with its sizes.
        in_shape: of one sample.
        out_shape: of one sample.
    """

    def __init__(self, layers: Sequence[nn.Module], in_shape: Shape, out_shape: Shape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.in_shape = in_shape
        self.out_features = math.prod(out_shape)

    def forward(self, values: Tensor) -> Tensor:
        """Map `(*batch, *in_shape)` to `(*batch, out_features)`."""
        batch = values.shape[: values.dim() - len(self.in_shape)]
        x = values.reshape(-1, *self.in_shape)
        for layer in self.layers:
            x = layer(x)
        return x.reshape(*batch, self.out_features)


class LayeredEncoder(nn.Module):
    """Encode observations by layers from data.

    Where the observations are images, the first layer is given their pixels between 0 and 1, the
    channels first, those of stacked frames together. Everything else comes as the features of an
    `ObservationEncoder`, images in a dict included.

    Args:
        space: the environment's observation space.
        layers: what follows.
        normalize: keep running statistics of vectors and normalize by them.
        image_features: width of the features of each image in a dict.
        path: where the layers stand, for messages.

    Raises:
        ConfigError: for an unknown layer, or a size that does not fit.
    """

    def __init__(
        self,
        space: gymnasium.Space[object],
        layers: Sequence[LayerConfig],
        *,
        normalize: bool = False,
        image_features: int = 512,
        path: str = "body",
    ) -> None:
        super().__init__()
        leaves = leaf_spaces(space)
        self.encoder: ObservationEncoder | None = None
        if not isinstance(leaves, Mapping) and is_image(leaves):
            self._layout = image_layout(event_shape(leaves))
            shape: Shape = self._layout.planes_shape
            self._scale = brightest(leaves)
        else:
            self.encoder = ObservationEncoder(
                space, normalize=normalize, image_features=image_features
            )
            shape = (self.encoder.out_features,)
        self.body = build_layers(layers, shape, path)
        self.out_features = self.body.out_features

    def forward(self, observation: Observation) -> Tensor:
        """Map an observation with any batch axes to features `(*batch, F)`."""
        if self.encoder is not None:
            features: Tensor = self.body(self.encoder(observation))
            return features
        assert isinstance(observation, Tensor)
        pixels = self._layout.planes(observation)
        of_pixels: Tensor = self.body(pixels.to(torch.float32) / self._scale)
        return of_pixels

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the running statistics; does nothing without them."""
        if self.encoder is not None:
            self.encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether any part keeps running statistics."""
        return self.encoder is not None and self.encoder.normalizes


def make_encoder(
    space: gymnasium.Space[object],
    body: Sequence[LayerConfig] | None,
    *,
    normalize: bool,
    image_features: int,
    path: str,
) -> LayeredEncoder | ObservationEncoder:
    """Make what encodes observations, by layers from data or by their kind.

    Args:
        space: the environment's observation space.
        body: the layers; None chooses by the kind of observation.
        normalize: keep running statistics of vectors and normalize by them.
        image_features: width of each image's features, unless layers read its pixels.
        path: where the layers stand, for messages.

    Raises:
        ConfigError: for an unknown layer, or a size that does not fit.
        SpaceError: for a space that has no encoding.
    """
    if body is not None:
        return LayeredEncoder(
            space, body, normalize=normalize, image_features=image_features, path=path
        )
    return ObservationEncoder(space, normalize=normalize, image_features=image_features)


def build_layers(
    layers: Sequence[LayerConfig], in_shape: Shape, path: str = "layers"
) -> LayerStack:
    """Build layers whose input sizes follow from what is before them.

    Args:
        layers: as data.
        in_shape: of one sample, `(F,)` or `(C, H, W)`.
        path: where the layers stand, for messages.

    Raises:
        ConfigError: for an unknown layer or option, or a size that does not fit.
    """
    check_layers(layers, path)
    shape, built = in_shape, []
    for index, layer in enumerate(layers):
        where = f"{path}[{index}]"
        make, defaults = LAYERS[layer.func]
        options = layer_options(layer, defaults, where, _INPUT_SIZES)
        for name, value in options.items():
            number = NonNegativeInt if name == "padding" else Count
            type_ = bool if isinstance(defaults.get(name), bool) else number | None
            check_argument(f"{where}.{name}", value, type_)
        _check_input(layer.func, options, shape, where)
        try:
            module = make(shape, options)
            with torch.no_grad():
                after = tuple(module(torch.zeros(1, *shape)).shape[1:])
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise ConfigError(f"{where}: {error}") from error
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{where}: {layer.func} does not fit an input of shape {shape}: {reason}"
            ) from error
        shape = after
        built.append(module)
    return LayerStack(built, in_shape, shape)


def layer_options(
    layer: LayerConfig, defaults: Mapping[str, Json], where: str, more: Sequence[str] = ()
) -> dict[str, Json]:
    """Return the options of a layer, with the defaults of those that it leaves out.

    Args:
        layer: as data.
        defaults: of all its options.
        where: it stands, for messages.
        more: names of options without a default.

    Raises:
        ConfigError: for an unknown option.
    """
    for name in layer.kwargs:
        if name not in (*defaults, *more):
            raise ConfigError(
                f"{where}: {layer.func} has no option '{name}'{nearest(name, defaults)}"
            )
    return {**defaults, **layer.kwargs}


def check_layers(layers: Sequence[LayerConfig] | None, path: str) -> None:
    """Refuse what is not a layer, and unknown names, before any size is known.

    Args:
        layers: as data.
        path: where they stand, for messages.

    Raises:
        ConfigError: naming the layer.
    """
    for index, layer in enumerate(layers or ()):
        _check_type(layer, f"{path}[{index}]")
        if layer.func in ("GRU", "LSTM", "ActionLinear"):
            raise ConfigError(
                f"{path}[{index}]: {layer.func} may only stand at the end of a policy's head"
            )
        if layer.func not in LAYERS:
            raise ConfigError(
                f"{path}[{index}]: unknown layer '{layer.func}'{nearest(layer.func, LAYERS)}"
            )


def _check_type(layer: object, where: str) -> None:
    if not isinstance(layer, LayerConfig):
        raise ConfigError(
            f"{where} must be a LayerConfig, got {layer!r}; write "
            "LayerConfig('Linear', {'out_features': 64}), tables are for recipes"
        )


_Options = Mapping[str, Json]
_INPUT_SIZES = ("in_features", "in_channels")


def _linear(shape: Shape, options: _Options) -> nn.Module:
    if len(shape) != 1:
        raise ConfigError(
            f"Linear takes vectors, but its input has shape {shape}; use FlattenLinear"
        )
    return _new_linear(shape[0], options)


def _flatten_linear(shape: Shape, options: _Options) -> nn.Module:
    return nn.Sequential(nn.Flatten(), _new_linear(math.prod(shape), options))


def _new_linear(size: int, options: _Options) -> nn.Linear:
    width = _required(options, "out_features")
    return orthogonal_(nn.Linear(size, width, bias=bool(options["bias"])), math.sqrt(2.0))


def _conv2d(shape: Shape, options: _Options) -> nn.Module:
    convolution = nn.Conv2d(
        shape[0],
        _required(options, "out_channels"),
        kernel_size=_required(options, "kernel_size"),
        stride=cast("int", options["stride"]),
        padding=cast("int", options["padding"]),
        bias=bool(options["bias"]),
    )
    return orthogonal_(convolution, math.sqrt(2.0))


def _max_pool(shape: Shape, options: _Options) -> nn.Module:
    return nn.MaxPool2d(_required(options, "kernel_size"))


def _group_norm(shape: Shape, options: _Options) -> nn.Module:
    return nn.GroupNorm(_required(options, "num_groups"), shape[0])


def _required(options: _Options, name: str) -> int:
    value = options[name]
    if value is None:
        raise ConfigError(f"the option '{name}' is missing")
    return cast("int", value)


def _check_input(func: str, options: _Options, shape: Shape, where: str) -> None:
    sizes = {"in_features": math.prod(shape), "in_channels": shape[0]}
    for name in _INPUT_SIZES:
        given = options.get(name)
        if given is not None and given != sizes[name]:
            raise ConfigError(
                f"{where}: {func} is given {name}={given}, but what is before it has "
                f"{sizes[name]}; leave it out"
            )


def _activation(
    make: Callable[[], nn.Module],
) -> tuple[Callable[[Shape, _Options], nn.Module], dict[str, Json]]:
    return (lambda shape, options: make()), {}


LAYERS: Mapping[str, tuple[Callable[[Shape, _Options], nn.Module], dict[str, Json]]] = {
    "Linear": (_linear, {"out_features": None, "bias": True}),
    "FlattenLinear": (_flatten_linear, {"out_features": None, "bias": True}),
    "Conv2d": (
        _conv2d,
        {"out_channels": None, "kernel_size": None, "stride": 1, "padding": 0, "bias": True},
    ),
    "MaxPool2d": (_max_pool, {"kernel_size": None}),
    "Flatten": _activation(nn.Flatten),
    "LayerNorm": (lambda shape, options: nn.LayerNorm(shape), {}),
    "GroupNorm": (_group_norm, {"num_groups": None}),
    "Tanh": _activation(nn.Tanh),
    "ReLU": _activation(nn.ReLU),
    "ELU": _activation(nn.ELU),
    "GELU": _activation(nn.GELU),
    "SiLU": _activation(nn.SiLU),
    "LeakyReLU": _activation(nn.LeakyReLU),
    "Sigmoid": _activation(nn.Sigmoid),
    "Softplus": _activation(nn.Softplus),
}
"""The layers that data may name, each with its options and their defaults; None is required."""
