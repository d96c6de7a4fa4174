"""What the axes of images mean."""

from dataclasses import dataclass

from torch import Tensor

from rl_core.errors import SpaceError


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where the channels and the frames of an image are; see `image_layout`.

    Attributes:
        num_frames: along an axis of their own before the other three; None without that axis.
        height: H.
        width: W.
        channels: C, of each frame.
        channels_last: frames are `(H, W, C)` and not `(C, H, W)`.
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
        """The shape of what `planes` answers for one image."""
        frames = 1 if self.num_frames is None else self.num_frames
        return (frames * self.channels, self.height, self.width)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """The shape of one frame, its axes as they are."""
        if self.channels_last:
            return (self.height, self.width, self.channels)
        return (self.channels, self.height, self.width)

    def planes(self, image: Tensor) -> Tensor:
        """Take the channels first, those of all frames together: `(*batch, K * C, H, W)`."""
        if self.channels_last:
            image = image.movedim(-1, -3)
        return image if self.num_frames is None else image.flatten(-4, -3)

    def newest_frame(self, image: Tensor) -> Tensor:
        """Take the last of the frames, `(*batch, *frame_shape)`, or the image that is but one."""
        return image if self.num_frames is None else image.select(-4, -1)


def image_layout(shape: tuple[int, ...]) -> ImageLayout:
    """Tell the axes of an image apart.

    The channels are the shorter of the first and the last axis of a frame, the last one when they
    are equal. An axis more, the first, holds the frames of a stack.

    Args:
        shape: `(H, W, C)` or `(C, H, W)`, or either of them after the number of frames.

    Raises:
        SpaceError: for another number of axes.
    """
    if len(shape) not in (3, 4):
        raise SpaceError(
            f"an image has shape (H, W, C) or (C, H, W), or one axis more for a stack of frames; "
            f"got {shape}"
        )
    *stack, first, middle, last = shape
    num_frames = stack[0] if stack else None
    if last <= first:
        return ImageLayout(num_frames, first, middle, last, channels_last=True)
    return ImageLayout(num_frames, middle, last, first, channels_last=False)
