"""Wherever half floats are added, they are added in float32 and rounded once."""

from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.small_tables import planned

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.ops.special import inserted_jax
from placer.place.layouts.ranges import pack
from placer.plan.plan import Edge, EdgeValue
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import Async
from placer.runtime.asynchronous.peer_gradients import PeerGradients
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.pushed import join_pieces
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.worker_sums import WorkerSums
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.worker_messages import WorkerMessage, header
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.position import Position
from placer.tables.delay_compensation import compensate
from placer.tables.dense import DenseTable

NODES = ("worker:0", "worker:1", "worker:2")
SERVER = ("ps:0",)
SIZE = 6
KEY = Key(1, 1)
LITTLE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""A number that is lost when it is added to 1; twice that number is not."""


def kind_of(dtype):
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def edge_of(parts, layouts, sources=NODES, targets=NODES, number=1, **options):
    flat = pack([SIZE])[0] if "F" in layouts else None
    value = EdgeValue("g", "g", parts[0].dtype.name, (SIZE,), layouts, flat=flat)
    return Edge(number, sources, targets, (value,), 0, **options)


def over_nodes(parts, layouts, factor=1.0, **options):
    """Return the sum of the parts of three nodes, each of which receives it or a part."""
    edge = edge_of(parts, layouts, **options)
    channels = memory_channels(NODES, deadline=30)

    def run(name, part):
        end = Exchange(name, channels[name], {1: edge}, 3)
        end.send(KEY, [part], SIZE)
        keywords = {} if factor == 1 else {"factor": factor}
        return end.receive(KEY, SIZE, **keywords)[0].copy()

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(run, NODES, parts)]
    return found[0] if layouts[1] == "R" else np.concatenate(found)


def merged(parts, merge):
    """Return what a worker sends of three steps that wait while another one is applied."""
    push = edge_of(parts, ("R", "R"), NODES[:1], SERVER, exchange="push")
    pull = edge_of(parts, ("R", "R"), SERVER, NODES[:1], number=2, exchange="pull")
    channels = memory_channels([*SERVER, NODES[0]], deadline=30)
    mode = Async(max_merge=3, merge=merge, queue=3)
    worker = PulledVersions(channels[NODES[0]], pull, push, mode, Order())
    worker.push(1, (1, 1), [parts[0]])
    channels[SERVER[0]].receive(NODES[0], Key(1, 1))
    for step, part in enumerate(parts, 2):
        worker.push(step, (1, 1), [part])
    channels[SERVER[0]].send(NODES[0], Key(2, 1), [header(1, 1, 1), parts[0]])
    _, total = channels[SERVER[0]].receive(NODES[0], Key(1, 2))
    channels[SERVER[0]].send(NODES[0], Key(2, 2), [header(2, 1, 1), parts[0]])
    worker.close()
    return total


def message_of(*parts):
    pieces = tuple(iter([(1, 0, part)]) for part in parts)
    return WorkerMessage(1, NODES[0], 1, step=1, steps=1, parts=pieces)


def at_a_sum_server(parts):
    sums = WorkerSums(edge_of(parts, ("P", "F"), targets=SERVER), *SERVER)
    for part in parts:
        sums.add(message_of(part))
    (total,) = sums.take(NODES[1]).arrays
    return total


def at_a_peer(parts):
    edge = edge_of(parts, ("R", "R"), exchange="push_all")
    channels = memory_channels(NODES, deadline=30)
    for name, part in zip(NODES[1:], parts[1:], strict=True):
        for message in ([header(1, 1, 1, 3), part], [header(3, 1)]):
            key = Key(1, 1 + (message[0][0] == 3))
            channels[name].send(NODES[0], key, message)
    worker = PeerGradients(
        channels[NODES[0]], edge, Async(max_staleness=1, queue=3), Order()
    )
    worker.push(1, (1, 3), [parts[0]])
    worker.drain(1)
    (message,) = worker.take_rest()
    ((_, _, total),) = message.parts[0]
    worker.close()
    return total


def mean_of_a_round(parts):
    value = edge_of(parts, ("R", "R")).values
    (total,) = join_pieces(message_of(*parts), value, parts[0].dtype)
    return total


def over_microbatches(parts, as_array):
    node = Microbatches(
        position=Position(3), turns=("forward.0", "forward.1", "forward.2")
    )
    for part, _ in zip(parts, node.microbatches(), strict=False):
        node.sum_microbatches(g=as_array(part))
    (total,) = node.microbatch_totals("g")
    return total


def in_an_update(parts):
    block = Block("w", "w", 0, SIZE, (SIZE,))
    initial = [np.zeros(SIZE, parts[0].dtype)]
    table = DenseTable(planned([block]), parts[0].dtype.name, initial)
    with table.update_in_chunks(learning_rate=1.0) as update:
        update.apply(0, 0, parts)
    (value,) = table.values()
    return -value


def of_uses(parts):
    return inserted_jax.accumulate(*map(jnp.asarray, parts))


PLACES = {
    "exchange to replicas": lambda p: over_nodes(p, ("P", "R")),
    "exchange to rows": lambda p: over_nodes(p, ("P", "S")),
    "ranges": lambda p: over_nodes(p, ("P", "F")),
    "ring": lambda p: over_nodes(p, ("P", "F"), ring=True),
    "merged steps": lambda p: merged(p, "sum"),
    "sum server": at_a_sum_server,
    "peers": at_a_peer,
    "microbatches": lambda p: over_microbatches(p, lambda part: part),
    "microbatches on devices": lambda p: over_microbatches(p, jnp.asarray),
    "update of a table": in_an_update,
    "several uses of a value": of_uses,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", LITTLE)
def test_sums_of_half_floats_are_rounded_once(dtype, place):
    # In every order, since a ring begins at each node, and a small number may be last.
    for order in {*permutations((1.0, LITTLE[dtype], LITTLE[dtype]))}:
        parts = [np.full(SIZE, value, kind_of(dtype)) for value in order]
        found = np.asarray(PLACES[place](parts))
        assert found.dtype.name == dtype
        np.testing.assert_array_equal(
            found.astype(np.float32), np.full(SIZE, 1 + 2 * LITTLE[dtype]), str(order)
        )


SCALED = {
    "mean of merged steps": (lambda p: merged(p, "mean"), 1 / 3),
    "mean of a round": (mean_of_a_round, 1 / 3),
    "first workers": (lambda p: over_nodes(p, ("P", "R"), factor=4 / 3), 4 / 3),
}


@pytest.mark.parametrize("place", SCALED)
@pytest.mark.parametrize("dtype", LITTLE)
def test_scaled_sums_of_half_floats_are_rounded_once(dtype, place):
    scaled, factor = SCALED[place]
    kind = kind_of(dtype)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        parts = [rng.normal(size=SIZE).astype(kind) for _ in NODES]
        exact = sum(part.astype(np.float64) for part in parts) * factor
        np.testing.assert_array_equal(scaled(parts), exact.astype(kind))


@pytest.mark.parametrize("dtype", LITTLE)
def test_corrected_and_shared_gradients_of_half_floats_are_rounded_once(dtype):
    kind = kind_of(dtype)
    rng = np.random.default_rng(0)
    gradient, now, base = (rng.normal(size=64).astype(kind) for _ in range(3))
    wide = [each.astype(np.float64) for each in (gradient, now, base)]
    found = compensate(gradient, now, base, 0.3)
    np.testing.assert_array_equal(
        found, (wide[0] + 0.3 * wide[0] ** 2 * (wide[1] - wide[2])).astype(kind)
    )
    shared = inserted_jax.row_share(jnp.asarray(gradient), share=1 / 3)
    np.testing.assert_array_equal(np.asarray(shared), (wide[0] / 3).astype(kind))
    estimate = inserted_jax.row_estimate(jnp.asarray(gradient), share=1 / 3)
    np.testing.assert_array_equal(np.asarray(estimate), (wide[0] * 3).astype(kind))
