"""The checksums that a safetensors file of parameters has of itself, in its metadata.

`placer.crc32` is one text: eight hexadecimal digits for the CRC-32 of the entries of the
header as JSON, then eight for each `CHUNK` bytes of the tensors. Files of other tools and of
older versions of placer do not have it; nothing is checked in them. `load_params` of an
exported model checks the same (`placer/exporting/params.py`).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from placer.checkpoint.chunked_file import ChunkedFile
from placer.checkpoint.manifest import CHUNK
from placer.checkpoint.tensor_file import Header, parse_header
from placer.errors import DataError, PlacerError

KEY: Final = "placer.crc32"
_FORM: Final = re.compile(r"([0-9a-f]{8})+")


def checksums_metadata(
    entries: Mapping[str, Any], chunks: Iterable[int]
) -> dict[str, str]:
    """Return the metadata of a file from the entries of its header and the checksums of
    its chunks."""
    checksums = checksum_of_entries(entries), *chunks
    return {KEY: "".join(f"{each:08x}" for each in checksums)}


def checksum_of_entries(entries: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the entries of a header, as JSON without blanks."""
    return zlib.crc32(json.dumps(entries, separators=(",", ":")).encode())


def checked_file(path: Path, header: Header) -> ChunkedFile:
    """Return a file whose ranges are read with its own checksums, if it has them.

    Raises DataError if its header does not have its checksum.
    """

    def damaged(why: str) -> PlacerError:
        return DataError(
            f"{path} is damaged: {why}",
            hint="it has changed since it was written: use a copy that has not, or save"
            " the parameters again",
        )

    checksums = _checksums_of(header, damaged)
    size = header.size - header.start
    return ChunkedFile(path, header.start, size, checksums, damaged)


def check_content(name: str, content: bytes) -> None:
    """Check the bytes of a file by its own checksums, if it has them.

    Raises DataError, which says `name`, if it is damaged, and ValueError if it is no
    safetensors file.
    """
    header = parse_header(BytesIO(content), len(content))
    file = checked_file(Path(name), header)
    values = memoryview(content)[header.start :]
    for index, low in enumerate(range(0, len(values), CHUNK)):
        file.check(index, [values[low : low + CHUNK]])


def _checksums_of(
    header: Header, damaged: Callable[[str], PlacerError]
) -> tuple[int, ...] | None:
    """Return the checksums of the chunks of tensors, None if the file has none."""
    text = header.metadata.get(KEY)
    if text is None:
        return None
    chunks = -(-(header.size - header.start) // CHUNK)
    if not _FORM.fullmatch(text) or len(text) != 8 * (1 + chunks):
        raise damaged("its metadata are not its checksums")
    own, *checksums = (int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    if checksum_of_entries(header.entries) != own:
        raise damaged("its header does not have its checksum")
    return tuple(checksums)
