"""The warm-up: no call of a program has an effect, and nothing is left to compile."""

import re
from pathlib import Path

import jax.monitoring
from support.sparse_specs import write_sparse_spec

import placer
from placer.compiler.emit.names import STATIC_ARGUMENTS
from placer.runtime.control.events import State
from placer.runtime.control.options import Options
from placer.runtime.node.dry_node import DryNode
from placer.runtime.node.node import Node
from placer.runtime.process.threads import run_in_threads
from placer.runtime.timeline.traced_node import methods

WITHOUT_EFFECT = """parameters evaluation_parameters memcpy_h2d memcpy_d2d memcpy_d2h cut
    send_and_recv microbatches keep_values load_values pop_values sum_microbatches
    join_microbatches one_microbatch microbatch_totals split_microbatches
    first_microbatch distinct_keys sum_by_key exact_squares rounded_sum"""
"""The calls that a dry node makes as any other: they change the node's own attributes at
most, or call others."""


def test_a_dry_node_has_every_call_of_a_program() -> None:
    """A call is either dry or without an effect; a new one has to be added to either."""
    harmless = set(WITHOUT_EFFECT.split())
    dry = {name for name in vars(DryNode) if not name.startswith("_")}
    assert methods() - harmless <= dry
    assert harmless <= methods() - dry
    # What the emitter writes, but for names that it puts together.
    texts = (
        path.read_text()
        for path in (Path(placer.__file__).parent / "compiler" / "emit").iterdir()
        if path.suffix == ".py"
    )
    emitted = set(re.findall(r"[\"'` ]node\.([a-z_0-9]+)", "".join(texts)))
    assert {"read", "update_from"} <= emitted & methods() <= dry | harmless
    for name in STATIC_ARGUMENTS:
        assert isinstance(getattr(Node, name), property)


def test_no_step_compiles_anything(tmp_path: Path) -> None:
    """Steps that pull parameters and rows, the updates of a server, and evaluations."""
    optimizer = {"op": "adagrad", "learning_rate": 0.1, "place": "/node:ps/cpu"}
    file = write_sparse_spec(
        tmp_path, servers=1, optimizer={**optimizer, "update": "async"}
    )
    placer.compile(file, tmp_path / "build")
    compiled: list[str] = []
    before: list[int] = []

    def note(event: str, seconds: float, **others: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(others))

    def watch(event: object) -> None:
        if isinstance(event, State) and event.state == "running":
            before.append(len(compiled))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        run_in_threads(tmp_path / "build", Options(steps=3), watch=watch)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert 0 < before[0] == len(compiled), compiled[before[0] :]
