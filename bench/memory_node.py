"""A node of a build whose memory in use is watched: run by `pipeline.py`.

    python bench/memory_node.py BUILD NODE BASE_PORT STEPS HISTORY

From the signal USR1 on it looks every half millisecond at what malloc has given out and
not got back (what is kept for later is not in use), and prints the most of it, in bytes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from pathlib import Path

from placer.build.plan import read_plan
from placer.runtime.run.process import Options, endpoints_of, run

EVERY = 0.0005


class Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def watch(begin: threading.Event, end: threading.Event, found: list[int]) -> None:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    begin.wait()
    while not end.wait(EVERY):
        now = mallinfo2()
        found[0] = max(found[0], now.uordblks + now.hblkhd)


def main() -> None:
    build, node, port, steps, history = sys.argv[1:]
    begin, end, found = threading.Event(), threading.Event(), [0]
    signal.signal(signal.SIGUSR1, lambda *_: begin.set())
    threading.Thread(target=watch, args=(begin, end, found), daemon=True).start()
    endpoints = endpoints_of(read_plan(Path(build)), int(port))
    options = Options(steps=int(steps), history=Path(history))
    run(build, node, endpoints=endpoints, options=options)
    end.set()
    print(found[0])


if __name__ == "__main__":
    main()
