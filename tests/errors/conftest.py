"""Calls are shared between the tests of bad inputs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
