"""A recording as a file: what is in it, and what is not."""

from random import Random

import pytest

from recorded_engine import RecordedEngine, stream, traffic
from ullage_sidecar.channel import DatagramError, encode_hello
from ullage_tune.fit.recording import Key, RecordingError, chosen, heard, read


@pytest.fixture(scope="module")
def steps():
    return list(RecordedEngine().run(traffic(Random(1), 20, rate=4.0)))


HELLO = RecordedEngine().hello()


def test_steps_said_before_the_first_hello_are_of_that_engine(steps):
    bare = stream(HELLO, steps).removeprefix(encode_hello(HELLO))
    assert heard(bare) == {}  # Nobody said who it is.
    said = heard(bare + encode_hello(HELLO))
    assert list(said) == [Key("vllm", 0)]
    assert said["vllm", 0].senders == {HELLO.sender: steps}


def test_a_repeated_step_is_one(steps):
    said = heard(stream(HELLO, [steps[0], steps[1], steps[1], steps[0], steps[2]]))
    assert said["vllm", 0].senders[HELLO.sender] == steps[:3]


@pytest.mark.parametrize("cut", [1, 50, 95])
def test_what_is_cut_off_at_the_end_is_left_out(steps, cut):
    said = heard(stream(HELLO, steps)[:-cut])
    assert said["vllm", 0].senders[HELLO.sender] == steps[:-1]


def test_two_recordings_joined_are_one(steps):
    said = heard(stream(HELLO, steps[:10]) + stream(HELLO, steps[20:]))
    assert said["vllm", 0].senders[HELLO.sender] == steps[:10] + steps[20:]


def test_what_is_no_recording_is_refused_with_words(tmp_path, steps):
    with pytest.raises(RecordingError, match="No such file"):
        read(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(RecordingError, match="empty: no plugin says in it who it is"):
        read(tmp_path / "empty")
    (tmp_path / "page").write_bytes(b"<html>404</html>")
    with pytest.raises(RecordingError, match="wanted a recording of this version"):
        read(tmp_path / "page")
    (tmp_path / "old").write_bytes(stream(HELLO, steps).replace(b"ULG2", b"ULG1"))
    with pytest.raises(RecordingError, match=r"ULG1.*wanted a recording of this version"):
        read(tmp_path / "old")
    with pytest.raises(DatagramError):
        heard(stream(HELLO, steps) + b"nonsense")


def test_one_of_several_engines_is_chosen_by_name_or_by_rank(steps):
    names = (("a", 0, 1), ("b", 0, 2), ("b", 1, 3))
    hellos = [RecordedEngine(sender=s).hello(name=n, engine_index=i) for n, i, s in names]
    said = heard(b"".join(stream(hello, []) for hello in hellos))
    assert chosen(said, "a")[0] == Key("a", 0)
    assert chosen(said, "b:1")[0] == Key("b", 1)
    for wanted in (None, "b", "c"):
        with pytest.raises(RecordingError, match=r"wanted one of .*: a:0, b:0, b:1"):
            chosen(said, wanted)


def test_several_api_processes_at_a_time_are_refused_and_a_server_that_started_anew_is_not(steps):
    one, two = (RecordedEngine(sender=sender).hello() for sender in (1, 2))
    theirs = [step._replace(sender=2) for step in steps]
    both = stream(one, steps) + stream(two, theirs)
    with pytest.raises(RecordingError, match="--api-server-count 1"):
        chosen(heard(both), None)
    anew = RecordedEngine(sender=2).hello(boot_id="boot-2")
    _, said = chosen(heard(stream(one, steps) + stream(anew, theirs)), None)
    assert said.steps == 2 * len(steps)
    assert said.hello == anew
