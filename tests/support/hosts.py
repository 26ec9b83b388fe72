"""Several hosts on this machine: network namespaces that are joined by a bridge."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 and "PLACER_REQUIRE_HOSTS" not in os.environ,
    reason="only root makes namespaces",
)
_ETC = Path("/etc/netns")
_NETWORKS = itertools.count()


def ip(*words: str) -> str:
    """Run the command `ip`; return what it prints."""
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


@dataclass(frozen=True)
class Host:
    """A network namespace.

    Its addresses are `ipv4` and `ipv6`, and the others know it by `name`; `link` is the
    other end of its cable, in the namespace `hub`.
    """

    namespace: str
    name: str
    ipv4: str
    ipv6: str
    link: str
    hub: str

    def command(self, *words: str) -> list[str]:
        """Return a command line that runs on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a process on this host."""
        return subprocess.Popen(
            self.command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )

    def cut(self) -> None:
        """Cut the cable."""
        ip("-n", self.hub, "link", "set", self.link, "down")

    def mend(self) -> None:
        """Mend the cable."""
        ip("-n", self.hub, "link", "set", self.link, "up")

    def limit_rate(self, rate: str) -> None:
        """Limit what is sent and received, such as to "1gbit"."""
        for namespace, device in ((self.namespace, "eth0"), (self.hub, self.link)):
            limit = f"tbf rate {rate} burst 1mb latency 50ms"
            subprocess.run(
                f"tc -n {namespace} qdisc replace dev {device} root {limit}".split(),
                check=True,
            )

    def reset_connections(self) -> None:
        """Reset all TCP connections of this host."""
        subprocess.run(
            self.command("ss", "--kill", "--tcp", "state", "established"),
            check=True,
            capture_output=True,
        )


@contextmanager
def network() -> Iterator[Callable[[str], Host]]:
    """Make a network; yield the function that adds a host with a name to it."""
    prefix = f"placer-{os.getpid()}-{next(_NETWORKS)}"
    hub = f"{prefix}-hub"
    numbers = itertools.count(1)
    with ExitStack() as undo:

        def add_namespace(namespace: str) -> None:
            ip("netns", "add", namespace)
            undo.callback(ip, "netns", "del", namespace)

        def add(name: str) -> Host:
            i = next(numbers)
            host = Host(
                f"{prefix}-{i}", name, f"10.9.0.{i}", f"fd09::{i}", f"link{i}", hub
            )
            add_namespace(host.namespace)
            cable = ("type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            ip("-n", hub, "link", "add", host.link, *cable)
            ip("-n", hub, "link", "set", host.link, "master", "bridge", "up")
            inside = ("-n", host.namespace)
            ip(*inside, "addr", "add", f"{host.ipv4}/24", "dev", "eth0")
            ip(*inside, "addr", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
            ip(*inside, "link", "set", "eth0", "up")
            ip(*inside, "link", "set", "lo", "up")
            return host

        add_namespace(hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        yield add


@contextmanager
def hosts(
    names: Sequence[str] = ("host-a", "host-b", "host-c"),
) -> Iterator[list[Host]]:
    """Yield hosts with these names, on a network of their own."""
    with network() as add, ExitStack() as undo:
        made = [add(name) for name in names]
        known = [f"{host.ipv4} {host.name}\n{host.ipv6} {host.name}\n" for host in made]
        for host in made:
            etc = _ETC / host.namespace
            etc.mkdir(parents=True)
            undo.callback(shutil.rmtree, etc)
            text = "127.0.0.1 localhost\n" + "".join(known)
            (etc / "hosts").write_text(text)
        yield made
