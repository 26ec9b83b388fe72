"""A kubectl for a cluster of processes: a command that asks the process of the test."""

from __future__ import annotations

import argparse
import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.kubernetes.cluster import PLURALS, Cluster, Refused
from support.kubernetes.pod import Object, Pod

# The command sends its arguments, and copies what comes: a line with the descriptor and
# the number of bytes, and the bytes; in the end its exit status. It runs often: its imports
# are those that take no time.
_COMMAND = """\
#!{python} -IS
import _socket, os, sys
connection = _socket.socket(_socket.AF_UNIX)
connection.connect({address!r})
connection.sendall("\\0".join(sys.argv[1:]).encode() + b"\\n")
stream = open(connection.detach(), "rb")
for line in stream:
    where, number = map(int, line.split())
    if not where:
        sys.exit(number)
    data = stream.read(number)
    while data:
        data = data[os.write(where, data):]
sys.exit("the cluster has ended")
"""
_KINDS = {
    **{_each.split(".")[0]: _kind for _kind, _each in PLURALS.items()},
    **{_each: _kind for _kind, _each in PLURALS.items()},
    **{_each.split(".")[0][:-1]: _kind for _kind, _each in PLURALS.items()},
    "job.batch": "Job",
    "jobset.jobset.x-k8s.io": "JobSet",
}

Say = Callable[[bytes], None]


