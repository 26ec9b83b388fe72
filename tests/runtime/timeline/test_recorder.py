"""A recorder keeps so many slices, by thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from placer.channel.interface import Key
from placer.errors import PlacerError
from placer.runtime.control.timeline_window import Window, parse_window
from placer.runtime.timeline.part import part_of
from placer.runtime.timeline.recorder import SENT, WAIT, Message, Recorder


def run_in_thread(call, name):
    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join()


def test_a_full_recorder_counts_what_it_leaves_out_and_says_from_which_step():
    recorder = Recorder(limit=3)
    recorder.active = True
    for recorder.step in range(1, 6):
        recorder.add(WAIT, "wait", recorder.step, recorder.step + 1)
    part = part_of("worker:0", recorder)
    assert part.slices[:, 2].tolist() == [1, 2, 3]
    assert (part.left_out, part.full_in) == (2, 4)


def test_nothing_is_recorded_before_and_after_the_window():
    recorder = Recorder(limit=3)
    recorder.add(WAIT, "wait", 1, 2)
    assert not len(part_of("worker:0", recorder).slices)


def test_a_slice_has_its_message_and_is_recorded_if_it_fails():
    recorder = Recorder(limit=9)
    recorder.active = True
    message = Message(SENT, "ps:0", Key(3, 7, 2), 80, "h1.w h1.b")
    with pytest.raises(ValueError, match="lost"), recorder.slice(WAIT, "x", message):
        raise ValueError("lost")
    part = part_of("worker:0", recorder)
    _, name, start, end, direction, peer, *rest, values = part.slices[0].tolist()
    assert part.names[name] == (WAIT, "x")
    assert start <= end
    assert (direction, part.names[peer][1], rest) == (SENT, "ps:0", [3, 7, 2, 80])
    assert part.names[values][1] == "h1.w h1.b"


def test_threads_have_tracks_and_those_one_after_another_of_a_name_have_one():
    recorder = Recorder(limit=99)
    recorder.active = True

    def wait():
        recorder.add(WAIT, "wait", 1, 2)

    wait()
    run_in_thread(wait, "placer service of ps:0")
    run_in_thread(wait, "placer service of ps:0")
    run_in_thread(lambda: run_in_thread_beside(wait), "placer exchange")
    part = part_of("ps:0", recorder)
    assert part.tracks == ("program", "service of ps:0", "exchange", "exchange")
    assert np.bincount(part.slices[:, 0]).tolist() == [1, 2, 1, 1]

    assert recorder.is_program


def run_in_thread_beside(call):
    """Call in this thread, and in another one with its name that runs beside it."""
    call()
    run_in_thread(call, threading.current_thread().name)


def test_a_window_is_written_as_its_first_and_last_step():
    window = parse_window("10:30")
    assert window == Window(10, 30)
    assert [step for step in (9, 10, 30, 31) if step in window] == [10, 30]
    assert parse_window(str(window)) == window


@pytest.mark.parametrize(
    "text", ["", "10", "0:5", "7:5", "a:b", "1:2:3", "-1:4", "1:²"]
)
def test_another_text_is_no_window(text):
    with pytest.raises(PlacerError, match=r"is not a range of steps|contains no steps"):
        parse_window(text)
