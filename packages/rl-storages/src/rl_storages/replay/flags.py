"""What is known of each row, in one byte."""

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
Positions = npt.NDArray[np.int64]