@contextmanager
def kubectl_of(cluster: Cluster, folder: Path) -> Iterator[Kubectl]:
    """Serve a cluster; yield its kubectl, whose `command` is in the folder."""
    folder.mkdir()
    address = str(folder / "socket")
    command = folder / "kubectl"
    command.write_text(_COMMAND.format(python=sys.executable, address=address))
    command.chmod(0o755)
    kubectl = Kubectl(cluster, command)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            words = self.rfile.readline().rstrip(b"\n").decode().split("\0")

            def say(where: int, data: bytes) -> None:
                self.wfile.write(b"%d %d\n%b" % (where, len(data), data))

            try:
                status = kubectl.run(words, lambda d: say(1, d), lambda d: say(2, d))
                self.wfile.write(b"0 %d\n" % status)
            except OSError:
                pass  # the command was killed

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 100

    with Server(address, Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield kubectl
        server.shutdown()


class Kubectl:
    """Answers the command.

    Attributes:
        command: the path of the command.
        failing: what calls fail with, by their first word.
    """

    def __init__(self, cluster: Cluster, command: Path) -> None:
        self.cluster, self.command = cluster, command
        self.failing: dict[str, str] = {}

    def run(self, words: list[str], out: Say, err: Say) -> int:
        """Run the command; return its exit status."""
        at = words.index("--") if "--" in words else len(words)
        try:
            given = _parser().parse_args(words[:at])
        except argparse.ArgumentError as error:
            err(f"error: {error}\n".encode())
            return 1
        given.words = words[at + 1 :]
        try:
            if (failure := self.failing.get(given.verb)) is not None:
                raise Refused(failure)
            getattr(self, f"_{given.verb}")(given, out)
        except Refused as refused:
            err(f"{refused}\n".encode())
            return 1
        return 0

    def _create(self, given: argparse.Namespace, out: Say) -> None:
        refused = []
        for file in given.filename:
            for each in yaml.safe_load_all(Path(file).read_text()):
                try:
                    made = self.cluster.create(each)
                except Refused as error:
                    refused.append(str(error))
                else:
                    out(_filled(given.output, made).encode())
        if refused:
            raise Refused("\n".join(refused))

    def _get(self, given: argparse.Namespace, out: Say) -> None:
        assert given.output == "json"
        kinds = given.what.split(",")
        if kinds == ["events"]:
            assert given.field_selector == "type=Warning"
            out(json.dumps({"kind": "List", "items": self.cluster.warnings}).encode())
            return
        items: list[Object] = []
        with self.cluster.lock:
            if "pods" in kinds:
                items += [pod.object for pod in self.cluster.pods.values()]
            for name in kinds:
                if name != "pods":
                    items += self._of_kind(_KINDS[name])
            chosen = [each for each in items if is_selected(each, given.selector)]
            out(json.dumps({"kind": "List", "items": chosen}).encode())

    def _logs(self, given: argparse.Namespace, out: Say) -> None:
        assert given.follow
        assert given.timestamps
        assert given.container == "node"
        pod, said = self._pod(given.pod), 0
        since = (given.since_time or "")[:19]  # its resolution are seconds
        while True:
            with pod.grew:
                while said == len(pod.lines) and not pod.has_ended:
                    pod.grew.wait(1)
                lines, is_last = pod.lines[said:], pod.has_ended
            said += len(lines)
            for time, text in lines:
                if time[:19] >= since:
                    out(f"{time} ".encode() + text + b"\n")
            if is_last and said == len(pod.lines):
                return

    def _exec(self, given: argparse.Namespace, out: Say) -> None:
        pod = self._pod(given.pod)
        if pod.pid is None:
            raise Refused(
                'error: unable to upgrade connection: container not found ("node")'
            )
        done = pod.execute(given.words)
        out(done.stdout)
        if done.returncode:
            raise Refused(done.stderr.decode())

    def _delete(self, given: argparse.Namespace, out: Say) -> None:
        if given.what == ["pods"]:
            assert given.selector
            with self.cluster.lock:
                for pod in [*self.cluster.pods.values()]:
                    if is_selected(pod.object, given.selector):
                        self.cluster.delete_pod(pod, given.grace_period)
            seconds = float(given.timeout.removesuffix("s"))
            self.cluster.wait(lambda: not self._selected(given.selector), seconds)
            return
        missing = []
        for each in given.what:
            kind, _, name = each.partition("/")
            if kind == "pod":
                try:
                    self.cluster.delete_pod(self._pod(name), given.grace_period)
                except Refused:
                    missing.append(name)
            elif not self.cluster.delete(_KINDS[kind], name):
                missing.append(name)
        if missing and not given.ignore_not_found:
            raise Refused(f'Error from server (NotFound): "{missing[0]}" not found')

    def _selected(self, selector: str) -> list[Pod]:
        pods = self.cluster.pods.values()
        return [pod for pod in pods if is_selected(pod.object, selector)]

    def _of_kind(self, kind: str) -> list[Object]:
        return [each for (k, _), each in self.cluster.objects.items() if k == kind]

    def _pod(self, name: str) -> Pod:
        with self.cluster.lock:
            for pod in self.cluster.pods.values():
                if pod.name == name:
                    return pod
        raise Refused(f'Error from server (NotFound): pods "{name}" not found')


def is_selected(given: Object, selector: str) -> bool:
    wanted = dict(pair.split("=") for pair in selector.split(","))
    labels: Mapping[str, Any] = given["metadata"].get("labels", {})
    return wanted.items() <= labels.items()


def _filled(output: str, made: Object) -> str:
    """Return an object as `--output=jsonpath=…` prints it."""
    template = output.removeprefix("jsonpath=").replace('{"\\n"}', "\n")

    def value(found: re.Match[str]) -> str:
        here: Any = made
        for name in found[1].split("."):
            here = here[name]
        return str(here)

    return re.sub(r"\{\.([\w.]+)\}", value, template)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--context")
    parser.add_argument("--namespace")
    verbs = parser.add_subparsers(dest="verb", required=True)
    create = verbs.add_parser("create")
    create.add_argument("--output")
    create.add_argument("--filename", action="append")
    get = verbs.add_parser("get")
    get.add_argument("what")
    get.add_argument("--selector")
    get.add_argument("--output")
    get.add_argument("--field-selector")
    get.add_argument("--request-timeout")
    logs = verbs.add_parser("logs")
    logs.add_argument("pod")
    logs.add_argument("--container")
    logs.add_argument("--follow", action="store_true")
    logs.add_argument("--timestamps", action="store_true")
    logs.add_argument("--since-time")
    execute = verbs.add_parser("exec")
    execute.add_argument("pod")
    execute.add_argument("--container")
    delete = verbs.add_parser("delete")
    delete.add_argument("what", nargs="+")
    delete.add_argument("--wait")
    delete.add_argument("--ignore-not-found", action="store_true")
    delete.add_argument("--grace-period", type=float)
    delete.add_argument("--timeout", default="30s")
    delete.add_argument("--selector")
    return parser
