"""Stores checksums of a safetensors file of parameters in its metadata.

The metadata `placer.crc32` is a string of hexadecimal digits. The first eight digits are the
CRC-32 of the header's entries as JSON. Eight more digits follow for each chunk of `CHUNK`
bytes of the tensors. Files without checksums, from other tools or older versions of placer,
are not verified. `load_params` of an exported model verifies the same checksums
(`placer/compiler/serving/params.py`).
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
    """Return the metadata with the checksums of a header's entries and of the chunks."""
    checksums = checksum_of_entries(entries), *chunks
    return {KEY: "".join(f"{each:08x}" for each in checksums)}


def checksum_of_entries(entries: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the entries of a header, encoded as JSON without blanks."""
    return zlib.crc32(json.dumps(entries, separators=(",", ":")).encode())


def checked_file(path: Path, header: Header) -> ChunkedFile:
    """Return a file whose reads are verified with the checksums in its metadata, if any.

    Raises DataError if the checksum of the header does not match.
    """

    def damaged(why: str) -> PlacerError:
        return DataError(
            f"{path} is damaged: {why}",
            hint="use an intact copy of the file, or save the parameters again",
        )

    checksums = _checksums_of(header, damaged)
    size = header.size - header.start
    return ChunkedFile(path, header.start, size, checksums, damaged)


def check_content(name: str, content: bytes) -> None:
    """Verify the content of a safetensors file with the checksums in its metadata, if any.

    Raises DataError, with `name` in the message, if the content is damaged. Raises ValueError
    if it is not a safetensors file.
    """
    header = parse_header(BytesIO(content), len(content))
    file = checked_file(Path(name), header)
    values = memoryview(content)[header.start :]
    for index, low in enumerate(range(0, len(values), CHUNK)):
        file.check(index, [values[low : low + CHUNK]])


def _checksums_of(
    header: Header, damaged: Callable[[str], PlacerError]
) -> tuple[int, ...] | None:
    text = header.metadata.get(KEY)
    if text is None:
        return None
    chunks = -(-(header.size - header.start) // CHUNK)
    if not _FORM.fullmatch(text) or len(text) != 8 * (1 + chunks):
        raise damaged(f"its metadata '{KEY}' are not valid checksums")
    own, *checksums = (int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    if checksum_of_entries(header.entries) != own:
        raise damaged("the checksum of its header does not match")
    return tuple(checksums)
