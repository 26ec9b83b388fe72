"""The volumes of a user in the pods: `CLAIM:/PATH` or `/FOLDER:/PATH`, with `:ro`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from placer.errors import PlacerError


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
        return tuple(cls._parse(part, i) for i, part in enumerate(parts, 1))

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
