"""The sentence about a step, and advice where the figures of a trace say so."""

import msgspec
import pytest
from support.drawn_traces import DrawnTrace

from placer.compiler.driver import compile_in_memory
from placer.compiler.graph.text import parse_graphs
from placer.report.numbers import format_size
from placer.report.step.step_time import step_time
from placer.system.resources import find_file


def compiled(name, **options):
    build = compile_in_memory(find_file(f"specs/{name}.yaml"), **options)
    return build.plan, parse_graphs(build.files["graph.txt"].decode(), "graph.txt")[0]


@pytest.fixture(scope="module")
def synchronous():
    return compiled("digits", nodes={"worker": 4})


@pytest.fixture(scope="module")
def pipeline():
    return compiled("mlp_pipeline")


def drawn_step(*slices, end=100, nodes=("worker:0", "worker:1", "worker:2", "ps:0")):
    drawn = DrawnTrace(nodes=nodes)
    for node in nodes:
        if node.startswith("worker"):
            drawn.add(node, "step", "step 1", 0, end if node == "worker:0" else end - 1)
    for each in slices:
        drawn.add(*each)
    return drawn


def found_in(drawn, folder, build):
    plan, graph = build
    return step_time(drawn.read(folder, plan), plan, graph)


def test_the_sentence_names_the_longest_items_first(tmp_path, synchronous):
    works = [
        ("worker:0", "compute", name, start, end)
        for name, start, end in (
            ("a", 0, 3),
            ("b", 3, 33),
            ("c", 33, 36),
            ("d", 36, 56),
            ("b", 56, 70),
            ("e", 70, 71),
            ("f", 71, 90),
        )
    ]
    found = found_in(drawn_step(*works), tmp_path, synchronous)
    assert found.sentence == (
        "A step takes 100 ms (step 1). Its longest chain: computing 90% and other work 10%."
        " Its longest parts: b on worker:0 44.0 ms, d on worker:0 20.0 ms, f on worker:0"
        " 19.0 ms, other work on worker:0 10.0 ms, a on worker:0 3.0 ms, and 4.0 ms in other"
        " parts."
    )


def test_many_short_parts_are_added_by_kind_and_node(tmp_path, synchronous):
    works = [
        ("worker:0", "update" if at % 3 else "compute", f"f{at}", 4 * at, 4 * at + 4)
        for at in range(25)
    ]
    found = found_in(drawn_step(*works), tmp_path, synchronous)
    assert (
        "Its longest parts: updates and lookups on worker:0 64.0 ms and computing on"
        " worker:0 36.0 ms." in found.sentence
    )


def test_the_sentence_says_how_wrong_clocks_may_be(tmp_path, synchronous):
    drawn = drawn_step()
    drawn.about["clock uncertainty in microseconds"] = {"worker:1": 7000.0}
    found = found_in(drawn, tmp_path, synchronous)
    assert found.sentence.endswith(
        "Times on different machines may be wrong by up to 7.0 ms."
    )


def test_a_balanced_step_gets_no_advice(tmp_path, synchronous):
    works = [(f"worker:{n}", "compute", "forward_backward", 0, 95) for n in range(3)]
    assert found_in(drawn_step(*works), tmp_path, synchronous).advice == ()


def test_a_straggler_is_named_with_its_excess(tmp_path, synchronous):
    drawn = drawn_step(end=90)
    for number, end in enumerate((90, 30, 40)):
        node = f"worker:{number}"
        drawn.add(node, "compute", "forward_backward", 0, end)
        drawn.add(node, "wait", "wait for ps:0", end, 90)
    (advice,) = found_in(drawn, tmp_path, synchronous).advice
    assert advice == (
        "worker:0 works 90.0 ms in a step, and its peers 35.0 ms. The difference is mostly"
        " computing. Run fewer other processes on its machine, or use a faster machine."
        " If each run has a different slow worker, set the optimizer's update:"
        " {sync: {backup: 1}}."
    )


def test_a_slow_source_is_named(tmp_path, synchronous):
    works = [(f"worker:{n}", "read", "read", 0, 60) for n in range(3)]
    (advice,) = found_in(drawn_step(*works), tmp_path, synchronous).advice
    assert advice.startswith(
        "Reading rows takes 60.0 ms of a step of 100 ms, mostly on worker:0"
    )
    assert "data.train" in advice


def with_server(updates):
    """A step in which a worker waits for a server; another server updates, too."""
    drawn = drawn_step(nodes=("worker:0", "ps:0", "ps:1"))
    drawn.add("worker:0", "wait", "wait for ps:0", 1, 80)
    drawn.send("ps:0", "worker:0", "w", (75, 76), (80, 82))
    for node, (start, end) in updates.items():
        drawn.add(node, "step", "step 1", 0, 99)
        drawn.add(node, "update", "update dense", start, end)
    return drawn


def test_busy_servers_need_more_servers(tmp_path, synchronous):
    drawn = with_server({"ps:0": (5, 75), "ps:1": (5, 70)})
    (advice,) = found_in(drawn, tmp_path, synchronous).advice
    assert advice == (
        "Updates and lookups on ps:0 take 70.0 ms of a step of 100 ms. Use more than"
        " 2 servers (nodes.ps.count)."
    )


def test_one_busy_server_needs_smaller_parameters(tmp_path, synchronous):
    drawn = with_server({"ps:0": (5, 75), "ps:1": (5, 15)})
    (advice,) = found_in(drawn, tmp_path, synchronous).advice
    assert (
        "ps:0 spends 71% of its time on them, and other servers spend at most 10%."
        in advice
    )
    assert "train.slicing" in advice


