"""A process that was killed and started again meets the others in the next attempt."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.free_addresses import free_addresses
from support.own_resources import count_files

from placer.channel.incarnations import Incarnations
from placer.channel.interface import Aborted, Key
from placer.channel.keys import RunKey
from placer.channel.session import Session

SIZE = 300_000
"""Bytes of a message; shared memory carries it in chunks."""
ECHO = """
import json, sys
from placer.channel.incarnations import Incarnations
from placer.channel.interface import Aborted, Key
from placer.channel.keys import RunKey
from placer.channel.session import Session
attempt, incarnations, options = 1, Incarnations(), json.loads(sys.argv[1])
while True:
    session = Session(
        "a:0", key=RunKey(bytes(32)), attempt=attempt, incarnations=incarnations, **options
    )
    session.continues = True
    try:
        session.join()
        while True:
            session.send("b:0", Key(2, 1), session.receive("b:0", Key(1, 1)))
    except Aborted:
        session.close()
    attempt = max(attempt + 1, session.newer_attempt)
"""


@contextmanager
def echoing(options: dict[str, Any]) -> Iterator[None]:
    """Run a process of a:0, which sends back what b:0 sends to it; then kill it."""
    with subprocess.Popen([sys.executable, "-c", ECHO, json.dumps(options)]) as process:
        try:
            yield
        finally:
            process.kill()


def exchange(session: Session) -> None:
    """Send a message to a:0, and receive it again."""
    sent = np.arange(SIZE).astype(np.uint8)
    session.send("a:0", Key(1, 1), [sent])
    (received,) = session.receive("a:0", Key(2, 1))
    assert np.array_equal(received, sent)


@pytest.mark.parametrize(
    ("transport", "cause"),
    [("shared", "lost: its process has ended"), ("tcp", "was restarted")],
)
def test_the_next_process_takes_the_place_of_a_killed_one(transport, cause):
    """The ports, unix sockets and memory of the killed process, and those of the earlier sessions
    of a process, are not in the way. Over TCP, the new process shows the end of the old one."""
    options = {
        "endpoints": free_addresses(["a:0", "b:0"]),
        "job": "job",
        "transport": transport,
        "encrypt": False,
        "join_timeout": 20.0,
        "deadline": 20.0,
    }
    begin = partial(
        Session, "b:0", key=RunKey(bytes(32)), incarnations=Incarnations(), **options
    )
    before = count_files()
    session = begin()
    with echoing(options):
        session.join()
        exchange(session)
    for attempt in (2, 3):
        session.continues = True
        with echoing(options):
            with pytest.raises(Aborted, match=f"a:0: seen from b:0: {cause}"):
                session.receive("a:0", Key(3, 1))
            session.close()
            session = begin(attempt=attempt)
            session.join()
            exchange(session)
    session.close()
    del session  # and its memory
    assert count_files() == before
