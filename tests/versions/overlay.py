"""Another version of vLLM over the environment that `make env-vllm` built, without installing it.

    PYTHONPATH = that version, unpacked : what it wants and the environment has not : the plugin

The environment lends torch and everything else that is large. torch's CPU build comes in one
version, so the compiled part of most versions of vLLM does not load beside it; such a version is
unpacked without it. At most `LARGEST_BYTES` are downloaded for one version, and kept.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 400_000_000
COMPILED: Final = (".so", "vllm-rs")
MISSING: Final = (
    "diskcache==5.6.3",
    "gguf==0.19.0",
    "openai-harmony==0.0.8",
    "orjson==3.13.0",
)
"""What some version needs in order to start, and the newest CPU build does not."""
OF_TRANSFORMERS_4: Final = (
    "anthropic==0.71.0",
    "compressed-tensors==0.12.2",
    "distro==1.9.0",
    "huggingface-hub==0.36.2",
    "jiter==0.11.1",
    "llguidance==1.3.0",
    "openai==2.24.0",
    "outlines-core==0.2.11",
    "tokenizers==0.22.2",
    "transformers==4.57.6",
    "xgrammar==0.1.29",
)
"""What versions want that were made for transformers 4: before 0.19."""


class OverlayError(Exception):
    """A version cannot be had; the message says why."""


def pip_download(project: str, version: str, folder: Path) -> Path:
    """The version's wheel, fetched unless it is there."""
    found = sorted(folder.glob(f"{project.replace('-', '_')}-{version}-*.whl"))
    if not found:
        _pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(folder),
             f"{project}=={version}")  # fmt: skip
        found = sorted(folder.glob(f"{project.replace('-', '_')}-{version}-*.whl"))
    if not found:
        raise OverlayError(f"{project} {version}: no wheel for this machine")
    if found[0].stat().st_size > LARGEST_BYTES:
        raise OverlayError(f"{found[0].name} has more than {LARGEST_BYTES} bytes")
    return found[0]


def unpacked(wheel: Path, version: str, folder: Path, *, compiled: bool) -> Path:
    """The wheel's modules, `compiled` or not, under the names that vLLM looks itself up by."""
    if not (folder / "done").exists():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                own_name = name.startswith(f"vllm-{version}.dist-info")
                if not own_name and (compiled or not name.endswith(COMPILED)):
                    archive.extract(name, folder)
        # vLLM takes itself for its CPU build by the end of its version.
        alias = folder / f"vllm-{version}+cpu.dist-info"
        alias.mkdir(exist_ok=True)
        (alias / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
        )
        (folder / "done").touch()
    return folder


def companions(pins: Sequence[str], folder: Path) -> Path:
    """These packages and nothing that they ask for, so that no other torch comes along."""
    wanted = "".join(f"{pin}\n" for pin in pins)
    stamp = folder / "pins"
    if not stamp.exists() or stamp.read_text() != wanted:
        _pip("install", "--no-deps", "--upgrade", "--target", str(folder), *pins)
        stamp.write_text(wanted)
    return folder


def for_transformers_4(model: Path, folder: Path) -> Path:
    """The model, its tokenizer under the name that transformers 4 knows it by."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    named = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OverlayError(f"pip {arguments[0]}: {done.stderr.strip().splitlines()[-1:]}")
