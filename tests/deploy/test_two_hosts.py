"""A newcomer's two hosts: what the README says to type leads to a completion.

The commands are the README's own, a line at a time, in network namespaces that stand for the hosts.
Four things differ from what a newcomer has:

* lines with `pip install` run with this machine's network: those of the hosts lead nowhere else;
* `~/vllm` is an environment that lends all of vLLM from the one that `make env-vllm` built, so that
  the plugin is installed into a throwaway one;
* `MODEL` is the tiny model, and behind it stand the flags that vLLM wants on this CPU;
* the last line is typed again until it is no 503.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from two_hosts import Host, hosts
from vllm_cpu.serve import Replica, server_command, server_environment

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parents[2]
README = (SOURCE / "README.md").read_text(encoding="utf-8")
NAMES = ("gpu-01", "router-01")
LOADED_WITHIN_S = 300.0


def commands(host: str) -> list[str]:
    """What the README says to type there."""
    (block,) = re.findall(rf"<!-- commands: {host} -->\n```sh\n(.*?)```", README, re.S)
    return [line for line in block.splitlines() if line]


@dataclass
class Pair:
    """Both of them, when all is typed."""

    gpu: Host
    router: Host
    answer: str
    typed: int
    took_s: float


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    lender = Path(os.environ.get("ULLAGE_VLLM_VENV") or SOURCE / ".venv-vllm")
    model = Path(os.environ.get("ULLAGE_TINY_MODEL") or SOURCE / ".build" / "tiny-model")
    if not (lender / "bin" / "vllm").exists() or not (model / "config.json").exists():
        pytest.fail(f"{lender} or {model} is missing: run `make env-vllm`", False)
    replica = Replica(lender, model, port=8000)
    inherited = {n: v for n, v in os.environ.items() if n.startswith(("PIP_", "SSL_", "LANG"))}
    inherited["PATH"] = f"{os.environ['PATH']}:/usr/sbin"
    environment = server_environment(replica, inherited)
    with hosts(NAMES, SOURCE, tmp_path_factory.mktemp("hosts"), environment) as (gpu, router):
        lend(lender, gpu.home / "vllm")
        flags = server_command(replica)
        of_this_cpu = " ".join(flags[flags.index("--dtype") :])
        typed, began_s = 0, time.monotonic()
        for host in (gpu, router):
            for line in commands(host.name):
                line = line.replace("serve MODEL", f"serve MODEL {of_this_cpu}")
                line = line.replace("MODEL", str(model))
                answer = type_in(host, line)
                typed += 1
        while "choices" not in answer:
            assert "no_replica" in answer, answer
            assert time.monotonic() < began_s + LOADED_WITHIN_S, answer + gpu.tail()
            time.sleep(1.0)
            answer = router.run(line)
        yield Pair(gpu, router, answer, typed, time.monotonic() - began_s)


def lend(lender: Path, home: Path) -> None:
    """An environment in which vLLM is installed, and nothing of ours."""
    subprocess.run([lender / "bin" / "python", "-m", "venv", home], check=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    (theirs,) = lender.glob("lib/python3*/site-packages")
    (packages / "lent.pth").write_text(f"{theirs}\n")
    script = (lender / "bin" / "vllm").read_text().splitlines(keepends=True)
    (home / "bin" / "vllm").write_text("".join([f"#!{home}/bin/python\n", *script[1:]]))
    (home / "bin" / "vllm").chmod(0o755)


def type_in(host: Host, line: str) -> str:
    """Nobody types on before what was started beside the shell has said that it listens; but vLLM
    takes long."""
    if "pip install" in line:
        host.run_outside(line)
        return ""
    said = host.run(line)
    if line.endswith("&") and "vllm serve" not in line:
        end_s = time.monotonic() + 60.0
        while " listening " not in host.tail():
            assert time.monotonic() < end_s, host.tail()
            time.sleep(0.1)
    return said


def test_it_takes_as_many_commands_as_the_readme_says(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    said = re.search(r"\*\*Two hosts, (\d+) commands\.\*\*", README)
    assert said
    assert pair.typed == int(said[1])
    with capsys.disabled():
        print(f"\n{pair.typed} commands, a completion after {pair.took_s:.0f} s")


def test_the_answer_is_a_completion(pair: Pair) -> None:
    answer = json.loads(pair.answer)
    assert answer["usage"]["completion_tokens"] == 8


def test_the_plugin_is_heard_and_the_replica_is_named_by_its_host(pair: Pair) -> None:
    (replica,) = json.loads(pair.router.run("curl -s http://127.0.0.1:9401/replicas"))["replicas"]
    assert replica["id"] == "gpu-01/vllm"
    assert replica["url"] == "http://gpu-01:8000"
    assert replica["capacity_score"] is not None


def test_the_plugin_has_brought_nothing_along(pair: Pair) -> None:
    there = pair.gpu.home.glob("vllm/lib/*/site-packages/*.dist-info")
    found = {path.name.split("-")[0] for path in there}
    assert found <= {"pip", "setuptools", "ullage"}
    assert "ullage" in found


def test_clients_elsewhere_reach_the_routers_port_and_no_other(pair: Pair) -> None:
    there = pair.router.listeners()
    assert there.keys() == {8080, 9401}
    assert [port for port in there if pair.gpu.reaches(pair.router, port)] == [8080]


def test_of_the_gpu_node_the_router_reaches_vllm_and_one_port_of_the_sidecar(pair: Pair) -> None:
    """vLLM's processes have ports of their own besides: a firewall's business, says the README."""
    there = pair.gpu.listeners()
    ours = [port for port, what in there.items() if what.startswith("ullage")]
    assert ours == [9400]
    assert 8000 in there
    assert pair.router.reaches(pair.gpu, 8000)
    assert pair.router.reaches(pair.gpu, 9400)
