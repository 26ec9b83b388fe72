"""Checks the names of images, labels, resources and other objects as Kubernetes does.

Kubernetes itself checks a pod template only when it creates the pod, and an image name on
the machine of the pod. Both errors come after the submission.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HOST: Final = rf"{_PART}(\.{_PART})*"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_OBJECT: Final = re.compile(rf"(?=.{{1,253}}$){_HOST}")
_QUALIFIED: Final = re.compile(rf"(?:(?=[^/]{{1,253}}/)(?P<prefix>{_HOST})/)?{_NAME}")
_VALUE: Final = re.compile(f"({_NAME})?")

# The grammar of the package `reference` of github.com/distribution. A registry may have
# capital letters. The path after it may not, and has at most 255 characters.
_DOMAIN: Final = "[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
_IMAGE: Final = re.compile(
    rf"(({_DOMAIN}(\.{_DOMAIN})*|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?"
    r"(?P<path>[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?"
    r"(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,128})?"
)


def is_image(text: str) -> bool:
    """Return True if a text is a valid image name.

    >>> is_image("registry.example:5000/team/placer:1.2"), is_image("placer:")
    (True, False)
    """
    found = _IMAGE.fullmatch(text)
    return found is not None and len(found["path"]) <= 255


def is_object(text: str) -> bool:
    """Return True for a valid name of an object, such as a claim or a service account."""
    return _OBJECT.fullmatch(text) is not None


def is_label(name: str, value: str) -> bool:
    """Return True for a valid label.

    >>> is_label("kueue.x-k8s.io/queue-name", "team"), is_label("queue name", "team")
    (True, False)
    """
    return bool(_QUALIFIED.fullmatch(name) and _VALUE.fullmatch(value))


def is_resource(text: str) -> bool:
    """Return True for a valid name of a resource that a cluster adds, such as
    nvidia.com/gpu."""
    found = _QUALIFIED.fullmatch(text)
    return found is not None and found["prefix"] is not None
