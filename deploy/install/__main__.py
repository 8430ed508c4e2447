"""Installs Ullage on this host, or below a folder that stands for one; or removes it.

    python -m install install [--prefix /opt/ullage] [--destdir FOLDER]
    python -m install uninstall [--prefix /opt/ullage] [--destdir FOLDER]

Rules
* Again is the same as once, and brings this source's version.
* In /etc/ullage no file is ever written over or removed.
* No service is started; those that run go on with what they have loaded, until a restart.
* The standard library only: this runs before any environment exists.

Exit status: 0 done; 1 it could not be, and why is on standard error.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from install.environment import EXTRAS, InstallError, replace
from install.layout import SHIPPED_PREFIX, Layout

_SYSTEMD: Final = Path("/run/systemd/system")
"""There is such a folder if systemd is what runs this host."""


def main(words: Sequence[str]) -> int:
    """Do it. Returns the exit status."""
    options = _parser().parse_args(words)
    os.umask(0o022)
    layout = Layout(options.prefix, options.destdir)
    live = options.destdir == Path("/") and _SYSTEMD.is_dir()
    try:
        if options.command == "install":
            install(layout, options.wheel, options.extras, live=live)
        else:
            uninstall(layout, live=live)
    except (InstallError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def install(layout: Layout, wheel: Path | None, extras: str, *, live: bool) -> None:
    """Bring it all. `live`: systemd is to know. Raises `InstallError`, `OSError`."""
    replace(layout, wheel, extras)
    for source, place in layout.files():
        layout.write(source, place)
    examples = [(source, place) for source, place in layout.examples() if not place.exists()]
    for source, place in examples:
        layout.write(source, place)
        print(f"new: {place}")
    if live:
        _run("systemd-sysusers", str(layout.settings("sysusers")))
        _run("systemd-tmpfiles", "--create", str(layout.settings("tmpfiles")))
        _run("systemctl", "daemon-reload")
    print(f"Ullage is in {layout.prefix}. Services that run have it after a restart.")


def uninstall(layout: Layout, *, live: bool) -> None:
    """Take away what `install` has brought. Raises `InstallError`, `OSError`."""
    if layout.home.exists() and not layout.is_ours:
        raise InstallError(f"PREFIX = {layout.prefix}: this was not installed by `make install`")
    places = [place for _, place in layout.files()]
    if live:
        units = [place.name for place in places if place.suffix in (".service", ".socket")]
        _run("systemctl", "disable", "--quiet", *units)
        _run("systemctl", "stop", *(unit.replace("@.", "@*.") for unit in units))
    for place in places:
        place.unlink(missing_ok=True)
        if place.parent.name.endswith(".service.d") and place.parent.is_dir():
            place.parent.rmdir()
    if layout.home.exists():
        shutil.rmtree(layout.home)
    if live:
        _run("systemctl", "daemon-reload")
    print("Left: /etc/ullage, and the users ullage and ullage-router.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="install", allow_abbrev=False, description=__doc__)
    parser.add_argument("command", choices=("install", "uninstall"))
    parser.add_argument("--prefix", type=_absolute, default=Path(SHIPPED_PREFIX))
    parser.add_argument("--destdir", type=_folder, default=Path("/"), help="stands for /")
    parser.add_argument("--extras", default=EXTRAS, help=f"[{EXTRAS}]")
    parser.add_argument("--wheel", type=Path, help="installed instead of this source")
    return parser


def _folder(text: str) -> Path:
    return Path(text or "/").absolute()


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or path == Path("/") or ".." in path.parts:
        raise argparse.ArgumentTypeError(f"{text}: wanted an absolute path, as {SHIPPED_PREFIX}")
    return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
