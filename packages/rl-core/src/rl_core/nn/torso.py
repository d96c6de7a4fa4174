"""Torsos, which policies and values are built on: encoder, layers, recurrent core."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.config import Config
from rl_core.errors import ConfigError, SpaceError, in_brief
from rl_core.nn.cnn import image_network
from rl_core.nn.init import Initialization
from rl_core.nn.mlp import MLP, Activation
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.recurrent import RecurrentNet
from rl_core.spaces import (
    ACTION_MASK_KEY,
    brightest,
    event_shape,
    is_image,
    leaf_spaces,
    made_up_observation,
    named_leaves,
)
from rl_core.types import Observation, map_observation

CoreKind = Literal["none", "gru", "lstm"]
"""The kind of recurrent core; ``none`` for a feed-forward torso."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The recurrent core of a torso.

    Attributes:
        kind: of the recurrent core, or ``none``.
        size: its hidden size.
        num_layers: number of its stacked layers.
        is_first: it stands before the torso's layers instead of after them.
        init: its initial weights, as for `RecurrentNet`.
    """

    kind: CoreKind = "none"
    size: int = 64
    num_layers: int = 1
    is_first: bool = False
    init: Initialization = "orthogonal"


class Torso(nn.Module):
    """Features of an observation: an encoder, an MLP, and an optional recurrent core.

    Args:
        encoder: turns observations into features; it must have ``out_features``, and may be a
            `NormalizingEncoder`.
        hidden_sizes: widths of the MLP's layers; may be empty.
        activation: the MLP's activation.
        core: the recurrent core, if any.
        make_layers: makes a module in place of the MLP from the encoder's width; the module must
            have ``out_features``. None makes the MLP of ``hidden_sizes``.
    """

    def __init__(
        self,
        encoder: nn.Module,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "tanh",
        *,
        core: CoreConfig = CoreConfig(),  # frozen, and so safe to share
        make_layers: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.core: RecurrentNet | None = None
        self._core_is_first = core.is_first and core.kind != "none"
        width = feature_size(encoder)
        if self._core_is_first:
            width = self._add_core(core, width)
        self.layers = (
            MLP(width, hidden_sizes, activation=activation)
            if make_layers is None
            else make_layers(width)
        )
        width = feature_size(self.layers)
        self.out_features = width if self._core_is_first else self._add_core(core, width)

    @property
    def state_size(self) -> int:
        """Numbers per environment in the recurrent state; 0 without a recurrent core."""
        return 0 if self.core is None else self.core.state_size

    def forward(
        self,
        observation: Observation,
        state: Tensor | None,
        episode_start: Tensor | None,
        encoded: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute features, and advance the recurrent core.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)`.
            state: shape `(N, S)`; None without a recurrent core.
            episode_start: shape of the batch axes, bool; None without a recurrent core.
            encoded: what the encoder returns for the observations, where that is known already.

        Returns:
            Features `(*batch, F)` and the state after each step, None without a recurrent core.
        """
        if encoded is None:
            encoded = self.encoder(observation)
        features = encoded if self._core_is_first else self.layers(encoded)
        if self.core is None:
            return features, None
        assert state is not None
        assert episode_start is not None
        features, after = self.core(features, state, episode_start)
        return self.layers(features) if self._core_is_first else features, after

    def encode(self, observation: Observation) -> Tensor:
        """Compute the input of the recurrent core; without one, the features."""
        features: Tensor = self.encoder(observation)
        return features if self._core_is_first else self.layers(features)

    def _add_core(self, config: CoreConfig, width: int) -> int:
        """Add the recurrent core on features of a width, if there is one; return its output's."""
        if config.kind == "none":
            return width
        self.core = RecurrentNet(
            config.kind, width, config.size, config.num_layers, init=config.init
        )
        return self.core.out_features

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Update the encoder's running statistics, if it has any."""
        if isinstance(self.encoder, NormalizingEncoder):
            self.encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether the encoder has running statistics."""
        return normalizes(self.encoder)


class ObservationEncoder(nn.Module):
    """Encode each part of an observation by its kind and concatenate the results.

    Vectors pass through (normalized by running statistics if asked for), categories become one-hot,
    binaries become floats, images go through `image_network`.
    A dict observation is encoded key by key.

    Args:
        space: the environment's observation space.
        normalize: keep running statistics of the continuous parts and normalize with them.
        image_features: width of each image's feature vector.

    Raises:
        SpaceError: for a space without an encoding.
    """

    def __init__(
        self, space: gymnasium.Space[object], *, normalize: bool = False, image_features: int = 512
    ) -> None:
        super().__init__()
        named = named_leaves(space)
        named.pop(ACTION_MASK_KEY, None)
        if not named:
            raise SpaceError(
                "the observation space holds only an action mask; expected observations too"
            )
        # A list, because not every key can name a module.
        self.encoders = nn.ModuleList(
            _encoder(leaf, normalize, image_features) for leaf in named.values()
        )
        self._keys = tuple(named)
        self.out_features = sum(feature_size(part) for part in self.encoders)

    def forward(self, observation: Observation) -> Tensor:
        """Map an observation with any batch axes to features `(*batch, F)`."""
        if isinstance(observation, Tensor):
            features: Tensor = self.encoders[0](observation)
            return features
        parts = zip(self._keys, self.encoders, strict=True)
        return torch.cat([encoder(observation[key]) for key, encoder in parts], -1)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Update the running statistics; does nothing without them.

        Args:
            observation: with any batch axes.
            mask: shape of the batch axes, bool: True for observations that count.
        """
        for key, part in zip(self._keys, self.encoders, strict=True):
            if isinstance(part, _VectorEncoder):
                values = observation if isinstance(observation, Tensor) else observation[key]
                part.update(values, mask)

    @property
    def normalizes(self) -> bool:
        """Whether any part keeps running statistics."""
        return any(
            isinstance(part, _VectorEncoder) and part.norm is not None for part in self.encoders
        )