CLOCKS = {"clock uncertainty in microseconds": {"worker:0": 1.0}}
"""The heading of a trace of several machines."""
LARGER = "Use a larger batch (data.train.batch; it changes the training)"


@pytest.mark.parametrize(
    ("about", "workers", "nbytes", "rest"),
    [
        (
            {},
            4,
            10**7,
            " The nodes wait for the cores of their machine, or for each other."
            f" {LARGER}, fewer workers (nodes.worker.count), or more cores.",
        ),
        ({}, 4, 10**8, f" {LARGER}, or fewer workers (nodes.worker.count)."),
        (
            CLOCKS,
            1,
            100,
            " The nodes share too few cores, a node receives late, or the network has a"
            f" high latency. {LARGER}, or more cores.",
        ),
        (CLOCKS, 1, 10**7, f" {LARGER}, or a faster network."),
    ],
)
def test_advice_about_messages_fits_the_machines_and_the_workers(
    tmp_path, about, workers, nbytes, rest
):
    drawn = drawn_step(nodes=("worker:0", "ps:0"))
    drawn.about.update(about)
    drawn.add("worker:0", "wait", "wait for ps:0", 1, 80)
    drawn.send("ps:0", "worker:0", "w", (5, 6), (80, 90), nbytes)
    build = compiled("digits", nodes={"worker": workers})
    (advice,) = found_in(drawn, tmp_path, build).advice
    assert advice == (
        f"Messages of {format_size(nbytes)} take 85.0 ms of the longest chain, and"
        f" computing takes 0 ms.{rest}"
    )


def equal_steps(*reads, kind="read"):
    """Steps of 50 ms. Each first reads for a time in milliseconds, then computes."""
    drawn = DrawnTrace(nodes=("worker:0",))
    for number, read in enumerate(reads):
        begin, end = 100 * number, 100 * number + 50
        drawn.add("worker:0", "step", f"step {number + 1}", begin, end)
        if read:
            drawn.add("worker:0", kind, "read", begin, begin + read)
        if read < 50:
            drawn.add("worker:0", "compute", "forward_backward", begin + read, end)
    return drawn


def test_a_single_slow_step_gives_no_advice(tmp_path, synchronous):
    found = found_in(equal_steps(*[0] * 7, 50, *[0] * 7), tmp_path, synchronous)
    assert (found.step, found.chain[0].name) == (8, "read")
    assert found.sentence == (
        "A step takes 50.0 ms (step 8, the median of 15). Its longest chain, as the mean of"
        " 5 steps of 50.0 to 50.0 ms: computing 80 ± 45% and reading 20 ± 45%. Its longest"
        " parts: forward_backward on worker:0 40.0 ± 22.4 ms and reading rows on worker:0"
        " 10.0 ± 22.4 ms."
    )
    assert found.advice == ()


def test_parts_within_their_spread_are_about_equal(tmp_path, synchronous):
    reads = [0, 0, 0, 20, 25, 33, 0, 0, 0]
    found = found_in(equal_steps(*reads), tmp_path, synchronous)
    assert "Reading and computing are about equal." in found.sentence
    assert found.sentence.endswith("The first 2 parts are about equal.")
    drawn = equal_steps(*reads, kind="update")
    (reason,) = found_in(drawn, tmp_path, synchronous).advice
    assert reason == (
        "No advice: updates and lookups on servers take less than 40% of the chain, or of"
        " the time of the servers, and the largest kinds of work are about equal. Trace"
        " again while no other programs use the cores."
    )


def test_many_small_buckets_need_a_larger_cap(tmp_path, synchronous):
    plan, graph = synchronous
    edge = next(edge for edge in plan.step_edges if "worker:0" in edge.sources)
    small = msgspec.structs.replace(
        edge, sources=("worker:0",), targets=("ps:0",), nbytes=4000
    )
    edges = tuple(msgspec.structs.replace(small, id=n, bucket=n) for n in range(1, 10))
    plan = msgspec.structs.replace(plan, step_edges=edges)
    drawn = drawn_step(nodes=("worker:0", "ps:0"))
    drawn.add("worker:0", "compute", "forward_backward", 0, 50)
    for number in range(9):
        at = 50 + 5 * number
        drawn.send("worker:0", "ps:0", f"g{number}", (at, at + 4), (at + 5, at + 6))
    (advice,) = found_in(drawn, tmp_path, (plan, graph)).advice
    assert advice == (
        "A worker sends its gradients in 9 buckets of 4.0 kB, and messages take 36.0 ms of"
        " the longest chain. Raise train.bucket_cap_mb."
    )


def pipeline_step(task, overhead):
    """A step of eight microbatches on one thread after the other, in milliseconds."""
    drawn = DrawnTrace(nodes=("worker:0", "worker:1"))
    at = 0.0
    for number in range(8):
        for node, name in (("worker:0", "forward"), ("worker:1", "forward_backward")):
            drawn.add(node, "step", f"{name}.{number}", at, at + task + overhead)
            drawn.add(node, "compute", name, at, at + task)
        at += task + overhead
    for node in drawn.nodes:
        drawn.add(node, "step", "step 1", 0, at)
    return drawn


def test_much_work_per_microbatch_needs_fewer_of_them(tmp_path, pipeline):
    (advice,) = found_in(pipeline_step(2, 6), tmp_path, pipeline).advice
    assert advice.startswith(
        "In the declared schedule, nodes compute for 86% of a step; in the trace, they"
        " compute for 25%. Work besides computing grows with the number of microbatches,"
        " and takes 48.0 ms of the longest chain. Set train.microbatches to 2 instead of 8"
    )


def test_little_work_per_microbatch_leaves_them_as_they_are(tmp_path, pipeline):
    assert found_in(pipeline_step(8, 0.2), tmp_path, pipeline).advice == ()
