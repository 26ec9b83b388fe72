"""All attributes of ops, schedules and initializers, and what makes each of them an error.

As in `test_settings_without_effect.py`, an entry is a spec that is refused, or says why the
attribute always has an effect. What depends on the shapes of operands alone is allowed: a
shape may change, and the attributes stay.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.refusals import (
    Entry,
    Refused,
    check_refused,
    embedding,
    keyed,
    op,
    op_of,
    optimizer,
    parameters,
    params_of,
)

from placer.compiler.frontend import load_text
from placer.compiler.frontend.entries.op_kinds import op_kinds
from placer.plan.settings.training import initializers, schedules

_ALONE = "it changes the result, whatever the other attributes are"
_SIZE = "`same` states the size of the result, also where a window needs no padding"
_FROZEN = "frozen statistics do not use it: parameters may be frozen alone"
_WIDE = "the dtype of the result; `precision: float64` widens it, and may change alone"
_KEPT = op("op: reduce_sum, axis: [], keepdims: true", "'keepdims' has no effect")


def alone(attributes: str, **others: Entry) -> dict[str, Entry]:
    return {**dict.fromkeys(attributes.split(), _ALONE), **others}


def convolution(kind: str) -> dict[str, Entry]:
    """The attributes of a convolution."""
    depthwise, sequence = kind.startswith("depthwise"), "1d" in kind
    filters = "multiplier" if depthwise else "filters"
    shape = "float32[batch, 9, 2]" if sequence else "float32[batch, 9, 9, 2]"
    keys = f"op: {kind}, in: v, {filters}: 2"
    says = "has 'dilation' for a window of one element"
    dilated = [op_of(f"v: {shape}", f"{keys}, kernel_size: 1, dilation: 2", says)]
    if not sequence:
        sizes = "kernel_size: [3, 1], dilation: [1, 2]"
        dilated.append(op_of(f"v: {shape}", f"{keys}, {sizes}", says))
    return alone(
        f"{filters} kernel_size strides bias activation"
        + ("" if depthwise else " groups"),
        padding=_SIZE,
        dilation=tuple(dilated),
    )


def decided(kind: str) -> dict[str, Entry]:
    """The attributes of a metric of decisions: with a class, the largest logit decides."""
    keys = f"in: [h, l], op: {kind}, class_id: 1"
    says = "takes neither threshold nor logits"
    return alone(
        "class_id",
        threshold=op_of("l: int32[batch]", f"{keys}, threshold: 0.3", says),
        logits=op_of("l: int32[batch]", f"{keys}, logits: true", says),
    )


def sliced(key: str) -> Refused:
    return op(f"op: slice, axis: [], {key}: 2", f"so '{key}' has no effect")


ATTRIBUTES: Mapping[str, Mapping[str, Entry]] = {
    "fc": alone("size bias activation transpose_w"),
    "matmul": alone("transpose_a transpose_b"),
    **{
        kind: convolution(kind)
        for kind in (
            *("conv1d", "conv2d", "depthwise_conv2d"),
            *("conv1d_transpose", "conv2d_transpose"),
        )
    },
    **{
        f"{kind}_pool{dims}d": alone("pool_size strides", padding=_SIZE)
        for kind in ("max", "avg")
        for dims in (1, 2)
    },
    **{f"adaptive_{kind}_pool2d": alone("output_size") for kind in ("max", "avg")},
    **{
        kind: alone(
            attributes,
            bias=op(f"op: {kind}, affine: false, bias: false", "'bias' has no effect"),
        )
        for kind, attributes in {
            "layer_norm": "axis epsilon affine",
            "group_norm": "groups epsilon affine",
        }.items()
    },
    "rms_norm": alone("axis epsilon affine"),
    "batch_norm": alone("epsilon", momentum=_FROZEN, scope=_FROZEN),
    "embedding": {
        **alone("size combiner padding sparse", dtype=_WIDE),
        **{
            key: embedding(
                f"size: [10, 4], {key}: {value}", f"'{key}', which needs sparse: true"
            )
            for key, value in {
                "dim": "4",
                "partitions": "8",
                "admit": "{count: 2}",
                "score": "{show: 1}",
                "capacity": "1000",
                "index": "compact",
                "bounds": "[-1.0, 1.0]",
            }.items()
        },
        "rows": (
            embedding("size: [10, 4], rows: 5", "has 'rows', which needs sparse: true"),
            embedding("sparse: true, size: [9, 4], rows: 5", "a size of 9 rows"),
        ),
        "default": (
            embedding(
                "size: [10, 4], default: 1.0", "has 'default', which needs sparse: true"
            ),
            keyed("default: 1.0", "'default' has no effect"),
        ),
        "forget": keyed("forget: {every: 10}", "'forget' has no effect"),
        "evict": keyed("evict: lfu", "but no 'capacity'"),
    },
    "positional_encoding": alone("base"),
    "simple_rnn": alone("size bias activation reverse"),
    "gru": alone("size bias reverse"),
    "lstm": alone("size bias forget_bias reverse"),
    "attention": alone("heads causal scale"),
    "multi_head_attention": alone("heads size bias causal"),
    "scale": alone("factor bias"),
    "pow": alone("exponent"),
    "clip": alone("min max"),
    "cast": {"dtype": _WIDE},
    "leaky_relu": alone("negative_slope"),
    "elu": alone("alpha"),
    "gelu": alone("approximate"),
    **dict.fromkeys(("softmax", "log_softmax", "flatten", "concat"), alone("axis")),
    **dict.fromkeys(("squeeze", "expand_dims", "gather"), alone("axis")),
    "take_along_axis": alone("axis"),
    "reshape": alone("shape"),
    "tile": alone("repeats"),
    "transpose": alone("perm"),
    "split": alone("sections axis"),
    "slice": {
        **alone("axis"),
        **{key: sliced(key) for key in ("start", "stop", "step")},
    },
    "pad": alone(
        "paddings",
        value=(
            op(
                "op: pad, paddings: [[0, 0], [1, 1]], mode: reflect, value: 3.0",
                "'value' has no effect",
            ),
            op(
                "op: pad, paddings: [[0, 0], [0, 0]], value: 3.0",
                "'value' has no effect",
            ),
        ),
        mode=op(
            "op: pad, paddings: [[0, 0], [0, 0]], mode: edge", "'mode' has no effect"
        ),
    ),
    "one_hot": alone("classes", dtype=_WIDE),
    "top_k": alone("k"),
    **dict.fromkeys(("argmax", "argmin"), alone("axis keepdims")),
    **{
        f"reduce_{kind}": alone("axis", keepdims=_KEPT)
        for kind in ("sum", "mean", "max", "min")
    },
    "cumsum": alone("axis reverse exclusive"),
    "einsum": alone("equation"),
    "softmax_cross_entropy": alone("reduce label_smoothing class_weights"),
    "sigmoid_cross_entropy": alone("reduce label_smoothing positive_weight"),
    **dict.fromkeys(
        ("hinge", "mean_squared_error", "l1_loss", "kl_div"), alone("reduce")
    ),
    "huber": alone("reduce delta"),
    "cosine_similarity": alone("axis epsilon"),
    "top_k_accuracy": alone("k"),
    **{kind: decided(kind) for kind in ("precision", "recall", "f1")},
    "auc": alone("bins logits"),
    "metric": alone("fn"),
    "constant": alone("value shape", dtype=_WIDE),
    "dropout": alone("rate"),
    **dict.fromkeys(
        ("nce", "sampled_softmax"),
        alone("classes num_sampled sampler remove_accidental_hits reduce"),
    ),
}
"""By kind of op; a kind without attributes is not in it."""


def rate(schedule: str, says: str) -> Refused:
    """A schedule; the first rate of an entry is not read."""
    refused = optimizer("learning_rate: SCHEDULE", says)
    return Refused(
        refused.text.replace("learning_rate: 0.1, ", "").replace("SCHEDULE", schedule),
        says,
    )


def stairs(kind: str) -> Refused:
    body = "init: 0.1, rate: 0.5, steps: 1, staircase: true"
    return rate(f"{{{kind}: {{{body}}}}}", "'staircase' has no effect")


SCHEDULES: Mapping[str, Mapping[str, Entry]] = {
    **{
        kind: alone("init rate steps", staircase=stairs(kind))
        for kind in ("exponential", "natural_exp", "inverse_time")
    },
    "linear": alone("init end steps"),
    "polynomial": alone(
        "init end steps",
        **{
            key: rate(
                f"{{polynomial: {{init: 0.1, end: 0.1, steps: 9, {key}: {value}}}}}",
                f"'{key}' has no effect",
            )
            for key, value in {"power": "2", "cycle": "true"}.items()
        },
    ),
    "cosine": alone("init steps alpha"),
    "piecewise": alone("boundaries values"),
    "noam": alone("size warmup factor"),
    "warmup": {**alone("steps then"), "from": _ALONE},
    "linear_scaling": alone("then batch base_batch warmup"),
}


def init(value: str, says: str) -> Refused:
    return parameters(f"{{match: h.w, init: {value}}}", says)


INITIALIZERS: Mapping[str, Entry] = {
    **{
        name: init(f"{{{name}: 2.0}}", "takes no value")
        for name in initializers.BARE
        if name not in initializers.WITH_ARGUMENT
    },
    **dict.fromkeys(("constant", "uniform", "normal", "truncated_normal"), _ALONE),
    "variance_scaling": "scale, mode and distribution: each changes the distribution;"
    " mode does not for a square matrix, and shapes may change alone",
    **dict.fromkeys(("orthogonal", "identity"), "the gain"),
    "file": "the values of a tensor",
}


def test_each_attribute_has_an_entry() -> None:
    declared = {
        kind: {attr.name for attr in declaration.written_attrs}
        for kind, declaration in op_kinds().items()
    }
    written = {kind: set(entries) for kind, entries in ATTRIBUTES.items()}
    assert written == {kind: attrs for kind, attrs in declared.items() if attrs}
    forms = {n: {*form.__struct_encode_fields__} for n, form in schedules.FORMS.items()}
    assert {kind: set(entries) for kind, entries in SCHEDULES.items()} == forms
    known = initializers.BARE.keys() | initializers.WITH_ARGUMENT.keys()
    assert INITIALIZERS.keys() == known


@pytest.mark.parametrize(
    "refused",
    [*params_of({**ATTRIBUTES, **SCHEDULES, "init": INITIALIZERS})],
)
def test_an_attribute_without_effect_is_refused(
    refused: Refused, tmp_path: Path
) -> None:
    check_refused(refused, tmp_path)


def test_the_compiler_counts_the_cost_of_a_metric(tmp_path: Path) -> None:
    refused = op_of("v: float32[batch]", "op: metric, in: v, fn: m:f, cost: [1, 2]", "")
    (tmp_path / "m.py").write_text("def f(v):\n    return v\n")
    check_refused(Refused(refused.text, "unknown key 'cost' in op 'p'"), tmp_path)
    load_text(refused.text.replace(", cost: [1, 2]", ""), "model.yaml", tmp_path)
