"""The plugin without vLLM: stand-ins for the few names it imports, and a listener to speak to.

vLLM is not installed in this environment. What the plugin makes of the real one is tested in
tests/end_to_end/test_plugin.py.
"""

import gc
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ear import Ear
from plugin_pieces import Eventually, hearts


class FakeStatLoggerBase:
    """What vLLM asks a plugin to descend from."""


def fake_module(name: str, **names: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A path that fits in a unix socket's address, where nobody listens yet."""
    with tempfile.TemporaryDirectory(prefix="ullage") as directory:
        yield Path(directory) / "readings.sock"


@pytest.fixture
def listen(socket_path: Path) -> Iterator[Callable[[], Ear]]:
    made = []

    def listen() -> Ear:
        made.append(Ear(socket_path))
        return made[-1]

    yield listen
    for listener in made:
        listener.close()


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A vLLM as the plugin sees it, put where `import vllm` finds it."""
    engine = fake_module("vllm.v1.engine", EngineCoreReadyResponse=object)
    loggers = fake_module("vllm.v1.metrics.loggers", StatLoggerBase=FakeStatLoggerBase)
    metrics = fake_module("vllm.v1.metrics", loggers=loggers)
    v1 = fake_module("vllm.v1", engine=engine, metrics=metrics)
    vllm = fake_module("vllm", v1=v1, __version__="0.32.0")
    for module in (vllm, v1, engine, metrics, loggers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return vllm


@pytest.fixture
def plugin(
    fake_vllm: ModuleType, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The plugin's module; its socket is named, its heart beats fast."""
    monkeypatch.setenv("ULLAGE_SOCKET", str(socket_path))
    monkeypatch.setenv("ULLAGE_ENGINE", "gpu-03")
    sys.modules.pop("ullage_sidecar.vllm_plugin", None)
    module = importlib.import_module("ullage_sidecar.vllm_plugin")
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    yield module
    del sys.modules["ullage_sidecar.vllm_plugin"]


@pytest.fixture
def vllm_config() -> SimpleNamespace:
    """The parts of a VllmConfig that the plugin reads, as of one engine on one GPU."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            _api_process_count=1,
            data_parallel_size=1,
            data_parallel_size_local=1,
            data_parallel_rank=0,
            data_parallel_rank_local=None,
            data_parallel_external_lb=False,
            data_parallel_hybrid_lb=False,
        ),
        cache_config=SimpleNamespace(num_gpu_blocks=256, block_size=32),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=2048),
        model_config=SimpleNamespace(served_model_name=["tiny", "small"], max_model_len=4096),
    )


def eventually(is_so: Callable[[], bool], within_s: float = 2.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return is_so()


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., bool]:
    return eventually


@pytest.fixture(autouse=True)
def _no_heart_outlives_its_logger(eventually: Eventually) -> Iterator[None]:
    yield
    gc.collect()
    assert eventually(lambda: not hearts())
