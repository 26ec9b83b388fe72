"""Where and how wide a node computes: set around a run, back as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from placer.errors import RunError
from placer.plan import Node, Plan


@contextmanager
def on_device(me: Node) -> Iterator[None]:
    """Compute on the device that the plan says; RunError where it is not there.

    A node that computes nothing does without JAX.
    """
    if me.device is None:
        yield
        return
    import jax

    kind, _, number = me.device.partition(":")
    try:
        devices = jax.devices(kind)
    except RuntimeError:
        devices = []
    if int(number) >= len(devices):
        found = dict.fromkeys(device.platform for device in jax.devices())
        raise RunError(
            f"there is no {me.device} here, only {', '.join(found)}",
            hint="run the node on a machine that has it, or place its ops elsewhere",
        )
    with jax.default_device(devices[int(number)]):
        yield


@contextmanager
def in_precision(plan: Plan, me: Node) -> Iterator[None]:
    """With 64-bit types where the plan is of float64."""
    if me.device is not None and plan.precision == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    else:
        yield
