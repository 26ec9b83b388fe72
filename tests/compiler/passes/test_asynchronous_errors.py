"""Models that do not support asynchronous training: the complete messages."""

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.errors import GraphError

SYNC = "use 'update: sync' for all optimizers"
FOUR = "{worker: {count: 4}, ps: {count: 2}}"
HETER = "{worker: {count: 2}, heter: {count: 2}, ps: {count: 2}}"
GPUS = "{worker: {count: 2}, ps: {count: 2, devices: {cpu: 1, gpu: 1}}}"

BOUNDED = "{async: {max_staleness: 4}}"
SUM = ", sum: /node:ps"


def model(update="async", *, rule="sgd", place="/node:ps/cpu", more="", **rest):
    settings = f"learning_rate: 0.1, place: {place}, update: {update}"
    return two_layers(optimizer=f"{{op: {rule}, {settings}{more}}}", **rest)


def groups(*updates, train=""):
    """Return a model with one optimizer for the first layer and one for the second."""
    first, second = (
        f"{{op: sgd, learning_rate: 0.1, place: /node:ps/cpu, update: {update}, "
        for update in updates
    )
    optimizers = f"[{first}match: 'h.*'}},\n    {second}match: 'out.*'}}]"
    return two_layers(optimizer=optimizers, train=train)


def minimizing(*ops):
    """Return a model that minimizes the result of the last of these ops."""
    extra = "\n".join(f"  - {{{op}}}" for op in ops)
    last = ops[-1].partition(",")[0].removeprefix("name: ")
    return model(extra=extra).replace("minimize: loss", f"minimize: {last}")


