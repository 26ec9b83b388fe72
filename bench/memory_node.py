"""A node of a build that measures its memory in use: run by `pipeline.py`.

    python bench/memory_node.py BUILD NODE BASE_PORT STEPS HISTORY

After the signal USR1 it reads, every half millisecond, how many bytes malloc has
allocated and not freed (memory that malloc keeps for reuse does not count), and finally
prints the maximum.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from pathlib import Path

from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.entry_point import default_endpoints, run

INTERVAL = 0.0005


class Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def watch(begin: threading.Event, end: threading.Event, peak: list[int]) -> None:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    begin.wait()
    while not end.wait(INTERVAL):
        now = mallinfo2()
        peak[0] = max(peak[0], now.uordblks + now.hblkhd)


def main() -> None:
    build, node, port, steps, history = sys.argv[1:]
    begin, end, peak = threading.Event(), threading.Event(), [0]
    signal.signal(signal.SIGUSR1, lambda *_: begin.set())
    threading.Thread(target=watch, args=(begin, end, peak), daemon=True).start()
    endpoints = default_endpoints(read_plan(Path(build)), int(port))
    options = Options(steps=int(steps), history=Path(history))
    run(build, node, endpoints=endpoints, options=options)
    end.set()
    print(peak[0])


if __name__ == "__main__":
    main()
