"""A node that does what its script says, word by word, and speaks the events.

python scripted_node.py NODE WORD… --report-fd N [--order-fd N]
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

node, *words = sys.argv[1:]
at = words.index("--report-fd")
words, descriptor, orders = words[:at], words[at + 1], words[-1]


def report(event, **fields):
    line = json.dumps({"event": event, **fields}) + "\n"
    os.write(int(descriptor), line.encode())


def failed(blamed, what, root):
    cause = {"node": blamed, "where": "step 1", "what": what}
    report("failed", cause=cause, root=root, message=what)


def wait():
    """For ever, but not longer than the launcher lives."""
    with suppress(ProcessLookupError):
        ended = select.poll()
        ended.register(os.pidfd_open(PARENT), select.POLLIN)
        if os.getppid() == PARENT:
            ended.poll()


def is_frozen(log):
    """Whether the process that wrote its pid into the log is stopped."""
    found = (
        re.search(r"pid (\d+)", Path(log).read_text()) if Path(log).exists() else None
    )
    if not found:
        return False
    return (
        Path(f"/proc/{found[1]}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    )


def has_ended(log):
    """Whether the process that wrote its pid into the log was seen to end."""
    text = Path(log).read_text() if Path(log).exists() else ""
    found = re.search(r"pid (\d+)", text)
    return bool(found) and not Path(f"/proc/{found[1]}").exists()


PARENT = os.getppid()
for word in words:
    match word.split("="):
        case ["say", text]:
            print(text)
        case ["state", state]:
            report("state", node=node, state=state, step=1, waiting=["ps:0"])
        case ["step", number]:
            report("step", step=int(number), epoch=1, metrics={"loss": float("nan")})
        case ["print", text]:
            report("output", node=node, text=text + "\x1b[2J")
        case ["result"]:
            report(
                "result",
                steps=1,
                metrics={"loss": 0.5},
                eval={},
                samples_per_second=10.0,
                bytes_sent={node: 8},
            )
        case ["fail", what]:
            failed(node, what, root=True)
        case ["hear", blamed]:
            failed(blamed, "lost: no heartbeat", root=False)
        case ["garbage"]:
            os.write(int(descriptor), b"not an event\n")
        case ["flood"]:
            for number in range(20_000):
                report("step", step=number, epoch=1, metrics={"loss": 1.0})
        case ["exit", status]:
            sys.exit(int(status))
        case ["kill", name]:
            os.kill(os.getpid(), signal.Signals[name])
        case ["deaf"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case ["quiet"]:  # its pipe ends, the process does not
            os.close(int(descriptor))
        case ["child"]:  # which holds on to the pipe
            code = "import time; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", code], close_fds=False)
            print(f"child {child.pid}", flush=True)
        case ["slow", seconds]:  # as one that writes a large file
            time.sleep(float(seconds))
        case ["wait"]:
            wait()
        case ["ordered"]:  # until the launcher asks for a stop
            os.read(int(orders), 1)
        case ["told", fifo]:  # until the test opens it and closes it again
            Path(fifo).read_bytes()
        case ["pid"]:
            print(f"pid {os.getpid()}", flush=True)
        case ["ended", log]:
            while not has_ended(log):  # which is told to its parent alone
                time.sleep(0.02)
        case ["frozen", log]:
            while not is_frozen(log):  # which is told to its parent alone
                time.sleep(0.02)
        case _:
            raise ValueError(word)
