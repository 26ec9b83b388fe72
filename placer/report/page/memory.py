"""The memory of each process, from the plan."""

from __future__ import annotations

from placer.place.node_kinds import CPU
from placer.plan.plan import Plan
from placer.report.page.facts import MemoryRow
from placer.report.summary import process_memory


def memory_rows(plan: Plan) -> tuple[MemoryRow, ...]:
    """Return the memory of each process. Equal processes share a row."""
    return tuple(
        MemoryRow(
            processes=processes,
            parameters=memory.values,
            slots=memory.slots + memory.copies,
            activations=memory.activations,
            flops=memory.flops,
            limit=dict(memory.limits).get(CPU, 0),
            devices={
                name: (peak, limit or 0) for name, peak, limit in memory.limited_peaks
            },
        )
        for processes, memory in process_memory(plan).items()
    )
