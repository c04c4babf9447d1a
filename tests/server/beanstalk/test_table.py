"""The same commands to a real beanstalkd and to ours: the same answers, but for listed differences.

A script is a list of (connection, command). Job ids are named by the order in which the scripts see
them, so that `{0}` is the first job on both servers.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.beanstalk.wire import Talk, is_beanstalkd_there, listener_of, real_beanstalkd
from tests.server.running import RunningServer

pytestmark = pytest.mark.skipif(not is_beanstalkd_there(), reason="needs beanstalkd")

Script = list[str | tuple[int, str]]


def put(body: str, pri: int = 65536, delay: int = 0, ttr: int = 60) -> str:
    return f"put {pri} {delay} {ttr} {len(body)}\r\n{body}"


LONG = "x" * 222
SCRIPTS: dict[str, Script] = {
    "a job lives": [
        put("hello"),
        "peek-ready",
        "peek {0}",
        "reserve",
        "peek-ready",
        "touch {0}",
        "peek {0}",
        "delete {0}",
        "delete {0}",
        "peek {0}",
        "reserve-with-timeout 0",
    ],
    "priorities": [
        put("last", pri=4294967295),
        put("usual"),
        put("urgent", pri=1),
        put("most urgent", pri=0),
        put("less", pri=2**24),
        *["reserve"] * 5,
    ],
    "order within a priority": [*(put(str(n)) for n in range(5)), *["reserve"] * 5],
    "release": [
        put("a"),
        put("b"),
        "reserve",
        "release {0} 65536 0",
        "release {0} 65536 0",
        "reserve",
        "release {0} 65536 3600",
        "peek-delayed",
        "reserve",
        "reserve-with-timeout 0",
        "kick 5",
        "reserve",
    ],
    "bury and kick": [
        put("a"),
        put("b"),
        put("c", delay=3600),
        "reserve",
        "bury {0} 65536",
        "bury {0} 65536",
        "reserve",
        "bury {1} 65536",
        "reserve-with-timeout 0",
        "peek-buried",
        "kick 1",
        "peek-buried",
        "kick 10",
        "kick 10",
        "kick 10",
        "peek-delayed",
        "reserve",
        "reserve",
        "reserve",
    ],
    "kick-job": [
        put("a"),
        put("b", delay=3600),
        "kick-job {0}",
        "kick-job {1}",
        "kick-job {1}",
        "reserve",
        "bury {0} 1",
        "reserve",
        "kick-job {0}",
        "reserve",
        "kick-job {0}",
    ],
    "reserve-job": [
        put("ready"),
        put("delayed", delay=3600),
        put("buried"),
        "reserve-job {2}",
        "bury {2} 0",
        "reserve-job {2}",
        "reserve-job {2}",
        "reserve-job {1}",
        "release {1} 65536 0",
        "release {2} 65536 0",
        "peek-delayed",
        "reserve-job {0}",
        "delete {0}",
        "reserve",
        "reserve",
        "delete {1}",
        "delete {2}",
    ],
    "reserve-job, other ends": [
        put("a"),
        put("b"),
        "reserve-job {0}",
        "bury {0} 0",
        "reserve-job {0}",
        "touch {0}",
        "bury {0} 0",
        "reserve-job {0}",
        "delete {0}",
        "reserve-job {1}",
        "release {1} 0 3600",
        "peek-delayed",
        "delete {1}",
    ],
    "delete in each state": [
        put("ready"),
        put("delayed", delay=3600),
        put("buried"),
        put("reserved"),
        "delete {0}",
        "delete {1}",
        "reserve",
        "bury {2} 0",
        "delete {2}",
        "reserve",
        "delete {3}",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
    ],
    "another client's job": [
        put("mine"),
        "reserve",
        (1, "delete {0}"),
        (1, "release {0} 0 0"),
        (1, "bury {0} 0"),
        (1, "touch {0}"),
        (1, "reserve-job {0}"),
        (1, "kick-job {0}"),
        (1, "peek {0}"),
        (1, "reserve-with-timeout 0"),
        "release {0} 65536 0",
        (1, "reserve"),
        "touch {0}",
        (1, "delete {0}"),
    ],
    "tubes": [
        "list-tube-used",
        "list-tubes-watched",
        "use other",
        "list-tube-used",
        put("in other"),
        "watch other",
        "watch other",
        "list-tubes-watched",
        "reserve",
        "ignore TUBE",
        "ignore other",
        "ignore never-seen",
        "list-tubes-watched",
        "list-tubes",
        (1, "peek-ready"),
        "delete {0}",
    ],
    "names of tubes": [
        "use A-Za+/;.$_()",
        put("odd name"),
        "watch A-Za+/;.$_()",
        "reserve",
        "stats-tube A-Za+/;.$_()",
        "use -no",
        "use no,no",
        "use",
        "use a b",
        "watch ",
        "ignore",
        "use .dotted",
        "use dotted.",
        "use orders.dlq",
        "use __dlq__orders",
        "use _b.x",
    ],
    "pauses": [
        "pause-tube never-seen 1",
        "pause-tube TUBE 3600",
        put("waits"),
        "reserve-with-timeout 0",
        "peek-ready",
        "pause-tube TUBE 0",
        "reserve-with-timeout 1",
        "pause-tube TUBE",
        "pause-tube TUBE -1",
        "pause-tube TUBE x",
    ],
    "deadline soon": [
        put("short", ttr=1),
        "reserve",
        "reserve-with-timeout 0",
        "delete {0}",
        "reserve-with-timeout 0",
    ],
    "a ready job comes before the deadline": [
        put("short", ttr=1),
        put("next"),
        "reserve",
        "reserve",
        "reserve",
    ],
    "time to run of 0": [put("x", ttr=0), "stats-job {0}"],
    "bad puts": [
        "put",
        "put ",
        "put 0 0 0",
        "put a 0 0 0",
        "put 0 0 0 0 0",
        "put -1 0 60 0",
        "put 4294967296 0 60 0",
        "put 0 4294967296 60 0",
        "put 0 0 4294967296 0",
        "put 0 0 60 99999999999",
        "put  65536  0  60  1\r\na",
        "put 65536 0 60 0\r\n",
        "PUT 0 0 60 0",
        "put\t0 0 60 0",
        "reserve",
    ],
    "bad numbers": [
        "delete",
        "delete ",
        "delete x",
        "delete -1",
        "delete 1x",
        "delete 1 2",
        "delete 18446744073709551615",
        "delete 18446744073709551616",
        "release 1",
        "release 1 1",
        "release x 1 1",
        "release 1 -1 1",
        "release 1 1 1 1",
        "release 1 4294967296 1",
        "bury 1",
        "bury 1 x",
        "touch",
        "touch x",
        "kick",
        "kick x",
        "kick 0",
        "kick -1",
        "kick-job x",
        "reserve-job x",
        "reserve-with-timeout",
        "peek",
        "peek x",
        "peek 0",
        "stats-job x",
        "stats-job 0",
    ],
    "bad lines": [
        "",
        " ",
        "nothing",
        "reservex",
        "reserve ",
        "statsx",
        "list-tubesx",
        "list-tubes-watched ",
        "peek-readyx",
        "stats-tube",
        "stats-tube ",
        "stats-tube never-seen",
        LONG,
        LONG + "x" * 100,
        "list-\0tubes",
        "list-tube-used",
    ],
}

ID = re.compile(rb"(INSERTED|RESERVED|FOUND|id:) (\d+)")
# What depends on the time, the process or the program.
MASKED = re.compile(rb"^(age|file|time-left): .*$", re.MULTILINE)


def play(port: int, script: Script, tube: str) -> list[str]:
    """Return the answers of a server. Job ids are replaced by their places."""
    talks = [Talk(port), Talk(port)]
    ids: list[bytes] = []
    said: list[str] = []
    for talk in talks:
        talk.ask(b"use " + tube.encode(), b"watch " + tube.encode(), b"ignore default")
    for step in script:
        who, command = (0, step) if isinstance(step, str) else step
        line = re.sub(r"\{(\d)\}", lambda found: ids[int(found[1])].decode(), command)
        answer = talks[who].one(line.replace("TUBE", tube).encode())
        found = ID.search(answer)
        if found is not None:
            if found[2] not in ids:
                ids.append(found[2])
            answer = ID.sub(lambda one: b"%s {%d}" % (one[1], ids.index(one[2])), answer)
        said.append(f"{command[:60]!r} -> {_masked(answer, tube).decode()}")
    for talk in talks:
        talk.close()
    return said


def _masked(answer: bytes, tube: str) -> bytes:
    if answer.startswith(b"OK "):
        answer = re.sub(rb"^OK \d+", b"OK", answer)
        body = answer.partition(b"\r\n")[2]
        if body.startswith(b"---\n- "):  # a list: other scripts have tubes as well
            names = (tube, "other", "odd")
            listed = [one for one in body.decode().splitlines() if one[2:].startswith(names)]
            return "\n".join(sorted(listed)).encode()
    return MASKED.sub(rb"\1: *", answer)


@pytest.fixture(scope="module")
def theirs() -> Iterator[int]:
    with real_beanstalkd() as port:
        yield port


@pytest.fixture
def ours(server: RunningServer) -> int:
    return listener_of(server).port


def tube_of(name: str) -> str:
    return re.sub("[^a-z]+", "-", name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_our_answers_are_those_of_beanstalkd(name: str, ours: int, theirs: int) -> None:
    tube = tube_of(name)
    assert play(ours, SCRIPTS[name], tube) == play(theirs, SCRIPTS[name], tube)


class Different(NamedTuple):
    """A script whose last answer differs. docs/beanstalk.md says why."""

    script: Script
    ours: str
    theirs: str


DIFFERENCES: dict[str, Different] = {
    "a kicked job comes after those that were ready": Different(
        [put("a"), put("b"), "reserve", "bury {0} 0", "kick 1", "reserve"],
        "RESERVED {1} 1\r\nb",
        "RESERVED {0} 1\r\na",
    ),
    "release does not change the priority": Different(
        [put("a", pri=0), put("b"), "reserve", "release {0} 4294967295 0", "reserve"],
        "RESERVED {0} 1\r\na",
        "RESERVED {1} 1\r\nb",
    ),
    "priorities of one step are equal": Different(
        [put("a", pri=600), put("b", pri=599), "reserve"],
        "RESERVED {0} 1\r\na",
        "RESERVED {1} 1\r\nb",
    ),
    "a name of more than 64 characters": Different(
        ["use " + "a" * 65], "BAD_FORMAT", "USING " + "a" * 65
    ),
    "a job of 65,536 bytes": Different(
        [f"put 0 0 1 65536\r\n{'x' * 65536}"], "INSERTED {0}", "JOB_TOO_BIG"
    ),
    "a timeout that is no number": Different(["reserve-with-timeout x"], "BAD_FORMAT", "TIMED_OUT"),
    "more than a timeout": Different(["reserve-with-timeout 0 x"], "BAD_FORMAT", "TIMED_OUT"),
    "more than a bound": Different(["kick 1 x"], "BAD_FORMAT", "KICKED 0"),
    "tubes take turns": Different(
        [
            "use TUBE-2",
            put("a"),
            put("b", pri=0),
            "use TUBE",
            put("c"),
            put("d", pri=0),
            "watch TUBE-2",
            "reserve",
            "reserve",
            "reserve",
        ],
        "RESERVED {2} 1\r\nc",
        "RESERVED {0} 1\r\na",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_as_it_is_told(name: str, ours: int, theirs: int) -> None:
    script, our_answer, their_answer = DIFFERENCES[name]
    tube = tube_of(name)
    ends = [play(port, script, tube)[-1].partition(" -> ")[2] for port in (ours, theirs)]
    assert ends == [our_answer, their_answer]


def test_the_page_tells_each_difference() -> None:
    page = (Path(__file__).parents[3] / "docs" / "beanstalk.md").read_text()
    told = re.sub(r"\s+", " ", page)
    missing = [name for name in DIFFERENCES if f"| {name} |" not in told]
    assert missing == []