@runtime_checkable
class NormalizingEncoder(Protocol):
    """An encoder with running statistics; users may write their own.

    If an encoder can also be built without statistics, its attribute ``normalizes`` says whether
    it has them.
    """

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Update the running statistics; called once per update.

        Args:
            observation: with any batch axes.
            mask: shape of the batch axes, bool: True for observations that count; None counts all.
        """


def normalizes(encoder: nn.Module) -> bool:
    """Say whether an encoder has running statistics; see `NormalizingEncoder`."""
    # Called after every update, where a check against the protocol would take 20 µs.
    can_update = callable(getattr(encoder, "update_normalization", None))
    return can_update and bool(getattr(encoder, "normalizes", True))


def has_vectors(space: gymnasium.Space[object]) -> bool:
    """Say whether any part of an observation is a vector that can be normalized."""
    return any(isinstance(leaf, spaces.Box) and not is_image(leaf) for leaf in _seen(space))


def has_images(space: gymnasium.Space[object]) -> bool:
    """Say whether any part of an observation is an image."""
    return any(is_image(leaf) for leaf in _seen(space))


def check_encoder_options(
    space: gymnasium.Space[object], config: Config, *, has_body: bool
) -> None:
    """Refuse encoder options of an actor that have no effect on its observations.

    Args:
        space: of the observations.
        config: with ``normalize_observations`` and ``image_features``.
        has_body: whether ``body`` is given, whose first layer gets the pixels of a single image.

    Raises:
        ConfigError: naming the option.
    """
    if not has_vectors(space):
        config.refuse(
            f"is for vectors of real numbers (Box) and has no effect with {space}; leave it out",
            "normalize_observations",
            section="actor.",
        )
    if not has_images(space):
        unused = f"is for images and has no effect with {space}; leave it out"
    elif has_body and not isinstance(leaf_spaces(space), Mapping):
        unused = "has no effect with actor.body, whose layers read the pixels; leave one out"
    else:
        return
    config.refuse(unused, "image_features", section="actor.")


def feature_size(extractor: nn.Module) -> int:
    """Return the number of features that an extractor returns.

    Raises:
        ConfigError: if it is a class, or has no integer attribute ``out_features``.
    """
    if isinstance(extractor, type):
        raise ConfigError(
            f"feature extractor is the class {extractor.__name__}; give an instance of it"
        )
    size = getattr(extractor, "out_features", None)
    if not isinstance(size, int):
        raise ConfigError(
            f"feature extractor {type(extractor).__name__} needs an integer attribute "
            "'out_features', the size of its output's last axis"
        )
    return size


def check_extractor(
    extractor: nn.Module, space: gymnasium.Space[object], *batches: tuple[int, ...]
) -> nn.Module:
    """Try a user's feature extractor on made-up observations, and return it.

    Args:
        extractor: stays as it is.
        space: of the observations.
        *batches: shapes of the batch axes that it must take.

    Raises:
        ConfigError: when it fails, or what it returns is not of shape `(*batch, out_features)`.
    """
    size, name = feature_size(extractor), f"feature extractor {type(extractor).__name__}"
    device = next((parameter.device for parameter in extractor.parameters()), torch.device("cpu"))
    trial = copy.deepcopy(extractor).eval()
    single = made_up_observation(space, device)

    @torch.no_grad()
    def tried(*batch: int) -> object:
        return trial(map_observation(lambda part: part.expand(*batch, *part.shape[1:]), single))

    for batch in batches:
        takes = f"{name} must take observations with batch axes {batch}"
        try:
            features = tried(*batch)
        except Exception as error:
            raise ConfigError(f"{takes}, but fails: {in_brief(error)}") from error
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        if shape != (*batch, size):
            raise ConfigError(
                f"{takes} and return {(*batch, size)}, where {size} is its out_features, but "
                f"returns {shape}"
            )
    return extractor


def _seen(space: gymnasium.Space[object]) -> list[gymnasium.Space[object]]:
    """List the leaves that networks read."""
    return [leaf for key, leaf in named_leaves(space).items() if key != ACTION_MASK_KEY]


class _VectorEncoder(nn.Module):
    """Flatten a continuous or binary array, and normalize it if asked to."""

    def __init__(self, shape: tuple[int, ...], normalize: bool) -> None:
        super().__init__()
        self.norm = RunningNorm(shape) if normalize else None
        self._event_dims = len(shape)
        self.out_features = torch.Size(shape).numel()

    def forward(self, values: Tensor) -> Tensor:
        if not values.is_floating_point():
            values = values.to(torch.float32)
        if self.norm is not None:
            values = self.norm(values)
        if self._event_dims == 1:
            return values
        return values.flatten(-self._event_dims) if self._event_dims else values.unsqueeze(-1)

    def update(self, values: Tensor, mask: Tensor | None) -> None:
        if self.norm is not None:
            self.norm.update(values, mask)


class _CategoryEncoder(nn.Module):
    """Concatenate the one-hot encodings of categories.

    Each feature compares one of the categories with one of its values, which ``F.one_hot`` does
    not do under vmap. A category that does not exist becomes zeros; environments are checked for
    them.
    """

    position: Tensor
    value: Tensor

    def __init__(self, sizes: list[int], starts: list[int], event_dims: int) -> None:
        super().__init__()
        self._event_dims = event_dims
        position = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        values = [torch.arange(n) + start for n, start in zip(sizes, starts, strict=True)]
        self.register_buffer("position", position, persistent=False)
        self.register_buffer("value", torch.cat(values), persistent=False)
        self.out_features = sum(sizes)

    def forward(self, values: Tensor) -> Tensor:
        if self._event_dims == 0:
            values = values.unsqueeze(-1)
        elif self._event_dims > 1:
            values = values.flatten(-self._event_dims)
        categories = values.long()
        if categories.shape[-1] > 1:  # one is compared with all values as it is
            categories = categories[..., self.position]
        return (categories == self.value).to(torch.float32)


def _encoder(space: gymnasium.Space[object], normalize: bool, image_features: int) -> nn.Module:
    shape = event_shape(space)
    if isinstance(space, spaces.Box):
        if is_image(space):
            return image_network(shape, image_features, scale=brightest(space))
        return _VectorEncoder(shape, normalize)
    if isinstance(space, spaces.Discrete):
        return _CategoryEncoder([int(space.n)], [int(space.start)], 0)
    if isinstance(space, spaces.MultiDiscrete):
        starts = [int(start) for start in space.start.reshape(-1)]
        return _CategoryEncoder([int(n) for n in space.nvec.reshape(-1)], starts, len(shape))
    if isinstance(space, spaces.MultiBinary):
        return _VectorEncoder(shape, normalize=False)
    raise SpaceError(f"no encoding for observation space {space}; pass a feature extractor")
