"""Run the command line with ``python -m rl_cli``."""

import sys

from rl_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
