"""The user's volumes in the pods: `CLAIM:/PATH` or `/FOLDER:/PATH`, optionally with
`:ro`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from placer.errors import PlacerError
from placer.launcher.engines.kubernetes.names import is_object

OWN: Final = "placer"
"""The folder in a pod for the build, the key and files that the node creates from them."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume in the pods.

    Attributes:
        name: such as `volume-1`.
        claim: the name of a PersistentVolumeClaim, or a folder of the machines.
        path: its path in the pods.
        read_only: True if pods may only read it.
    """

    name: str
    claim: str
    path: str
    read_only: bool

    @classmethod
    def of(cls, text: str | None) -> tuple[Volume, ...]:
        """Return the volumes of the option `volumes`. Raises PlacerError if the text is
        invalid."""
        parts = text.split(",") if text else []
        volumes = tuple(cls._parse(part, i) for i, part in enumerate(parts, 1))
        for i, volume in enumerate(volumes):
            if volume.path in [other.path for other in volumes[:i]]:
                raise PlacerError(f"volumes: two volumes have the path '{volume.path}'")
        return volumes

    @classmethod
    def _parse(cls, text: str, number: int) -> Volume:
        claim, colon, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not (claim and colon and path.startswith("/") and mode in ("", "ro")):
            raise PlacerError(
                f"volumes: '{text}' is not a volume",
                hint="write CLAIM:/PATH for a PersistentVolumeClaim, or "
                "/FOLDER:/PATH for a folder of the machines; append :ro for "
                "read-only",
            )
        folder, path = claim.startswith("/"), path.rstrip("/")
        if not (folder or is_object(claim)):
            raise PlacerError(f"volumes: '{claim}' is not a valid name of a claim")
        for each in (claim, path) if folder else (path,):
            if ".." in PurePosixPath(each).parts:
                raise PlacerError(f"volumes: '{each}' must not contain '..'")
        if PurePosixPath(path).parts[:2] in ((), ("/", OWN)):
            raise PlacerError(
                f"volumes: no volume can be mounted at '{path or '/'}'",
                hint=f"/ belongs to the image, and /{OWN} to the files of the run",
            )
        return cls(f"volume-{number}", claim, path, mode == "ro")

    @property
    def source(self) -> dict[str, Any]:
        """Return the entry of the volume in a pod."""
        if self.claim.startswith("/"):
            folder = {"path": self.claim, "type": "Directory"}
            return {"name": self.name, "hostPath": folder}
        claim = {"claimName": self.claim}
        return {"name": self.name, "persistentVolumeClaim": claim}

    @property
    def mount(self) -> dict[str, Any]:
        """Return the entry of the volume in a container."""
        found: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        if self.read_only:
            found["readOnly"] = True
        return found
