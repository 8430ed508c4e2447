"""Hosts of their own on this machine: a network, a name, processes and a home for each.

Each is a network namespace with an address on a link between the two, and in it a shell with a host
name and a process namespace of its own. Names are those of `/etc/netns/NAME/hosts`. When a shell is
killed, the kernel ends all that it has started. Needs root.

What a host's commands write to standard error is in `errors`; `run` returns standard output.
"""

import os
import queue
import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import system_packages

NETWORK = "10.213.77"


class CommandError(AssertionError):
    """A command failed, or did not end; the message has what was said."""


@dataclass
class Host:
    """One host, and the shell at which somebody types."""

    name: str
    address: str
    namespace: str
    home: Path
    folder: Path
    """Where the shell is: a checkout."""
    environment: Mapping[str, str]
    shell: subprocess.Popen[str] = field(init=False)
    _said: "queue.Queue[str]" = field(default_factory=queue.Queue)

    @property
    def errors(self) -> Path:
        return self.home / "stderr"

    def run(self, line: str, within_s: float = 60.0) -> str:
        """Type one line and wait until the shell is back. Raises `CommandError`."""
        mark = secrets.token_hex(8)
        assert self.shell.stdin is not None
        self.shell.stdin.write(f"{line}\nprintf '\\n%s %s\\n' {mark} $?\n")
        self.shell.stdin.flush()
        said: list[str] = []
        while True:
            try:
                word = self._said.get(timeout=within_s)
            except queue.Empty:
                raise CommandError(f"{self.name}$ {line}: not back.{self.tail()}") from None
            if word.startswith(mark):
                break
            said.append(word)
        if (status := word.split()[1]) != "0":
            raise CommandError(f"{self.name}$ {line}: {status}. {said}{self.tail()}")
        return "".join(said).strip()

    def run_outside(self, line: str) -> None:
        """The same with this machine's network: what fetches packages needs it."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self._variables(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise CommandError(f"{self.name}$ {line}: {done.stdout[-2000:]}")

    def reaches(self, host: "Host", port: int) -> bool:
        """Does somebody accept there, as seen from here?"""
        tried = f"timeout 5 bash -c ': < /dev/tcp/{host.name}/{port}' 2> /dev/null"
        return "accepted" in self.run(f"{tried} && echo accepted; true").splitlines()

    def listeners(self) -> dict[int, str]:
        """The TCP ports on which anything listens here, on whatever address, and what it is."""
        rows = self.run("ss --no-header --listening --tcp --numeric --processes").splitlines()
        found = (re.match(r'LISTEN .*?:(\d+) .*users:\(\("([^"]+)"', row) for row in rows)
        return {int(row[1]): row[2] for row in found if row}

    def tail(self) -> str:
        """The last that was said on standard error."""
        return "\n" + "\n".join(self.errors.read_text(errors="replace").splitlines()[-30:])

    def _variables(self) -> dict[str, str]:
        return {**self.environment, "HOME": str(self.home)}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Somebody sits down at it, until it is switched off."""
        self.home.mkdir(parents=True, exist_ok=True)
        boot = f"hostname {self.name} && exec bash"
        with self.errors.open("wb") as errors:
            self.shell = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.namespace),
                    *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("bash", "-c", boot),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=self.folder, env=self._variables(),
            )  # fmt: skip
        reader = threading.Thread(target=self._listen, args=(self.shell.stdout,))
        reader.start()
        try:
            yield
        finally:
            self.shell.kill()
            self.shell.wait()
            reader.join()
            for pipe in (self.shell.stdin, self.shell.stdout):
                assert pipe is not None
                pipe.close()

    def _listen(self, stdout: IO[str]) -> None:
        for word in stdout:
            self._said.put(word)


@contextmanager
def hosts(
    names: Sequence[str], source: Path, folder: Path, environment: Mapping[str, str]
) -> Iterator[list[Host]]:
    """Two of them, each with a copy of the repository `source`; cleaned up whatever happens."""
    first, second = names
    system_packages.ensure({"curl", "iproute2"})
    made = [
        Host(
            name, f"{NETWORK}.{number}", f"ullage-{os.getpid()}-{number}", folder / name / "home",
            folder / name / "checkout", environment,
        )
        for number, name in enumerate((first, second), 1)
    ]  # fmt: skip
    with ExitStack() as stack:
        for host in made:
            shutil.copytree(source, host.folder, ignore=_left_out, symlinks=True)
            stack.enter_context(_network(host, made))
        one, other = (host.namespace for host in made)
        _ip("link", "add", "veth0", "netns", one, "type", "veth", "peer", "veth0", "netns", other)
        for host in made:
            within = ("-n", host.namespace)
            _ip(*within, "addr", "add", f"{host.address}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                _ip(*within, "link", "set", device, "up")
            stack.enter_context(host.on())
        yield made


@contextmanager
def _network(host: Host, all_hosts: Sequence[Host]) -> Iterator[None]:
    etc = Path("/etc/netns") / host.namespace
    try:
        etc.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{each.address} {each.name}" for each in all_hosts)]
        (etc / "hosts").write_text("\n".join(lines) + "\n")
        _ip("netns", "add", host.namespace)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        shutil.rmtree(etc, ignore_errors=True)


def _left_out(folder: str, names: list[str]) -> set[str]:
    return {n for n in names if n in ("__pycache__", "dist") or (n[0] == "." and n != ".gitignore")}


def _ip(*words: str) -> Any:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
