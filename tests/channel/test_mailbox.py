"""The wait loop of a mailbox, without a transport."""

import pytest

from placer.channel import mailbox as module
from placer.channel.interface import Key
from placer.channel.mailbox import Carrier, Mailbox
from placer.channel.types import Limits
from placer.errors import RunError


class Clock:
    """The time as the mailbox sees it."""

    now = 0.0

    def monotonic(self):
        return self.now


class SlowReader(Carrier):
    """A reader whose process is stopped during its first read."""

    has_connections = True

    def __init__(self, clock):
        self.clock = clock
        self.timeouts = []

    def read(self, timeout):
        self.timeouts.append(timeout)
        self.clock.now += 0.5 if len(self.timeouts) == 1 else max(timeout, 0.01)
        return False


def test_wait_after_process_was_stopped_has_positive_timeout(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    reader = SlowReader(clock)
    limits = Limits(bound=1 << 20, deadline=1.0, beat=0.1)
    mailbox = Mailbox("a:0", ["b:0"], limits, reader)
    with pytest.raises(RunError, match=r"waited 1 s for .* from b:0"):
        mailbox.claim("a:0", [("b:0", Key(1, 1))])
    assert len(reader.timeouts) > 1
    assert min(reader.timeouts) > 0
