"""What a remote runner is to a host: `tell_host.py SOCKET HOST COMMAND`, see `rolling_hosts`.

The host says what came of it, and the exit status on its last line.
"""

import socket
import sys


def main(path: str, host: str, command: str) -> int:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        there.sendall(f"{host} {command}\n".encode())
        said = b"".join(iter(lambda: there.recv(4096), b"")).decode()
    *words, status = said.splitlines()
    print("\n".join(words), end="\n" if words else "", file=sys.stderr)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
