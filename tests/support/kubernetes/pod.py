"""A pod as processes: a root folder, network, names and process ids of its own.

Its image is this machine: its root folder has all of the machine's, and the mounts of the
pod's volumes.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.free_addresses import eventually
from support.hosts import Host

Object = dict[str, Any]

# A root folder with the entries of that of the machine, but for /proc. One process makes
# all mounts of a table.
_ROOT = """\
root={root}
mount -t tmpfs tmpfs $root
(cd $root && mkdir -p {folders} && cp -P {links} .)
mount --all --fstab {table}
hostname {hostname}
"""


@dataclass(frozen=True)
class Image:
    """What an image gives to its containers: the variables of its environment."""

    environment: Mapping[str, str]


@dataclass
class Pod:
    """A pod; `object` is what `kubectl get` shows of it.

    Attributes:
        object: what it is, with its status.
        folder: for its volumes and its root.
        lines: its log: the time, and the text of each line.
        grew: is notified when the log grows or ends.
    """

    object: Object
    folder: Path
    lines: list[tuple[str, bytes]] = field(default_factory=list)
    grew: threading.Condition = field(default_factory=threading.Condition)
    process: subprocess.Popen[bytes] | None = None
    has_ended: bool = False
    reason: str = ""
    """Why it is killed: a reason of Kubernetes."""
    _is_killed: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.object["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return dict(self.object["metadata"]["labels"])

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.object["metadata"]

    def start(
        self,
        host: Host,
        hosts_file: Path,
        image: Image,
        volumes: Mapping[str, Path],
        ended: Callable[[], None],
    ) -> None:
        """Start its container; `ended` is called after its end.

        Args:
            host: its network.
            hosts_file: the names of all pods.
            image: its image.
            volumes: the folders of its volumes, by name.
            ended: is called in a thread.
        """
        (self.folder / "root").mkdir()
        container = self.object["spec"]["containers"][0]
        mounts = [(volumes[m["name"]], m) for m in container["volumeMounts"]]
        script = self._root_script(hosts_file, mounts)
        environment = self._environment(container, host, image)
        words = [*self._restrictions(container), "env", "-i"]
        words += [f"{name}={value}" for name, value in environment.items()]
        words += [expand(word, environment) for word in container["command"]]
        words += [expand(word, environment) for word in container.get("args", ())]
        script += f"exec chroot $root {shlex.join(words)}\n"
        unshare = ("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child")
        process = subprocess.Popen(
            host.command(*unshare, "--propagation=private", "sh", "-euc", script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        readers = [
            threading.Thread(target=self._keep, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for reader in readers:
            reader.start()

        def wait() -> None:
            status = process.wait()
            for reader in readers:
                reader.join()
            self._end(status)
            ended()

        self.process = process
        self.set_state("Running", {"running": {"startedAt": now()}})
        threading.Thread(target=wait, daemon=True).start()

    def signal(self, number: int, reason: str = "") -> None:
        """Send a signal to the first process of the container."""
        self.reason = self.reason or reason
        self._is_killed |= number == signal.SIGKILL
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def pid(self) -> int | None:
        """The process of its container; None before and after it."""
        if self.process is None or self.process.poll() is not None:
            return None
        unshare = self.process.pid
        children = Path(f"/proc/{unshare}/task/{unshare}/children")
        found: list[int] = []

        def is_there() -> bool:
            with suppress(OSError):
                found[:] = map(int, children.read_text().split())
            return bool(found) or self.process.poll() is not None

        eventually(is_there)
        return found[0] if found else None

    def execute(self, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the container."""
        inside = ("nsenter", f"--target={self.pid}", "--mount", "--pid", "--root")
        return subprocess.run([*inside, "--wd", *words], capture_output=True)

    def set_state(self, phase: str, state: Object) -> None:
        """Change its status."""
        self.object["status"]["phase"] = phase
        self.object["status"]["containerStatuses"] = [{"name": "node", "state": state}]

    def close(self) -> None:
        """Kill its processes."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def _root_script(
        self, hosts_file: Path, volumes: Sequence[tuple[Path, Mapping[str, Any]]]
    ) -> str:
        """Return the script that makes the root folder, with volumes at their mounts."""
        root = self.folder / "root"
        entries = [path for path in Path("/").iterdir() if path.name != "proc"]
        table = [("proc", "/proc", "proc", "defaults")]
        table += [
            (str(path), str(path), "none", "rbind")
            for path in entries
            if path.is_dir() and not path.is_symlink()
        ]
        folders = [at for _, at, *_ in table] + [m["mountPath"] for _, m in volumes]
        table.append((str(hosts_file), "/etc/hosts", "none", "bind"))
        for source, mount in volumes:
            table.append((str(source), mount["mountPath"], "none", "bind"))
            if mount.get("readOnly"):
                table.append(("none", mount["mountPath"], "none", "remount,bind,ro"))
        (self.folder / "fstab").write_text(
            "".join(
                f"{source} {root}{at} {kind} {options} 0 0\n"
                for source, at, kind, options in table
            )
        )
        return _ROOT.format(
            root=shlex.quote(str(root)),
            folders=shlex.join(f".{path}" for path in folders),
            links=shlex.join(str(path) for path in entries if path.is_symlink()),
            table=shlex.quote(str(self.folder / "fstab")),
            hostname=self.object["spec"]["hostname"],
        )

    def _end(self, status: int) -> None:
        if self._is_killed:  # `unshare` has another status then
            status = -signal.SIGKILL
        code = 128 - status if status < 0 else status
        reason = self.reason or ("Error" if code else "Completed")
        ended = {"exitCode": code, "reason": reason, "finishedAt": now()}
        phase = "Failed" if code else "Succeeded"
        with self.grew:
            self.has_ended = True
            self.set_state(phase, {"terminated": ended})
            self.grew.notify_all()

    def _keep(self, stream: Any) -> None:
        """Keep the lines of a stream of the container."""
        with stream:
            for line in stream:
                with self.grew:
                    self.lines.append((now(), line.rstrip(b"\n")))
                    self.grew.notify_all()

    def _environment(
        self, container: Object, host: Host, image: Image
    ) -> dict[str, str]:
        """Return the variables of the container, as kubelet sets them."""
        found = dict(image.environment)
        metadata = self.object["metadata"]
        self.object["status"]["podIP"] = host.ipv4
        for each in container["env"]:
            if "value" in each:
                found[each["name"]] = expand(each["value"], found)
                continue
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            if path == "status.podIP":
                found[each["name"]] = host.ipv4
                continue
            match = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)
            assert match, path
            found[each["name"]] = metadata[match[1]].get(match[2], "")
        return found

    def _restrictions(self, container: Object) -> list[str]:
        """Return the command that takes what the pod may not have, and its user."""
        words = ["setpriv"]
        pod, own = self.object["spec"]["securityContext"], container["securityContext"]
        if own["capabilities"]["drop"] == ["ALL"]:
            words += ["--bounding-set=-all", "--inh-caps=-all"]
        if not own["allowPrivilegeEscalation"]:
            words.append("--no-new-privs")
        if "runAsUser" in pod:
            words += [f"--reuid={pod['runAsUser']}", f"--regid={pod['runAsGroup']}"]
            words.append(f"--groups={pod['fsGroup']}")
        return words


def write_volume(folder: Path, content: Mapping[str, bytes], group: int | None) -> Path:
    """Write a ConfigMap or a Secret as kubelet does: files behind links, readable for
    all, and those of a pod with a group for it."""
    hidden = folder / "..2026_11_28_18_00_00.1"
    hidden.mkdir(parents=True)
    (folder / "..data").symlink_to(hidden.name)
    for name, data in content.items():
        (hidden / name).write_bytes(data)
        (hidden / name).chmod(0o644)
        if group is not None:
            os.chown(hidden / name, 0, group)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def content_of(source: Object) -> dict[str, bytes]:
    """Return the content of a ConfigMap or a Secret."""
    found = {name: base64.b64decode(v) for name, v in source.get("data", {}).items()}
    for name, text in source.get("binaryData", {}).items():
        found[name] = base64.b64decode(text)
    for name, text in source.get("stringData", {}).items():
        found[name] = text.encode()
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does; `$$` is `$`.

    >>> expand("$(A) $(B) $$(A) $$$ $A", {"A": "1"})
    '1 $(B) $(A) $$ $A'
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def now() -> str:
    """Return the time, as kubelet writes it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.{time.time_ns() % 10**9:09}Z"
