"""All keys of a spec, and what makes each of them an error: a key that can have no effect
is refused.

The keys come from the structs of the spec; each needs an entry here. An entry is a spec that
is refused, with a part of the error, or says why the key always has an effect. A default
that is written is no error, and a setting of some placements of a model is allowed in the
others. `test_attributes_without_effect.py` has the attributes of ops, schedules and
initializers.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from support.refusals import (
    CSV,
    WORDS,
    Entry,
    Refused,
    check_refused,
    keyed,
    npz,
    of_other_kinds,
    optax,
    parameters,
    params_of,
    rows,
    scope,
    servers,
    table,
    train,
)
from support.small_models import two_layers

from placer.compiler.frontend import load_text
from placer.compiler.frontend.jsonschema import json_schema
from placer.compiler.frontend.schema import Outer
from placer.plan.settings.sparse import sparse_keys
from placer.plan.settings.training.schedules import FORMS

_VALUE = "a part of the value, with one meaning"
_PLACE = "where something runs"
_REQUIRED = "it is required"
_PLACEMENT = "allowed without servers: the place of an optimizer may change alone"
SGD = "{op: sgd, learning_rate: 0.7}"
_HYPER = "a hyperparameter: a rule refuses those of other rules"
_FEATURE = rows("features: {q: {log1p: a, bins: 3}}", "'bins'")
_EVALUATED = "needs evaluation rows"
_OF_FEATURES = [
    "hash",
    "cross",
    "buckets",
    "log1p",
    "standardize",
    "days",
    "hour",
    "weekday",
]
_OPTIONS = [
    "type",
    "field",
    "seed",
    "bins",
    "boundaries",
    "log",
    "to",
    "mean",
    "std",
    "since",
]

_OPTIONS_OF_COLUMNS: Mapping[str, tuple[Refused, ...]] = {
    "vocabulary": (
        rows(
            "csv: {vocabulary: {l*: [no], label: [a]}}",
            "'label' of 'vocabulary' has no",
        ),
        rows("csv: {vocabulary: {lable: [no]}}", "did you mean 'label'?"),
        rows("csv: {vocabulary: {c*: [no]}}", "no input reads such a column"),
        rows(
            "csv: {header: [a, b, label, c], vocabulary: {c*: [no]}}",
            "no input reads such a column",
        ),
        rows("csv: {header: [a, b, label], vocabulary: {c: [no]}}", "no column 'c'"),
    ),
    "unknown": (
        rows(f"csv: {{{WORDS}, unknown: {{a: 0}}}}", "'unknown' of 'a' has no effect"),
        rows("csv: {unknown: {'*': 0}}", "'unknown' of '*' has no effect"),
    ),
    "missing": (
        rows(
            f"csv: {{{WORDS}, missing: {{label: 0}}}}",
            "'missing' of 'label' has no",
        ),
        rows("csv: {missing: {'*': 0, a: 1}}", "'a' of 'missing' has no effect: '*'"),
        rows(
            f"csv: {{header: [a, b, label], {WORDS}, missing: {{l*: 0}}}}",
            "'missing' of 'l*' has no effect",
        ),
        *(
            Refused(
                CSV.replace("[a, b], y", "[a, q], y").replace(
                    "KEYS",
                    f"csv: {{missing: {{c: 0}}}}\n    features: {{q: {feature}}}",
                ),
                "'c' of 'missing' has no effect: features only hash the column as text",
            )
            for feature in ("{hash: c, bins: 9}", "{cross: [c, d], bins: 9}")
        ),
        rows(
            f"csv: {{{WORDS}, missing: {{label: 0}}}}\n"
            "    features: {a: {hash: label, bins: 2}}",
            "'missing' of 'label' has no",
        ),
    ),
    "missing_values": (
        rows(
            "csv: {missing_values: {c: ['-9']}}",
            "'c' of 'missing_values' has no effect",
        ),
        rows("csv: {missing_values: {a: [], '*': [1], b: []}}", "'*' comes first"),
        rows("csv: {missing_values: {a: []}}", "its list is empty"),
    ),
}

TABLE: Mapping[str, Mapping[str, Entry]] = {
    "Spec": {
        **dict.fromkeys(("data", "graph", "train"), _REQUIRED),
        "nodes": "required; a kind that no place names is for other places",
        "inputs": "required; an input that no op reads is for ops that come later",
        "predict": "what a prediction returns",
        "name": "the name of the model in reports",
        "parameters": parameters("{match: q.w, trainable: false}", "no parameter"),
        "precision": "the dtype of all floats",
        "seed": "initial values and dropout",
        "emulate": "allowed with CPUs: the places of a model may change alone",
    },
    "Nodes": {
        "count": "nodes that run",
        "devices": "devices that places can name: places may change alone",
    },
    "Device": {
        "count": "devices that places can name: places may change alone",
        "memory": "what the places need of it is checked",
    },
    "DataSection": {"train": _REQUIRED, "eval": "rows that are evaluated"},
    "Data": {
        "source": _REQUIRED,
        "batch": "rows of a step",
        "split": npz("split: test", "'split' works with"),
        "columns": npz("columns: {q: x}", "which is not an input"),
        "shuffle": "the order of the rows",
        "seed": (
            rows("seed: 3", "'seed' has no effect"),
            rows("seed: 0", "'seed' has no effect"),
            rows("shuffle: false\n    seed: 3", "'seed' has no effect"),
        ),
        "remainder": "the rows of the last batch, of which there may be fewer",
        "stream": (
            npz("stream: {files: 1}", "a stream is a set of files, but npz:rows.npz"),
            rows("stream: {files: 1}", "write a glob, such as csv:clicks/*.csv"),
        ),
        "features": (
            npz("features: {q: {hash: x, bins: 3}}", "'features' is for"),
            rows("features: {q: {hash: a, bins: 3}}", "'q' has no effect: no input"),
            rows(
                "features: {q: {hash: a, bins: 3}, r: {cross: [q, b], bins: 3}}",
                "feature 'r' has no effect: no input reads it",
            ),
        ),
        **{
            kind: npz(f"{kind}: {{missing: {{x: 0}}}}", f"'{kind}' is for")
            for kind in ("csv", "parquet", "python")
        },
    },
    "Window": {
        key: npz("shuffle: {window: 8, lanes: 1}", "a window works with")
        for key in ("window", "lanes")
    },
    "Stream": {
        "files": npz("stream: {files: 1, folder: _SUCCESS}", "needs exactly one of"),
        "folder": (
            npz("stream: {late: train}", "needs exactly one of"),
            npz("stream: {folder: a/b}", "'folder' must be the name of a file"),
        ),
        "late": "files that may come late",
        **{
            key: npz(f"stream: {{lanes: 1, rows: 8, {other}}}", message)
            for key, other, message in (
                ("lanes", "late: skip", "'lanes' and 'rows' are for python:"),
                ("rows", "files: 1", "'files' cannot be used with 'lanes'"),
            )
        },
    },
    "Csv": {
        **_OPTIONS_OF_COLUMNS,
        "header": "the names of the columns",
        "delimiter": "how lines are read",
        "comment": "lines that the file may have",
    },
    "Cells": {
        key: tuple(each for refused in entry for each in of_other_kinds(refused))
        for key, entry in _OPTIONS_OF_COLUMNS.items()
    },
    "Feature": {
        **dict.fromkeys(_OF_FEATURES, "the kind, of which a feature has just one"),
        **{
            key: _FEATURE if key == "bins" else "as bins: each is for some kinds only"
            for key in _OPTIONS
        },
    },
    "Scope": {
        "ops": _REQUIRED,
        "place": _PLACE,
        "remat": (
            scope(
                "remat: true, ops: [{name: p, op: argmax, in: h}]", "of the scope wi"
            ),
            scope(
                "remat: true, ops: [{name: p, op: relu, in: h}]",
                "so none has a gradient",
            ),
            *(
                scope(
                    f"remat: true, ops: [{{remat: {inner}, ops: [*]}}]",
                    f"'remat: {inner}' has no effect: an outer scope",
                )
                for inner in ("true", "false")
            ),
        ),
    },
    "ParameterRule": {
        "match": parameters(
            "{match: '*.w', trainable: false}, {match: h.w, trainable: false}",
            "applies to no parameter",
        ),
        "init": "initial values",
        "trainable": "the parameter is not trained",
        "decay": (
            parameters(
                "{match: h.w, trainable: false, decay: false}", "'decay' has no effect"
            ),
            parameters(
                "{match: h.w, decay: false}",
                "'decay: false' of 'h.w' has no effect: optimizer 'sgd' has no weight",
            ),
            Refused(
                two_layers(
                    optimizer="{op: lamb, learning_rate: 0.1}",
                    extra="parameters: [{match: h.w, decay: false}]",
                ),
                "optimizer 'lamb' has no weight decay",
            ),
            Refused(
                two_layers(
                    first=None,
                    second=None,
                    extra="parameters: [{match: n.running*, decay: false}]",
                ).replace(
                    "name: out, op: fc, in: h",
                    "name: n, op: batch_norm, in: h}\n  - {name: out, op: fc, in: n",
                ),
                "the parameter is not trained",
            ),
        ),
    },
    "Clip": dict.fromkeys(
        ("global_norm", "norm", "value"),
        train("clip: {}", "needs exactly one of"),
    ),
    "Slicing": {
        "min_block": table("", "'slicing' has no effect", "slicing: {min_block: 9}"),
        "rounding": _PLACEMENT,
        "dispatch": _PLACEMENT,
    },
    "Evaluating": {"every": train("eval: {every: epoch}", "needs evaluation rows")},
    "Best": dict.fromkeys(
        ("metric", "mode"),
        train("checkpoint: {best: {metric: loss, mode: min}}", _EVALUATED),
    ),
    "Checkpointing": {
        **dict.fromkeys(("to", "every", "keep"), "files that are written"),
        "best": train("checkpoint: {best: {metric: loss, mode: min}}", _EVALUATED),
    },
    "Publishing": {
        **dict.fromkeys(("folder", "base", "keep"), "files that are written"),
        "every": train("publish: {every: pass}", "'every: pass' needs a stream"),
    },
    "EarlyStopping": dict.fromkeys(
        ("metric", "mode", "patience", "min_delta"),
        train("early_stopping: {metric: loss, mode: min}", _EVALUATED),
    ),
    "Update": dict.fromkeys(("sync", "async", "geo"), _VALUE),
    "Sync": {"backup": "steps take fewer gradients"},
    "Async": {
        "max_staleness": "how far a worker may be ahead",
        "max_merge": (
            servers(
                "update: {async: {max_merge: 2, max_staleness: 0}}", "has no max_merge"
            ),
            table("update: {async: {max_merge: 2}}", "'max_merge' has no effect: all"),
        ),
        "merge": servers(
            "update: {async: {merge: mean}}",
            "'merge: mean' has no effect with max_merge: 1",
        ),
        "queue": (
            servers(
                "update: {async: {max_staleness: 0, queue: 3}}",
                "max_staleness 0 means 'update: sync', which has no queue",
            ),
            table("update: {async: {queue: 1}}", "'queue' has no effect: all"),
        ),
        "staleness_scale": servers(
            "update: {async: {max_staleness: 0, staleness_scale: true}}",
            "which has no staleness_scale",
        ),
        "compensate": servers(
            "update: {async: {max_staleness: 0, compensate: 0.1}}",
            "which has no compensate",
        ),
    },
    "Geo": {
        "every": _REQUIRED,
        "scale": "the size of differences",
        "dtype": "that of messages",
        "outer": servers(
            f"update: {{geo: {{every: 2, scale: sum, outer: {SGD}}}}}",
            "takes the mean of the differences",
        ),
    },
    "Outer": {
        "op": (
            servers(
                f"update: {{geo: {{every: 2, outer: {SGD[:-1]}, momentum: 0.5}}}}}}",
                "unknown key 'momentum'",
            ),
            servers(
                f"update: {{geo: {{every: 2, outer: {SGD[:-1]}, place: /node:ps}}}}}}",
                "unknown key 'place'",
            ),
        ),
        "learning_rate": "required; 0 in every step is a warning",
    },
    "OptaxOptimizer": {
        "op": _REQUIRED,
        "fn": _REQUIRED,
        "learning_rate": "refused if the function takes none, which tracing finds",
        "with": "refused if the function has no such argument, which tracing finds",
        "eval_params": "other values in evaluations and exports",
        "place": _PLACE,
        "update": optax(
            "place: /node:ps/cpu, update: {async: {staleness_scale: true}}",
            "'staleness_scale' has no effect: it divides the learning rate",
        ),
        "match": optax("match: q", "no parameter matches 'q'"),
        "clip": Refused(
            two_layers(
                train="  clip: {value: 1.0}",
                optimizer="{op: optax, fn: 'made:rows', clip: {norm: 1.0}}",
            ),
            "both train.clip and the clip of an optimizer",
        ),
        **{
            key: optax(
                f"place: /node:ps/cpu, {key}: {value}", "an optimizer on several"
            )
            for key, value in {
                "shard_state": "true",
                "all_reduce": "ring",
                "sum": "/node:ps/cpu",
            }.items()
        },
    },
    "Optimizer": {
        "op": _REQUIRED,
        "learning_rate": "required; 0 in every step is a warning",
        "place": _PLACE,
        "update": "how nodes agree; one that the places do not allow is refused",
        "match": Refused(
            two_layers(
                optimizer="[{op: sgd, learning_rate: 0.1, match: q},"
                " {op: sgd, learning_rate: 0.1}]"
            ),
            "no parameter matches 'q'",
        ),
        "clip": Refused(
            two_layers(
                train="  clip: {value: 1.0}",
                optimizer="{op: sgd, learning_rate: 0.1, clip: {norm: 1.0}}",
            ),
            "both train.clip and the clip of an optimizer",
        ),
        "shard_state": servers("shard_state: true", "needs an optimizer on several"),
        "all_reduce": servers("all_reduce: ring", "needs an optimizer on several"),
        "sum": servers("sum: /node:ps/cpu", "needs an optimizer on several"),
        **dict.fromkeys(
            [
                "rho",
                "eps",
                "initial_accumulator_value",
                "b1",
                "b2",
                "l1",
                "l2",
                "beta",
                "momentum",
                "trust_coefficient",
                "decay",
                "initial_scale",
                "centered",
                "initial_g2sum",
            ],
            _HYPER,
        ),
        "weight_decay": Refused(
            two_layers(
                optimizer="{op: lamb, learning_rate: 0.1, weight_decay: 0.1}",
                extra="parameters: [{match: '*', decay: false}]",
            ),
            "'weight_decay' has no effect",
        ),
    },
    "Train": {
        **dict.fromkeys(("minimize", "optimizer"), _REQUIRED),
        "backward": _PLACE,
        "epochs": "steps that are run",
        "microbatches": "how a batch is divided",
        "gradient_accumulation": train(
            "gradient_accumulation: 2\n  microbatches: 4", "are the same setting"
        ),
        "threads": "how many step loops a worker has",
        # With microbatches it is allowed: the number of stages is a matter of places.
        "schedule": train("schedule: gpipe", "'schedule: gpipe' has no effect"),
        "nan": "what a run does then",
        "metrics": Refused(
            two_layers().replace("[loss]", "[loss, loss]"), "is listed twice"
        ),
        "clip": Refused(
            two_layers(
                extra="parameters: [{match: '*', trainable: false}]",
                train="  clip: {value: 1.0}",
            ),
            "this optimizer matches no parameter",
        ),
        "slicing": _PLACEMENT,
        "bucket_cap_mb": (
            train(
                "bucket_cap_mb: 3.0\n  microbatches: 2",
                "needs steps of one microbatch",
            ),
            table("", "'bucket_cap_mb' has no effect", "bucket_cap_mb: 3.0"),
        ),
        "eval": train("eval: {every: epoch}", _EVALUATED),
        "checkpoint": "files that are written",
        "publish": "files that are written; without outputs, compiling is refused",
        "early_stopping": train(
            "early_stopping: {metric: loss, mode: min}", _EVALUATED
        ),
    },
    "Predict": {
        "outputs": Refused(
            two_layers(extra="predict: {outputs: [out, out]}"), "is listed twice"
        )
    },
    **{
        name: dict.fromkeys(keys.split(), "a part of the op, which runs")
        for name, keys in {
            "CallParameter": "shape init dtype",
            "CallState": "shape init dtype",
            "ParameterOp": "shape init dtype name op",
            "CallOp": "name op fn out in params state batch place",
            "TraceOp": "name op fn args regions evaluation results state parts axis in params batch place",
            "Region": "out in batch place",
        }.items()
    },
    "BloomKeys": dict.fromkeys(("count", "bytes"), _REQUIRED),
    "AdmitKeys": dict.fromkeys(
        ("count", "bloom", "probability", "score"),
        keyed("admit: {count: 2, probability: 0.5}", "needs exactly one of"),
    ),
    "ForgetKeys": {
        "every": (
            keyed("forget: {every: 10}", "'forget' has no effect"),
            keyed("forget: {every: 10}, score: {show: 1}", "'forget' has no effect"),
            keyed("forget: {every: pass, unseen_steps: 9}", "data.train is no stream"),
        ),
        "unseen_steps": "keys that lose their row",
        "norm_below": "keys that lose their row",
        "score_below": keyed("forget: {score_below: 1.0}", "has no 'score'"),
        "unseen_seconds": keyed("forget: {unseen_seconds: 9}", "needs both"),
        "time": keyed("forget: {unseen_steps: 9, time: ids}", "needs both"),
    },
    "ScoreKeys": {
        **dict.fromkeys(
            ("show", "click", "show_weight", "decay"),
            "scores are saved: without limits, a later run can read them",
        ),
        "click_weight": keyed(
            "score: {show: 1, click_weight: 2.0}", "'click_weight' has no effect"
        ),
    },
}


def definitions() -> dict[str, set[str]]:
    """Return the keys of each mapping of a spec; those of schedules are in
    `test_attributes_without_effect.py`."""
    forms = {form.__name__ for form in FORMS.values()}
    found = {
        name: {
            key
            for key in keys.get("properties", ())
            if key != "type" or name == "Feature"
        }
        for name, keys in json_schema()["$defs"].items()
        if name not in ("Entry", "Schedule", *forms) and not name.startswith("op.")
    }
    structs = [
        each
        for each in vars(sparse_keys).values()
        if isinstance(each, type) and each.__module__ == sparse_keys.__name__
    ]
    for struct in (Outer, *structs):
        fields = msgspec.structs.fields(struct)
        found[struct.__name__] = {field.encode_name for field in fields}
    return {name: keys for name, keys in found.items() if keys}


def test_each_key_of_a_spec_has_an_entry() -> None:
    assert definitions() == {name: set(entries) for name, entries in TABLE.items()}


@pytest.mark.parametrize("refused", [*params_of(TABLE)])
def test_a_key_without_effect_is_refused(refused: Refused, tmp_path: Path) -> None:
    check_refused(refused, tmp_path)


@pytest.mark.parametrize(
    ("keys", "column"),
    [
        (f"csv: {{{WORDS}, missing: {{'*': 0}}}}", "[a, b]"),
        ("csv: {missing: {a: 1, '*': 0}}", "[a, b]"),
        (f"csv: {{{WORDS}, unknown: {{label: 2}}}}", "[a, b]"),
        (
            f"csv: {{{WORDS}, missing: {{label: 0}}}}\n"
            "    features: {h: {hash: label, type: integer, bins: 2}}",
            "[h, a]",
        ),
        (
            "features: {q: {hash: c, bins: 3}, r: {cross: [q, d], bins: 2},"
            " '*_h': {hash: [e, f], bins: 2}}\n"
            "    csv: {missing_values: {c: [1], e: [0]}}",
            "[r, e_h]",
        ),
        ("csv: {missing: {z*: 1}, vocabulary: {y1: [no]}}", "[z1, 'y*']"),
    ],
)
def test_entries_of_a_source_with_an_effect(
    keys: str, column: str, tmp_path: Path
) -> None:
    text = CSV.replace("KEYS", keys).replace("{x: [a, b]", f"{{k: {column}, x: [a, b]")
    # No op reads this input.
    text = text.replace("inputs: {", 'inputs: {k: "int32[batch, 2]", ')
    model = load_text(text, "model.yaml", tmp_path)
    assert model.train.csv is not None
