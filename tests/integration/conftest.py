"""Makes the tools importable, and leaves the plug-in's own tests to where it is installed."""

import sys
from pathlib import Path

collect_ignore = ["plugin_package"]

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
