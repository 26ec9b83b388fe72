"""The volumes of a user in the pods: `CLAIM:/PATH` or `/FOLDER:/PATH`, with `:ro`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from placer.errors import PlacerError
from placer.launcher.engines.kubernetes.names import is_object

OWN: Final = "placer"
"""The folder of pods with the build, the key and what the node makes of them."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume.

    Attributes:
        name: such as `volume-1`.
        claim: the name of a PersistentVolumeClaim, or a folder of the machines.
        path: where it is in the pods.
        read_only: whether pods may only read it.
    """

    name: str
    claim: str
    path: str
    read_only: bool

    @classmethod
    def of(cls, text: str | None) -> tuple[Volume, ...]:
        """Return the volumes of the option `volumes`. Raises PlacerError."""
        parts = text.split(",") if text else []
        volumes = tuple(cls._parse(part, i) for i, part in enumerate(parts, 1))
        for i, volume in enumerate(volumes):
            if volume.path in [other.path for other in volumes[:i]]:
                raise PlacerError(f"volumes: two are mounted at '{volume.path}'")
        return volumes

    @classmethod
    def _parse(cls, text: str, number: int) -> Volume:
        claim, colon, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not (claim and colon and path.startswith("/") and mode in ("", "ro")):
            raise PlacerError(
                f"volumes: '{text}' is not a volume",
                hint="write CLAIM:/PATH for a PersistentVolumeClaim, or /FOLDER:/PATH"
                " for a folder of the machines, each with :ro if it is only read",
            )
        folder, path = claim.startswith("/"), path.rstrip("/")
        if not (folder or is_object(claim)):
            raise PlacerError(f"volumes: '{claim}' cannot be the name of a claim")
        for each in (claim, path) if folder else (path,):
            if ".." in PurePosixPath(each).parts:
                raise PlacerError(f"volumes: '{each}' has a part '..'")
        if PurePosixPath(path).parts[:2] in ((), ("/", OWN)):
            raise PlacerError(
                f"volumes: none can be mounted at '{path or '/'}'",
                hint=f"/ is the image's, and /{OWN} is for the files of the run",
            )
        return cls(f"volume-{number}", claim, path, mode == "ro")

    @property
    def source(self) -> dict[str, Any]:
        """What a pod says of the volume."""
        if self.claim.startswith("/"):
            folder = {"path": self.claim, "type": "Directory"}
            return {"name": self.name, "hostPath": folder}
        claim = {"claimName": self.claim}
        return {"name": self.name, "persistentVolumeClaim": claim}

    @property
    def mount(self) -> dict[str, Any]:
        """What a container says of the volume."""
        found: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        if self.read_only:
            found["readOnly"] = True
        return found
