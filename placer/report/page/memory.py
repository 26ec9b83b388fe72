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
            slots=memory.slots,
            activations=memory.activations,
            flops=memory.flops,
            limit=memory.limit or 0,
            devices={
                name: (peak, memory.limit or 0 if _is_host(name) else 0)
                for name, peak in memory.peaks
            },
        )
        for processes, memory in process_memory(plan).items()
    )


def _is_host(device: str) -> bool:
    return device.partition(":")[0] == CPU
