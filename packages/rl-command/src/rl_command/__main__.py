"""Run the command line with ``python -m rl_command``."""

import sys

from rl_command.main import main

if __name__ == "__main__":
    sys.exit(main())
