"""The layout of images: which axes are channels, height, width and frames."""

from dataclasses import dataclass

from torch import Tensor

from rl_core.errors import SpaceError


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where the channels and the frames of an image are; see `image_layout`.

    Attributes:
        num_frames: along an axis before the other three; None without that axis.
        height: H.
        width: W.
        channels: C, of each frame.
        channels_last: frames are `(H, W, C)`, not `(C, H, W)`.
    """

    num_frames: int | None
    height: int
    width: int
    channels: int
    channels_last: bool

    @property
    def channel_axis(self) -> int:
        """The axis of the channels, counted from the last."""
        return -1 if self.channels_last else -3

    @property
    def planes_shape(self) -> tuple[int, int, int]:
        """The shape of the planes of one image; see `planes`."""
        frames = 1 if self.num_frames is None else self.num_frames
        return (frames * self.channels, self.height, self.width)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """The shape of one frame, in the image's own order of axes."""
        if self.channels_last:
            return (self.height, self.width, self.channels)
        return (self.channels, self.height, self.width)

    def planes(self, image: Tensor) -> Tensor:
        """Move the channels of all frames to the front: `(*batch, K * C, H, W)`."""
        if self.channels_last:
            image = image.movedim(-1, -3)
        return image if self.num_frames is None else image.flatten(-4, -3)

    def newest_frame(self, image: Tensor) -> Tensor:
        """Return the last frame, `(*batch, *frame_shape)`, or the image itself without a stack."""
        return image if self.num_frames is None else image.select(-4, -1)


def image_layout(shape: tuple[int, ...]) -> ImageLayout:
    """Tell the axes of an image apart.

    The channels are the shorter one of the first and the last axis of a frame, or the last one if
    they are equal. A fourth axis, in front, holds the frames of a stack.

    Args:
        shape: `(H, W, C)` or `(C, H, W)`, or either of them after the number of frames.

    Raises:
        SpaceError: for another number of axes.
    """
    if len(shape) not in (3, 4):
        raise SpaceError(
            f"got image shape {shape}; expected (H, W, C) or (C, H, W), with one more axis in "
            "front for a stack of frames"
        )
    *stack, first, middle, last = shape
    num_frames = stack[0] if stack else None
    if last <= first:
        return ImageLayout(num_frames, first, middle, last, channels_last=True)
    return ImageLayout(num_frames, middle, last, first, channels_last=False)
