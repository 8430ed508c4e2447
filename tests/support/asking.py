"""Clients that ask and ask, each time over a new connection, until standard input ends.

    python asking.py URL CLIENTS MAX_TOKENS      prints {"200": 118, "ConnectionRefusedError": 1, …}

The standard library only: it runs where no test environment is. A 200 must be whole.
"""

import http.client
import json
import sys
import threading
from collections import Counter
from urllib.parse import urlsplit


def ask(host: str, port: int, body: bytes) -> str:
    """What came of one request: 200, or what went wrong."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            return f"{answer.status}: {said[:300].decode(errors='replace')}"
        whole = said.endswith(b"data: [DONE]\n\n")
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
    return "200" if whole else "200, not whole"


def main(url: str, clients: int, max_tokens: int) -> None:
    where = urlsplit(url)
    over = threading.Event()
    ends: Counter[str] = Counter()

    def keep_asking(client: int) -> None:
        wanted = {"model": "tiny", "prompt": f"{client} ", "max_tokens": max_tokens, "stream": True}
        body = json.dumps(wanted).encode()
        while not over.is_set():
            ends[ask(str(where.hostname), where.port or 80, body)] += 1

    threads = [threading.Thread(target=keep_asking, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
