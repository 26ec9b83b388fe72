"""The plain programs of `tests/oracle` are what these runs are held against too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
