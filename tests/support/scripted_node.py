"""A node that runs a script, word by word, and reports events.

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
words, report_fd, order_fd = words[:at], words[at + 1], words[-1]


def report(event, **fields):
    line = json.dumps({"event": event, **fields}) + "\n"
    os.write(int(report_fd), line.encode())


def report_failure(failed_node, what, root):
    cause = {"node": failed_node, "where": "step 1", "what": what}
    report("failed", cause=cause, root=root, message=what)


def wait():
    """Wait until the launcher has ended."""
    with suppress(ProcessLookupError):
        ended = select.poll()
        ended.register(os.pidfd_open(PARENT), select.POLLIN)
        if os.getppid() == PARENT:
            ended.poll()


def is_frozen(log):
    """Whether the process that wrote its pid to the log is stopped."""
    match = (
        re.search(r"pid (\d+)", Path(log).read_text()) if Path(log).exists() else None
    )
    if not match:
        return False
    return (
        Path(f"/proc/{match[1]}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    )


def has_ended(log):
    """Whether the process that wrote its pid to the log has been reaped."""
    text = Path(log).read_text() if Path(log).exists() else ""
    match = re.search(r"pid (\d+)", text)
    return bool(match) and not Path(f"/proc/{match[1]}").exists()


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
        case ["saved", folder]:
            report("checkpoint", step=1, path=folder)
        case ["fail", what]:
            report_failure(node, what, root=True)
        case ["hear", failed_node]:
            report_failure(failed_node, "lost: no heartbeat", root=False)
        case ["garbage"]:
            os.write(int(report_fd), b"not an event\n")
        case ["flood"]:
            for number in range(20_000):
                report("step", step=number, epoch=1, metrics={"loss": 1.0})
        case ["exit", status]:
            sys.exit(int(status))
        case ["kill", name]:
            os.kill(os.getpid(), signal.Signals[name])
        case ["report_signals"]:  # those that wait, because they are blocked
            for number in signal.sigpending():
                report("signal", node=node, number=number)
        case ["close_reports"]:  # without ending the process
            os.close(int(report_fd))
        case ["child"]:  # a process that inherits the pipe
            code = "import time; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", code], close_fds=False)
            print(f"child {child.pid}", flush=True)
        case ["slow", seconds]:  # as when writing a large file
            time.sleep(float(seconds))
        case ["wait"]:
            wait()
        case ["await_order"]:  # wait until the launcher asks for a stop
            os.read(int(order_fd), 1)
        case ["fifo", fifo]:  # wait until the test opens and closes it
            Path(fifo).read_bytes()
        case ["pid"]:
            print(f"pid {os.getpid()}", flush=True)
        case ["ended", log]:
            while not has_ended(log):  # only its parent can wait for that
                time.sleep(0.02)
        case ["frozen", log]:
            while not is_frozen(log):  # only its parent can wait for that
                time.sleep(0.02)
        case _:
            raise ValueError(word)
