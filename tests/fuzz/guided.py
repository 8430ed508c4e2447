"""Coverage-guided fuzzing of one side with atheris (libFuzzer), in a process of its own.

    python tests/fuzz/guided.py requests|responses SECONDS SEED

Guided by the branches taken in the router's readers and in the strict one: llhttp is compiled and
tells nothing, but the strict reader takes another branch for every rule of RFC 9112.
The corpus is kept in .build/fuzz, so that every run begins where the last one ended.
"""

import itertools
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["ullage_router", "strict"]):
    import readers  # noqa: F401 -- first, so that what it imports is instrumented
    import strict  # noqa: F401

import driver
import mutate


def main() -> None:
    """Fuzz until the time is up, or something is found."""
    name, seconds, seed = sys.argv[1:]
    side = driver.SIDES[name]
    corpus = driver.FOLDER / f"corpus-{name}"
    if not corpus.exists():
        corpus.mkdir(parents=True)
        for number in range(200):
            wire, _ = driver.wire_of(side, Random(number))
            (corpus / driver.hash_of(wire)).write_bytes(wire)
    tries = itertools.count()

    def one(wire: bytes) -> None:
        driver.try_one(side, wire, valid=False, how=f"guided, seed {seed}, input {next(tries)}")

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, max_size))
        return mutate.mutated(data, lambda: side.make(rng), rng)[:max_size]

    flags = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        "-max_len=20000",
        "-print_final_stats=1",
    ]
    flags += [f"-artifact_prefix={driver.FOLDER}/", "-timeout=30", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
