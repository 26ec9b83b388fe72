"""A second process of a node, started by mistake, is refused and does no harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.free_addresses import free_addresses

from placer.channel.protocol import Aborted, Key
from placer.channel.session import Session


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_a_second_process_is_refused_while_the_first_one_is_heard(
    between: Any, make: Any, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both addresses are named, and the run goes on."""
    seen = dict.fromkeys(addresses, addresses)
    channels = between("a:0", "b:0", addresses=seen, deadline=20.0)
    other = free_addresses(["c:0"])["c:0"]
    monkeypatch.setattr("placer.channel.session.SECOND_WAIT", 0.0)
    second: Session = make("b:0", addresses, "test job", bind=other, join_timeout=20)
    try:
        with pytest.raises(Aborted) as refused:
            second.join()
    finally:
        second.close()
    text = str(refused.value)
    assert text.startswith("b:0: a peer is connected to another one: it refuses this")
    assert "b:0 runs already, at 127.0.0.1:" in text
    assert "; this second one is at 127.0.0.1:" in text
    assert text.endswith("end one of them")
    for step in (1, 2):
        channels["b:0"].send("a:0", Key(1, step), [np.arange(3)])
        (got,) = channels["a:0"].receive("b:0", Key(1, step))
        assert got.tolist() == [0, 1, 2]
    assert channels["a:0"].aborted is None
    assert channels["b:0"].aborted is None
