"""Which version runs: that of the installed distribution."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("ullage")
