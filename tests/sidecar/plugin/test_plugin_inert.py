"""When the plugin does nothing."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from plugin_pieces import Listen, hearts, scheduler_stats


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("setting", ["", None])
@pytest.mark.parametrize("default", ["/nowhere/readings.sock", "/" + "x" * 5000])
def test_it_is_inert_unless_a_sidecar_is_expected(
    setting: str | None,
    default: str,
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(plugin, "DEFAULT_SOCKET", default)
    if setting is None:
        monkeypatch.delenv("ULLAGE_SOCKET")
    else:
        monkeypatch.setenv("ULLAGE_SOCKET", setting)
    before = open_files()

    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.log_engine_initialized()
    logger.record(scheduler_stats(), None, mm_cache_stats=None, engine_idx=0)

    assert not hearts()
    assert open_files() == before
    assert "off" in caplog.text


def test_a_default_socket_that_exists_switches_it_on(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listen: Listen,
) -> None:
    monkeypatch.delenv("ULLAGE_SOCKET")
    monkeypatch.setattr(plugin, "DEFAULT_SOCKET", str(socket_path))
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    assert listener.hello().sender
    del logger


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ULLAGE_SOCKET", "/" + "x" * 107, "ULLAGE_SOCKET of 108 bytes, wanted at most 107"),
        ("ULLAGE_ENGINE", "x" * 201, "ULLAGE_ENGINE of 201 characters, wanted at most 200"),
    ],
)
def test_a_setting_that_cannot_work_is_named_and_leaves_it_inert(
    variable: str,
    value: str,
    said: str,
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, value)

    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(), None)

    assert caplog.messages == [f"Ullage: no readings: {said}"]
    assert not hearts()
