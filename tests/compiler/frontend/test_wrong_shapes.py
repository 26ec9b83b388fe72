"""A mapping or a list of a spec, replaced by a value of another shape, is an error with a
position, or is accepted; it is never an internal error."""

import json
from pathlib import Path

import pytest

from placer.compiler.driver import lower_model
from placer.compiler.frontend import load_text
from placer.errors import GraphError, SpecError, SpecErrors

VALUES = (True, "word", None, [], [3], {"a": [1]})
GRAPH = [
    {
        "place": "/node:worker/cpu",
        "ops": [
            {"name": "h", "op": "fc", "in": ["x"], "size": 3, "activation": "relu"},
            {"name": "z", "op": "fc", "in": "h", "size": 2},
            {"name": "loss", "op": "softmax_cross_entropy", "in": ["z", "y"]},
        ],
    }
]
BASE = {
    "name": "small",
    "nodes": {"worker": {"count": 2, "devices": {"cpu": {"count": 1}}}, "ps": {}},
    "inputs": {"x": "float32[batch, 2]", "y": "int32[batch]"},
    "data": {
        "train": {
            "source": "csv:rows.csv",
            "batch": 8,
            "shuffle": {"window": 100, "lanes": 4},
            "columns": {"x": ["a", "b.log"], "y": "label"},
            "features": {"b.log": {"log1p": "b"}},
            "csv": {
                "header": ["a", "b", "label"],
                "vocabulary": {"label": ["no", "yes"]},
                "missing": {"a": 0},
                "missing_values": {"a": ["-9"]},
                "unknown": {"label": 0},
            },
        }
    },
    "graph": GRAPH,
    "parameters": [{"match": "h.w", "init": {"constant": 0.0}, "decay": False}],
    "predict": {"outputs": ["z"]},
}
RATE = {
    "warmup": {"steps": 3, "then": {"piecewise": {"boundaries": [3], "values": [1, 0]}}}
}
SYNC = {
    "minimize": "loss",
    "metrics": ["loss"],
    "checkpoint": {"to": "saved"},
    "clip": {"global_norm": 1.0},
    "slicing": {"dispatch": "hash"},
    "optimizer": [
        {"match": "h.*", "op": "adamw", "learning_rate": RATE, "clip": None},
        {"op": "sgd", "learning_rate": 0.1, "update": {"sync": {"backup": 0}}},
    ],
}
OUTER = {"op": "nesterov", "learning_rate": {"cosine": {"init": 1, "steps": 9}}}
GEO = {
    "minimize": "loss",
    "optimizer": {
        "op": "adamw",
        "learning_rate": 0.1,
        "clip": {"norm": 1.0},
        "update": {"geo": {"every": 3, "outer": OUTER}},
    },
}


def spec(train):
    return json.loads(json.dumps({**BASE, "train": train}))


def containers(node, path=()):
    if isinstance(node, dict | list):
        yield path
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            yield from containers(child, (*path, key))


def replaced(node, path, value):
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy


def errors_of(text):
    try:
        lower_model(load_text(text, "model.yaml", Path()))
    except SpecErrors as errors:
        return errors.errors
    except (SpecError, GraphError) as error:
        return [error]
    return []


@pytest.mark.parametrize("train", [SYNC, GEO], ids=["sync", "geo"])
def test_every_mapping_and_list_may_have_a_wrong_shape(train):
    good = spec(train)
    assert errors_of(json.dumps(good)) == []
    paths = [path for path in containers(good) if train is SYNC or "update" in path]
    for path in paths:
        for value in VALUES:
            text = json.dumps(replaced(good, path, value), indent=1)
            for error in errors_of(text):
                assert error.span is not None, (path, value, error)
