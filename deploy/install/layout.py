"""What is installed where.

    PREFIX/                              an environment of its own, and documents
    /usr/local/lib/systemd/system/       units
    /usr/local/lib/{sysusers,tmpfiles}.d/
    /etc/ullage/                         examples to edit; the operator's from then on

Rule: below `/etc/systemd` nothing is written, which is the operator's place to override it all.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2]
SHIPPED: Final = SOURCE / "deploy" / "systemd"
SHIPPED_PREFIX: Final = "/opt/ullage"
"""What the shipped files call the prefix."""
_LIB: Final = Path("usr/local/lib")


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one installation."""

    prefix: Path
    """Absolute, as the host will have it."""
    root: Path
    """What stands for `/` meanwhile: `DESTDIR`."""

    @property
    def home(self) -> Path:
        """Where the prefix is now."""
        return self.below(self.prefix)

    def below(self, path: Path) -> Path:
        """Where a path of the host is now."""
        return self.root / path.relative_to("/")

    @property
    def is_ours(self) -> bool:
        """Was the prefix made by this? What was not is not touched."""
        return (self.home / _README).is_file() and (self.home / "pyvenv.cfg").is_file()

    def files(self) -> Iterator[tuple[Path, Path]]:
        """Source and place of every file that each installation writes anew."""
        units = SHIPPED / "units"
        for unit in sorted(units.rglob("*.*")):
            if unit.is_file():
                yield unit, self.root / _LIB / "systemd" / "system" / unit.relative_to(units)
        for kind in ("sysusers", "tmpfiles"):
            yield SHIPPED / f"ullage.{kind}", self.settings(kind)

    def settings(self, kind: str) -> Path:
        """Where the users are declared (`sysusers`), or the folders (`tmpfiles`)."""
        return self.root / _LIB / f"{kind}.d" / "ullage.conf"

    def examples(self) -> Iterator[tuple[Path, Path]]:
        """Source and place of every file that is written once, and then the operator's."""
        for example in sorted((SHIPPED / "etc").iterdir()):
            yield example, self.root / "etc" / "ullage" / example.name

    def write_documents(self, home: Path) -> None:
        """What stands beside the environment: the README, and vLLM's units as examples."""
        (home / _README).parent.mkdir(parents=True)
        shutil.copyfile(SOURCE / "README.md", home / _README)
        vllm = SHIPPED / "vllm"
        for example in sorted(path for path in vllm.rglob("*.*") if path.is_file()):
            self.write(example, home / _VLLM / example.relative_to(vllm))

    def write(self, source: Path, place: Path) -> None:
        """Copy a file, with this prefix in it. One that is there is replaced at once, or not."""
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f"{place.name}.new")
        text = source.read_text(encoding="utf-8")
        new.write_text(text.replace(SHIPPED_PREFIX, str(self.prefix)), encoding="utf-8")
        new.replace(place)


_README: Final = Path("share/doc/ullage/README.md")
_VLLM: Final = Path("share/ullage/vllm")
