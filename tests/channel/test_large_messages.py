"""Messages of more than 2 GiB, which is more than one call of the system transfers."""

from __future__ import annotations

import numpy as np
import pytest

from placer.channel.interface import Key


@pytest.mark.slow
def test_a_message_of_more_than_2_gib_arrives(between, spawn):
    channels = between("a:0", "b:0")
    sent = np.arange((2 << 30) // 8 + 700_000)
    sending = spawn(channels["a:0"].send, "b:0", Key(1, 1), [sent, np.arange(3)])
    got, small = channels["b:0"].receive("a:0", Key(1, 1))
    sending.result(120)
    assert got.nbytes > 1 << 31
    assert np.array_equal(got, sent)
    assert small.tolist() == [0, 1, 2]
