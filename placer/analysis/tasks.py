"""What one node does in a step with microbatches: blocks that are run for each of them,
and what comes before, between and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placer.analysis.units import Unit, purpose
from placer.graph.graph import TOGETHER, Graph, Op


@dataclass(slots=True)
class Block:
    """Units that run one after the other: for a microbatch, where they are `repeated`,
    else once. `totals` are what the microbatches have made together that this block is
    the first to take. Among the microbatches a block is of one `level`."""

    repeated: bool
    level: int = 0
    units: list[Unit] = field(default_factory=list)
    totals: list[Op] = field(default_factory=list)
    name: str = ""

    @property
    def ops(self) -> Iterator[Op]:
        return (op for unit in self.units for op in unit.ops)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A node's step: what is run by a schedule, and the blocks around it."""

    before: Block
    among: tuple[Block, ...]
    after: Block


def blocks(graph: Graph, found: Sequence[Unit], *, evaluating: bool = False) -> Blocks:
    """The node's units, of the last pass's graph, in blocks."""
    sequence = _with_totals(graph, _sequence(graph, found))
    repeated = [i for i, block in enumerate(sequence) if block.repeated]
    if not repeated:
        return Blocks(_joined(sequence), (), Block(repeated=False))
    first, last = repeated[0], repeated[-1] + 1
    among = tuple(sequence[first:last])
    counts: Counter[str] = Counter()
    for block in among:
        wish = _purpose(block, evaluating)
        counts[wish] += 1
        block.name = wish if counts[wish] == 1 else f"{wish}_{counts[wish]}"
    return Blocks(_joined(sequence[:first]), among, _joined(sequence[last:]))


def _sequence(graph: Graph, found: Sequence[Unit]) -> list[Block]:
    sequence: list[Block] = []
    for unit in found:
        op = unit.ops[0]
        repeated = graph.is_repeated(op)
        level = op.attrs.get("segment", 0)
        last = sequence[-1] if sequence else None
        if last is None or (last.repeated, last.level) != (repeated, level):
            sequence.append(Block(repeated, level))
        sequence[-1].units.append(unit)
    return sequence


def _with_totals(graph: Graph, sequence: Sequence[Block]) -> list[Block]:
    """The same, in which every block finds what microbatches have made together."""
    made: dict[str, Op] = {}
    found: list[Block] = []
    for block in sequence:
        needed = dict.fromkeys(name for op in block.ops for name in op.operands)
        totals = [made.pop(name) for name in needed if name in made]
        if block.repeated and totals:
            found.append(Block(repeated=False, totals=totals))
        else:
            block.totals = totals
        made.update((op.name, op) for op in block.ops if op.kind in TOGETHER.values())
        found.append(block)
    return found


def _joined(sequence: Sequence[Block]) -> Block:
    """Blocks that are not repeated as one."""
    whole = Block(repeated=False)
    for block in sequence:
        whole.units += block.units
        whole.totals += block.totals
    return whole


def _purpose(block: Block, evaluating: bool) -> str:
    computed = [op for unit in block.units if unit.computed for op in unit.ops]
    if not computed:
        return "exchange" if block.units else "totals"
    return purpose(Unit(tuple(computed), computed=True, once=False), evaluating)
