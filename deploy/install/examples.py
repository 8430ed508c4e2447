"""The configurations that are installed as examples, written from the code.

    PYTHONPATH=deploy python -m install.examples --write deploy/systemd/etc

Rule: they are what `check --print` prints, so every key is there, with its default and its meaning.
"""

import argparse
import io
import socket
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from ullage_router import __main__ as router
from ullage_shared.aggregator import __main__ as aggregator
from ullage_sidecar import __main__ as sidecar

_NODES: Final = {"sidecar": "gpu-01", "aggregator": "agg-01"}
_HEAD: Final = """\
# The configuration of ullage-{command}. Is it in order?  ullage-{command} check /etc/ullage/{file}
# What stands behind # is the default.

"""


def examples() -> Mapping[str, str]:
    """The text of each file, by its name."""
    printed = {
        "router": _said(router.main, "check", "--print"),
        "aggregator": _said(aggregator.main, "check", "--print"),
        "sidecar": _said(sidecar.main, "check", "--print", "--engine", "a=http://gpu-01:8000"),
    }
    return {
        f"{command}.toml": _HEAD.format(command=command, file=f"{command}.toml")
        # By default a node is called as its host is, which is not this one.
        + text.replace(f'#node = "{socket.gethostname()}"\n', f'#node = "{_NODES.get(command)}"\n')
        for command, text in printed.items()
    }


def _said(command: object, *words: str) -> str:
    assert callable(command)
    with redirect_stdout(io.StringIO()) as said:
        assert command(words) == 0
    return said.getvalue()


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER")
    folder = parser.parse_args().write
    for name, text in examples().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
