"""The names of classes and variables in programs."""

import re

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile_in_memory
from placer.system.resources import find_file


def programs(spec):
    """Return the texts of the programs of a build, by path."""
    files = compile_in_memory(spec).files
    return {path: text.decode() for path, text in files.items() if path.endswith(".py")}


def shipped(name):
    return programs(find_file(f"specs/{name}.yaml"))


def test_variables_have_the_number_of_their_table_where_a_hook_uses_several():
    worker = shipped("digits_hybrid")["worker/program.py"]
    assert re.findall(r"^class (\w+)", worker, re.M) == ["Dense0", "Dense1"]
    assert re.findall(r"\b([pg]\d?): (\w+)[,)]", worker) == [
        *[("p0", "Dense0"), ("p1", "Dense1")] * 4
    ]
    assert "g1_sum = node.receive(" in worker
    assert 'node.update("dense1", g1_sum, ' in worker


def test_variables_of_one_table_have_no_number():
    for name in ("digits", "digits_geo", "wide_deep_sparse"):
        for text in shipped(name).values():
            assert not re.search(r"\b[pg]\d\b", text)


def test_the_sum_over_microbatches_has_a_name_of_its_own():
    text = shipped("mlp_pipeline")["worker-0/program.py"]
    assert '(g_total,) = node.microbatch_totals("g")' in text


def test_each_hook_names_its_own_variables():
    text = shipped("digits_async")["worker/program.py"]
    assert not re.search(r"h1_w_2|p_2", text)
    assert len(re.findall(r"\(h1_w,\) = node\.", text)) == 3


@pytest.mark.parametrize(
    ("spec", "delta"), [("digits_geo", "delta"), ("digits_diloco", "delta_mean")]
)
def test_a_server_gets_the_change_of_workers_as_a_delta(spec, delta):
    for path, text in shipped(spec).items():
        if path.startswith("ps"):
            assert f'{delta} = node.pushed("dense", message, Dense)' in text


def test_the_terms_of_a_gradient_have_the_names_of_their_ops():
    text = shipped("transformer_pipeline")["worker-0/program.py"]
    assert "d_x1 = ops.accumulate(d_x1_from_norm2, d_x1_from_x2)" in text


def test_ranges_of_flattened_values_have_names_of_ranges():
    text = shipped("digits_hybrid")["worker/program.py"]
    ranges = "d_logits_w_range, d_logits_b_range"
    assert f"{ranges} = node.receive(REDUCE_SCATTER_GRADIENTS)" in text
    assert f"node.send(ALL_GATHER_GRADIENTS, {ranges})" in text
    text = shipped("digits_all_reduce")["worker-0/program.py"]
    assert 'p_range = node.parameters("dense", Dense)' in text
    assert "g_range = node.receive(REDUCE_SCATTER_GRADIENTS, Dense)" in text


def test_clipped_gradients_keep_their_variables():
    text = shipped("digits_geo")["worker/program.py"]
    assert "d_h1_w = ops.row_estimate(d_h1_w, share=1 / 2)" in text


def test_classes_are_named_after_kinds_of_layers():
    text = shipped("cnn_gpus")["worker-0/program.py"]
    assert re.findall(r'^(\w+) = namedtuple\("(\w+)", "(.*)"\)', text, re.M) == [
        ("Conv2d", "Conv2d", "w"),
        ("BatchNorm", "BatchNorm", "scale bias"),
        ("Fc", "Fc", "w b"),
        ("BatchNormState", "BatchNormState", "running_mean running_variance"),
    ]
    assert 'class State(NamedTuple):  # table "state_gpu:0-7"' in text


def test_the_class_of_a_part_of_a_layer_names_its_fields():
    text = shipped("wide_deep_sparse")["ps-1/program.py"]
    assert re.findall(r"^(\w+) = namedtuple", text, re.M) == [
        "FcWBlock1",
        "FcWBlock1B",
        "Fc",
    ]


def test_an_op_with_a_python_word_as_its_name_has_an_underscore():
    spec = two_layers(
        train="", extra="  - {name: sum, op: reduce_sum, in: out}"
    ).replace("metrics: [loss]", "metrics: [loss, sum]")
    (text,) = {t for t in programs(load_model(spec)).values() if "record" in t}
    assert "sum_ = ops.reduce_sum(" in text
    assert "node.record(loss=loss, sum=sum_)" in text


@pytest.mark.parametrize(
    ("path", "statement", "comment"),
    [
        (
            "digits_hybrid/worker",
            "(h1_w,) = node.pull(",
            "waits if they lack more than the last 8 steps of any worker",
        ),
        ("digits_half_async/worker", "(h1_w,) = node.pull(", "; waits for it"),
        ("digits_geo/worker", "node.merge(", 'adds the changes of other workers to "local"'),
        ("digits_geo/worker", "node.push_delta(", "(values at the last exchange - values now) / 2"),
        ("digits_geo/ps-0", "node.update(", "subtracts delta, (old - new values) / 2"),
        ("digits_diloco/worker", "node.merge(", 'replaces "local" by them'),
        ("digits_diloco/ps-0", "node.update(", "takes delta_mean as the gradient"),
        ("wide_deep_sparse/worker", "node.send_keys(", "unless `send_keys_ahead` has sent them"),
        ("wide_deep_sparse/ps-0", "wide_found, vectors_found = ", "the rows that this node stores"),
    ],
)  # fmt: skip
def test_a_comment_above_a_call_says_what_it_does(path, statement, comment):
    spec, node = path.split("/")
    text = shipped(spec)[f"{node}/program.py"]
    above, _, _ = text.partition(statement)
    comments = re.search(r"((?: *#.*\n)+) *$", above)
    assert comment in re.sub(r"\n? *# ", " ", comments[1])
