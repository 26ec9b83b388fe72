"""Compresses the details of a page, which its script inflates when they are needed."""

from __future__ import annotations

import base64
import gzip

import msgspec

from placer.report.page.facts import Details, Placement
from placer.report.page.picture import column_names


def pack_details(placement: Placement, details: Details) -> str:
    """Return the placement and its details as base64 of compressed JSON.

    Equal facts have equal text. It has no characters that end a script element.
    """
    facts = {
        "columns": column_names(placement),
        "placement": placement,
        "ops": details.ops,
        # A list takes half the space of an object with the names of its fields.
        "layers": [
            [msgspec.structs.astuple(each) for each in box] for box in details.boxes
        ],
        "parameters": details.parameters,
    }
    packed = gzip.compress(msgspec.json.encode(facts), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")
