"""What is known of a row, in one byte."""

import numpy as np
import numpy.typing as npt

TERMINATED = 1
VALID = 2
"""The row is a transition, and may be drawn."""
TRUNCATED = 4
EPISODE_START = 8
STEP = 16
"""The row is a step of its environment, if only one that reset it."""
SEQUENCE = 32
"""The row is a transition with which a sequence begins that may be drawn."""

ENDED = TERMINATED | TRUNCATED
KNOWN = ENDED | VALID | EPISODE_START | STEP | SEQUENCE

Flags = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def pack_flags(starts: Mask, terminated: Mask, truncated: Mask, valid: Mask) -> Flags:
    """Make the flags of one step of all environments, each `(B,)`."""
    flags = np.full(len(starts), STEP, dtype=np.uint8)
    for mask, flag in (
        (valid, VALID),
        (terminated, TERMINATED),
        (truncated, TRUNCATED),
        (starts, EPISODE_START),
    ):
        flags[mask] |= flag
    return flags