REFUSED = {
    "a batch_norm over the batch": (
        model().replace(
            "  - {name: out, op: fc, in: h,",
            "  - {name: bn, op: batch_norm, in: h}\n  - {name: out, op: fc, in: bn,",
        ),
        "11:12: 'bn' needs 'bn.mean' over the rows of all workers, so workers"
        " cannot be asynchronous",
        f"scope: replica, or {SYNC}",
    ),
    "the root of a sum over rows": (
        minimizing("name: root, op: sqrt, in: loss"),
        "13:12: 'root' needs 'loss' over the rows of all workers, so workers cannot"
        " be asynchronous",
        f"minimize 'loss' itself, or {SYNC}",
    ),
    "a softmax over the batch": (
        minimizing(
            "name: s, op: softmax, in: out, axis: 0", "name: m, op: reduce_mean, in: s"
        ),
        "13:12: 's' needs the rows of 'out' of all workers, so workers cannot be asynchronous",
        SYNC,
    ),
    "a layer on some of the workers": (
        model(nodes=FOUR, second="/node:worker:2-3/cpu"),
        "11:12: gradients are computed at /node:worker/cpu and at"
        " /node:worker:2-3/cpu, but each asynchronous worker must compute all of"
        " them",
        f"place: /node:worker for all layers, or {SYNC}",
    ),
    "the first layer on one of the workers": (
        model(first="/node:worker:0/cpu"),
        "10:12: gradients are computed at /node:worker/cpu and at"
        " /node:worker:0/cpu, but each asynchronous worker must compute all of them",
        f"place: /node:worker for all layers, or {SYNC}",
    ),
    "the first layer on one of the workers with a backup": (
        model("{sync: {backup: 1}}", first="/node:worker:0/cpu"),
        "10:12: gradients are computed at /node:worker/cpu and at"
        " /node:worker:0/cpu, but each asynchronous worker must compute all of them",
        f"place: /node:worker for all layers, or {SYNC}",
    ),
    "the second layer on one of the workers with a backup": (
        model("{sync: {backup: 1}}", second="/node:worker:0/cpu"),
        "11:12: gradients are computed at /node:worker/cpu and at"
        " /node:worker:0/cpu, but each asynchronous worker must compute all of them",
        f"place: /node:worker for all layers, or {SYNC}",
    ),
    "all layers on one of the workers with a backup": (
        model(
            "{sync: {backup: 1}}",
            first="/node:worker:0/cpu",
            second="/node:worker:0/cpu",
        ),
        "10:12: gradients are computed at /node:worker:0/cpu, but a step with"
        " backup workers needs every worker to compute gradients",
        f"place: /node:worker for all layers, or {SYNC}",
    ),
    "a layer on a server": (
        model(second="/node:ps:0/cpu", train="  slicing: {min_block: 8}"),
        "11:12: 'out.w' is used at /node:ps:0/cpu, but its optimizer has 'update:"
        " async'",
        "place the ops that use it on workers, or use 'update: sync'",
    ),
    "some of the heter nodes": (
        model(nodes=HETER.replace("2", "4", 1), second="/node:heter:1/cpu"),
        "11:12: each of the 4 asynchronous workers needs its own heter node or"
        " heter thread, but /node:heter:1/cpu has 2",
        "place: /node:heter, with 4 such nodes or threads, or use 'update: sync'"
        " for all optimizers",
    ),
    "a heter node for two workers": (
        model(
            nodes=HETER.replace("heter: {count: 2}", "heter: {count: 3}"),
            first="/node:heter:0-1/cpu",
            second="/node:heter:1-2/cpu",
        ),
        "11:12: heter:1 computes for worker:1, but at /node:heter:1-2/cpu for"
        " worker:0: an asynchronous heter node serves one worker",
        "use the same heter nodes in the same order, or 'update: sync' for all optimizers",
    ),
    "a parameter of workers and of heter nodes": (
        minimizing(
            "name: again, op: matmul, in: [x, h.w], place: /node:heter",
            "name: mean, op: reduce_mean, in: again",
            "name: total, op: add, in: [loss, mean], place: /node:worker",
        ).replace("ps: {count: 2}", "heter: {count: 2}, ps: {count: 2}"),
        "13:12: 'h.w' is used at /node:worker/cpu and at /node:heter/cpu, but only"
        " one kind of node can train it asynchronously",
        "place the ops that use it on workers, or all on heter nodes, or use 'update: sync'",
    ),
    "one norm over workers and heter nodes": (
        model(nodes=HETER, second="/node:heter", more=", clip: {global_norm: 1.0}"),
        "19:15: 'global_norm' covers gradients computed at /node:worker/cpu and at"
        " /node:heter/cpu, but asynchronous nodes clip their own gradients only",
        "use separate optimizers for the parameters of workers and of heter nodes,"
        " or clip by 'norm' or 'value'",
    ),
    "a heter node with backup workers": (
        model("{sync: {backup: 1}}", nodes=HETER, second="/node:heter"),
        "11:12: 'out.w' is used at /node:heter/cpu, but a step with backup workers"
        " uses only the gradients of the fastest workers",
        "place the op on workers, or use 'update: sync'",
    ),
    "layers on servers with backup workers": (
        model(
            "{sync: {backup: 1}}",
            first="/node:ps",
            second="/node:ps",
        ).replace("in: [out, y]", "in: [out, y], place: '/node:ps'"),
        "10:12: 'h.w' is used at /node:ps:0/cpu, but a step with backup workers"
        " uses only the gradients of the fastest workers",
        "place the op on workers, or use 'update: sync'",
    ),
    "a heter node with values of each worker": (
        model("{geo: {every: 2}}", nodes=HETER, second="/node:heter"),
        "11:12: 'out' at /node:heter/cpu uses 'out.w', but its optimizer has"
        " 'update: geo'",
        "place the op on workers, or use 'update: sync'",
    ),
    "a heter node with workers that update": (
        model(BOUNDED, place="/node:worker/cpu", nodes=HETER, second="/node:heter"),
        "11:12: 'out' at /node:heter/cpu uses 'out.w', but its optimizer at"
        " /node:worker/cpu has 'update: async'",
        "place the op on the same workers, or use 'update: sync'",
    ),
    "workers that nobody bounds": (
        model(place="/node:worker/cpu"),
        "19:15: without a server, fast workers queue gradients at slow ones: set"
        " 'max_staleness' to bound the queue",
        "update: {async: {max_staleness: 4}}",
    ),
    "a merge without a server to wait for": (
        model("{async: {max_staleness: 4, max_merge: 2}}", place="/node:worker/cpu"),
        "19:15: 'max_merge' works only with gradients that are sent to a server",
        "leave 'max_merge' out",
    ),
    "a scale for a worker that updates": (
        model("{async: {staleness_scale: true}}", place="/node:worker/cpu", more=SUM),
        "19:15: 'staleness_scale' works only with updates on servers, not on workers",
        "leave this setting out",
    ),
    "a correction for a worker that updates": (
        model("{async: {compensate: 0.04}}", place="/node:worker/cpu", more=SUM),
        "19:15: 'compensate' works only with updates on servers, not on workers",
        "leave this setting out",
    ),
    "parameters in ranges": (
        model(BOUNDED, place="/node:worker/cpu", more=", shard_state: true"),
        "19:15: 'shard_state' needs all workers in each step, but 'update: async'"
        " is asynchronous",
        "leave shard_state out, or use 'update: sync'",
    ),
    "a layer on other nodes than an optimizer": (
        model(BOUNDED, place="/node:worker:0-1/cpu", nodes=FOUR),
        "10:12: 'h' at /node:worker/cpu uses 'h.w', but its optimizer at"
        " /node:worker:0-1/cpu has 'update: async'",
        "place the op on the same workers, or use 'update: sync'",
    ),
    "a layer on a server, and an optimizer on workers": (
        model(BOUNDED, place="/node:worker/cpu", second="/node:ps:0/cpu"),
        "11:12: 'out' at /node:ps:0/cpu uses 'out.w', but its optimizer at"
        " /node:worker/cpu has 'update: async'",
        "place the op on the same workers, or use 'update: sync'",
    ),
    "rows of other workers, and an optimizer on workers": (
        model(BOUNDED, place="/node:worker/cpu").replace(
            "  - {name: out, op: fc, in: h,",
            "  - {name: bn, op: batch_norm, in: h}\n  - {name: out, op: fc, in: bn,",
        ),
        "11:12: 'bn' needs 'bn.mean' over the rows of all workers, so workers"
        " cannot be asynchronous",
        f"scope: replica, or {SYNC}",
    ),
    "one norm over two groups": (
        groups("sync", "async", train="  clip: {global_norm: 1.0}"),
        "20:6: train.clip is one norm over 2 optimizers, which needs synchronous"
        " workers, not 'update: async' of 'out.w' and 1 more",
        "give each optimizer its own clip, or use 'update: sync' for all",
    ),
    "slices of all parameters for a rule that needs norms": (
        model(rule="lamb", train="  slicing: {dispatch: merged}"),
        "19:15: 'update: async' with lamb keeps each parameter on one server, but"
        " 'dispatch: merged' slices all parameters as one",
        "use dispatch: balanced",
    ),
    "a correction of gradients on a device": (
        model("{async: {compensate: 0.04}}", place="/node:ps/gpu", nodes=GPUS),
        "19:15: 'compensate' needs the optimizer in host memory, which stores the"
        " parameters that each worker pulled, not at /node:ps/gpu",
        "place: /node:ps/cpu",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_model_that_needs_synchronous_workers_is_refused(mistake):
    text, message, hint = REFUSED[mistake]
    with pytest.raises(GraphError) as caught:
        lower_model(load_model(text))
    error = caught.value
    assert f"{error.span.line}:{error.span.column}: {error.message}" == message
    assert error.hint == hint
    assert error.span.text == text.splitlines()[error.span.line - 1]


def test_parameters_of_two_phase_rules_are_whole_and_balanced_by_size():
    nodes = "{worker: {count: 2}, ps: {count: 3}}"
    train = "  slicing: {min_block: 8}"
    step, *_ = lower_model(
        load_model(model("half_async", rule="lars", nodes=nodes, train=train))
    )
    places = {op.name: str(op.place) for op in step.parameters}
    assert places == {
        "h.w": "/node:ps:0/cpu",
        "out.w": "/node:ps:1/cpu",
        "h.b": "/node:ps:2/cpu",
        "out.b": "/node:ps:2/cpu",
    }
