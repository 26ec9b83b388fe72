"""An OpenSSH server on each host of a test, and the client's configuration for them."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.free_addresses import eventually
from support.hosts import Host

_SERVER = """\
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
SetEnv {environment}
MaxStartups 100
"""
_CLIENT = """\
IdentityFile {folder}/user
UserKnownHostsFile {folder}/known_hosts
User {user}
"""


@contextmanager
def ssh_servers(
    hosts: Sequence[Host],
    folder: Path,
    environment: Mapping[str, str],
    own: Path | None = None,
) -> Iterator[str]:
    """Start a server on each host; yield the command that connects to them.

    Commands that it runs have the variables `environment`. The folder is for keys. The hosts
    share all files, except for those in the folder `own`.
    """
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    assert sshd is not None, "install openssh-server"
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True)
    public = (folder / "host.pub").read_text()
    known = [f"{name} {public}" for host in hosts for name in _names(host)]
    (folder / "known_hosts").write_text("".join(known))
    listed = " ".join(f'"{name}={value}"' for name, value in environment.items())
    server = _SERVER.format(folder=folder, environment=listed)
    (folder / "server").write_text(server)
    (folder / "client").write_text(
        _CLIENT.format(folder=folder, user=getpass.getuser())
    )
    with ExitStack() as exits:
        for host in hosts:
            words = [sshd, "-D", "-e", "-f", str(folder / "server")]
            if own is not None:  # `ip netns exec` makes a namespace of mounts
                mounted = 'mount -t tmpfs none "$0" && exec "$@"'
                words = ["sh", "-c", mounted, str(own), *words]
            log = exits.enter_context((folder / f"{host.name}.log").open("wb"))
            process = subprocess.Popen(
                host.command(*words), stderr=log, start_new_session=True
            )
            exits.callback(process.wait)
            exits.callback(process.terminate)
        for host in hosts:
            eventually(lambda host=host: _answers(host), 30)
        yield f"ssh -F {folder / 'client'}"


def _names(host: Host) -> tuple[str, ...]:
    return host.name, host.ipv4, host.ipv6


def _answers(host: Host) -> bool:
    """Whether the server of a host listens."""
    words = host.command("ss", "-Hltn", "sport", "=", ":22")
    return bool(subprocess.run(words, capture_output=True, check=True).stdout)
