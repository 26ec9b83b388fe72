"""Each format: how to draw an input, and how placer reads it."""

from __future__ import annotations

import copy
import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import save

import placer
from placer.checkpoint.manifest import Statistic, StepStatistics, Watched
from placer.checkpoint.manifest_file import digest_of
from placer.command.starter.draft import draft_model
from placer.command.starter.spec_text import write_spec
from placer.command.starter.table import read_table
from placer.compiler.driver import lower_model
from placer.compiler.frontend import load, load_text
from placer.compiler.frontend.entries.module_imports import local_imports
from placer.compiler.frontend.entries.op_kinds import op_kinds
from placer.compiler.graph.text import parse_graphs, print_graph
from placer.compiler.passes.verify import GraphForm, verify
from placer.errors import PlacerError
from placer.place import Cluster, Place
from placer.place.types import TensorType
from placer.plan.plan import Plan, read_plan, read_sources, sha256
from placer.plan.settings.data.cell_options import Cells, Csv
from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.window import Window
from placer.plan.settings.training.slicing import Block
from placer.readers import Column, Order, open_pieces, open_source
from placer.readers.windows import WindowReader
from placer.report.checkpoint_details import details_view
from placer.report.checkpoints import checkpoint_facts, find_checkpoints, list_view
from placer.report.choices import list_choices
from placer.report.console import console
from placer.report.explain import BuildInfo, explain
from placer.report.server_tables import table_views
from placer.runtime.process.entry_point import default_endpoints
from placer.runtime.saving import parameter_files
from placer.runtime.saving.start_parameters import open_parameters
from placer.system.resources import find_file
from placer.tables.initial.weight_file import read_flat_range
from support.checkpoints import write_checkpoint
from support.fuzz.drawn_cases import Format
from support.fuzz.mutator import (
    LEAVES,
    NUMBERS,
    containers,
    mutate_bytes,
    mutate_tree,
)

SPECS = [
    path
    for path in sorted(find_file("specs").glob("*.yaml"))
    if path.stem != "custom_op"  # JAX traces its function
]
MAX_NODES = 64
"""Specs with more nodes are read but not compiled, because that takes long."""


# specs


@cache
def spec_texts() -> list[bytes]:
    return [path.read_bytes() for path in SPECS]


@cache
def spec_trees() -> list[Any]:
    return [yaml.safe_load(text) for text in spec_texts()]


def add_op(random: Random, tree: Any) -> None:
    """Insert an op of any kind somewhere, with attributes that may be wrong."""
    lists = [each for each in containers(tree) if isinstance(each, list)]
    entries = [each for each in containers(tree) if isinstance(each, dict)]
    names = [e["name"] for e in entries if isinstance(e.get("name"), str)]
    kind = random.choice(list(op_kinds()))
    op = {"name": random.choice(("z", "loss", *names)), "op": kind}
    declaration = op_kinds()[kind]
    for attr in declaration.attrs:
        if attr.required or random.random() < 0.3:
            value = random.choice((*LEAVES, *attr.choices, attr.default, 1, [1], 0.5))
            op[attr.name] = copy.deepcopy(value)  # later mutations change the copy
    some = [random.choice(names) for _ in range(random.randrange(4))] if names else []
    if some or random.random() < 0.5:
        op["in"] = some[0] if len(some) == 1 else some
    if lists:
        target = random.choice(lists)
        target.insert(random.randrange(len(target) + 1), op)


def draw_spec(random: Random, work: Path) -> bytes:
    if random.random() < 0.4:
        return mutate_bytes(random, spec_texts())
    tree = mutate_tree(random, random.choice(spec_trees()), add_op)
    text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    return text.encode("utf-8", "surrogatepass")


def read_spec(content: bytes, work: Path) -> None:
    text = text_of(content)
    model = load_text(text, "model.yaml", find_file("specs"))
    cluster = model.graph.cluster
    if len(cluster.all_nodes()) > MAX_NODES or model.graph.of_kind("call"):
        return
    out = work / "compiled"
    plan = placer.compile(model, out)
    assert read_plan(out) == plan


# builds


@cache
def build_of(name: str, work: Path) -> Path:
    """Return a build of a spec, which cases then damage."""
    placer.compile(find_file(f"specs/{name}.yaml"), work / f"build-{name}")
    return work / f"build-{name}"


BUILDS = ("digits", "mlp_pipeline", "wide_deep", "word2vec_sparse", "cnn_gpus", "lamb")


@cache
def plan_tree(build: Path) -> Any:
    return json.loads((build / "plan.json").read_bytes())


def draw_plan(random: Random, work: Path) -> tuple[str, bytes]:
    build = build_of(random.choice(BUILDS), work)
    whole = plan_tree(build)
    if random.random() < 0.2:
        text = json.dumps(whole, indent=1).encode()
        return build.name, mutate_bytes(random, [text])
    # Draw the section first: otherwise the large ones would get nearly all mutations.
    keys = random.choices(list(whole), k=random.choice((1, 1, 2)))
    tree = {**whole, **mutate_tree(random, {key: whole[key] for key in keys})}
    return build.name, with_valid_digest(tree)


def with_valid_digest(tree: Any) -> bytes:
    """Return a plan with a valid digest, or the bytes as they are if it is not a
    plan."""
    bare = json.dumps({**tree, "digest": ""}).encode("utf-8", "surrogatepass")
    try:
        plan = msgspec.json.decode(bare, type=Plan)
        bare = msgspec.json.encode(plan)
    except (msgspec.MsgspecError, ValueError):
        return bare
    text = msgspec.json.format(bare, indent=1) + b"\n"
    return msgspec.json.encode(msgspec.structs.replace(plan, digest=sha256(text)))


def read_damaged(drawn: tuple[str, bytes], work: Path, file: str) -> None:
    name, content = drawn
    build = work / name
    original = (build / file).read_bytes()
    (build / file).write_bytes(content)
    try:
        plan = read_plan(build)
        written = read_sources(build).ops
    finally:
        (build / file).write_bytes(original)
    screen = console(io.StringIO())
    for view in table_views(plan):
        screen.print(view)
    assert list(list_choices(plan)) is not None
    graphs = parse_graphs((build / "graph.txt").read_text(), "graph.txt")
    drawn_build = BuildInfo(
        plan, graphs, {name: str(at) for name, at in written.items()}
    )
    for parameter in plan.parameters[:2]:
        assert list(explain(drawn_build, parameter.name))
    assert len(default_endpoints(plan)) == len(plan.nodes)


def draw_sources(random: Random, work: Path) -> tuple[str, bytes]:
    build = build_of(random.choice(BUILDS), work)
    text = (build / "sources.json").read_bytes()
    if random.random() < 0.5:
        return build.name, mutate_bytes(random, [text])
    tree = mutate_tree(random, json.loads(text))
    return build.name, json.dumps(tree).encode("utf-8", "surrogatepass")


# files of parameters and of rows


@cache
def weights() -> list[bytes]:
    many = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros(3, ml_dtypes.bfloat16),
        "n": np.array(3),
        "e": np.zeros((0, 4), np.float16),
    }
    return [save(many), save({"w": np.ones((2, 3))}), save({})]


def draw_weights(random: Random, work: Path) -> bytes:
    content = random.choice(weights())
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    match random.randrange(3):
        case 0:
            return mutate_bytes(random, weights())
        case 1:
            header = mutate_bytes(random, [header])
        case _:
            tree = mutate_tree(random, json.loads(header), change_dtype)
            header = json.dumps(tree).encode("utf-8", "surrogatepass")
            if random.random() < 0.3:
                new = random.choice(NUMBERS).encode()
                header = header.replace(b"[2, 3]", b"[" + new + b", 3]", 1)
    return len(header).to_bytes(8, "little") + header + rest


def change_dtype(random: Random, tree: Any) -> None:
    """Change a tensor to another dtype of the format, and perhaps to no elements."""
    name = random.choice(list(tree) or ["w"])
    words = ("F8_E4M3", "F4", "C64", "BOOL", "I8", "U64", "BF16", "F64")
    shape = random.choice(([0], [2, 3], [], [0, 2**63 - 1], [-1, -1]))
    stop = 0 if 0 in shape else 24
    entry = {"dtype": random.choice(words), "shape": shape, "data_offsets": [0, stop]}
    tree[name] = entry


WEIGHTS_SPEC = """\
name: begun
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: w, op: parameter, shape: [2, 3], init: {file: w.safetensors}}
  - {name: y, op: matmul, in: [x, w]}
  - {name: loss, op: reduce_mean, in: y}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


def read_weights(content: bytes, work: Path) -> None:
    """Read the file like the compiler, like a node, and like --init-params."""
    folder = work / "weights"
    folder.mkdir(exist_ok=True)
    file = folder / "w.safetensors"
    file.write_bytes(content)
    every: list[Callable[[], object]] = [
        lambda: load_text(WEIGHTS_SPEC, "begun.yaml", folder),
        lambda: read_flat_range(file, "w", (2, 3), 1, 5),
        lambda: _start_from(file),
        lambda: parameter_files.load(file),
    ]
    for each in every:
        ignore_placer_error(each)


def _start_from(file: Path) -> None:
    start = open_parameters(file, print, finite=True)
    declared = {"w": TensorType("float32", (2, 3)), "b": TensorType("bfloat16", (3,))}
    parameter_files.check(start.types, declared)
    start.read([Block("w", "w.block0", 1, 5, (4,))])


def ignore_placer_error(call: Callable[[], object]) -> None:
    with suppress(PlacerError):
        call()


ROWS = [
    Column("x", "float32", (3,)),
    Column("n", "int32", ()),
    Column("b", "bool", ()),
]
FEATURES = [Column("keys", "uint64", ()), Column("scaled", "float32", ())]


@cache
def archives() -> list[bytes]:
    rows = {
        "x": np.arange(12, dtype=np.float32).reshape(4, 3),
        "n": np.arange(4, dtype=np.int64),
        "b": np.array([True, False, True, True]),
    }
    contents = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 12, 14):  # and bz2, lzma
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, array in rows.items():
                member = io.BytesIO()
                np.save(member, array)
                archive.writestr(f"{name}.npy", member.getvalue())
        contents.append(file.getvalue())
    objects = io.BytesIO()
    np.savez(objects, x=np.array([print, 1], object), n=np.arange(2))
    single = io.BytesIO()
    np.save(single, rows["x"])
    return [*contents, objects.getvalue(), single.getvalue()]


def draw_npz(random: Random, work: Path) -> bytes:
    if random.random() < 0.5:
        return mutate_bytes(random, archives())
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archives()[0])) as good:
        members = {name: good.read(name) for name in good.namelist()}
    changed = random.choice(list(members))
    members[changed] = mutate_bytes(random, list(members.values()))
    with zipfile.ZipFile(file, "w", random.choice((0, 8, 12, 14))) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def read_npz(content: bytes, work: Path) -> None:
    (work / "rows.npz").write_bytes(content)
    read_rows("npz:rows.npz", work)


def read_rows(
    source: str,
    work: Path,
    csv: Csv | None = None,
    parquet: Cells | None = None,
    words: str = "",
) -> None:
    """Read the rows of a source, and features of its numbers and of a column of words."""
    mapping = {"x": ["x0", "x1", "x2"]} if csv is not None else None
    data = Data(source, columns=mapping, csv=csv, parquet=parquet)
    rows = open_source(data, ROWS, work)
    batch = rows.take(np.arange(min(rows.rows, 8)))
    assert batch["x"].dtype == np.float32
    if words:
        features = {
            "n.key": Feature(hash="n", type="integer"),
            "n.bucket": Feature(buckets="n", boundaries=[0, 5]),
            "keys": Feature(cross=[words, "n.key", "n.bucket"]),
            "scaled": Feature(standardize="n", mean=1, std=2),
        }
        data = msgspec.structs.replace(data, columns=None, features=features)
        rows = open_source(data, FEATURES, work)
        batch = rows.take(np.arange(min(rows.rows, 8)))
        assert batch["keys"].dtype == np.uint64


def read_pieces(source: str, work: Path, csv: Csv | None = None) -> None:
    """Read an epoch through a window."""
    mapping = {"x": ["x0", "x1", "x2"]} if csv is not None else None
    rows = open_pieces(Data(source, columns=mapping, csv=csv), ROWS, work)
    order = Order(rows.rows, 3, Window(4, 2), 0, "keep")
    reader = WindowReader(order, rows)
    for step in range(order.steps_per_epoch):
        batch = reader.take(1, step, [(0, order.batch_size(step))])
        assert batch["x"].dtype == np.float32


@cache
def parquet_files() -> list[bytes]:
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 3),
        "n": pa.array(range(4)),
        "b": pa.array([True, False, True, True]),
    }
    contents = []
    columns["words"] = pa.array(["a, b", "", None, "c"])
    for compression in ("none", "snappy", "zstd"):
        file = io.BytesIO()
        pq.write_table(pa.table(columns), file, compression=compression)
        contents.append(file.getvalue())
    return contents


def draw_parquet(random: Random, work: Path) -> bytes:
    return mutate_bytes(random, parquet_files())


def read_parquet(content: bytes, work: Path) -> None:
    (work / "rows.parquet").write_bytes(content)
    form = Cells(vocabulary={"b": ["false", "true"]}, missing={"n": -1})
    for parquet in (None, form):
        read_rows("parquet:rows.parquet", work, parquet=parquet, words="words")


def read_parquet_pieces(content: bytes, work: Path) -> None:
    (work / "rows.parquet").write_bytes(content)
    read_pieces("parquet:rows.parquet", work)


TABLES = [
    b"x0,x1,x2,n,b\n" + b"1,2.5,-3e2,7,1\n0,0,0,8,0\n" * 20,
    b'x0;x1;x2;n;b\n"1";2;3;4;1\n\n# note\n"1\n2";2;3;4;0\n',
    b"\xef\xbb\xbfx0,x1,x2,n,b\r\n1,2,3,4,true\r\n1,2,,4,false\r\n",
]
FORMS = [
    Csv(),
    Csv(delimiter=";", comment="#"),
    Csv(header=["x0", "x1", "x2", "n", "b"]),
    Csv(vocabulary={"b": ["false", "true"]}, unknown={"b": 0}, missing={"x?": 0.5}),
]


def draw_csv(random: Random, work: Path) -> tuple[str, int, bytes]:
    form = random.randrange(len(FORMS))
    content = mutate_bytes(random, TABLES)
    if random.random() < 0.5:
        return "rows.csv", form, content
    packed = gzip.compress(content if random.random() < 0.5 else TABLES[0], mtime=0)
    if random.random() < 0.7:
        packed = mutate_bytes(random, [packed])
    return "rows.csv.gz", form, packed


def read_csv(drawn: tuple[str, int, bytes], work: Path) -> None:
    name, form, content = drawn
    (work / name).write_bytes(content)
    read_rows(f"csv:{name}", work, FORMS[form], words="b")


def read_csv_pieces(drawn: tuple[str, int, bytes], work: Path) -> None:
    name, form, content = drawn
    (work / name).write_bytes(content)
    read_pieces(f"csv:{name}", work, FORMS[form])


def draw_table(random: Random, work: Path) -> tuple[str, bytes]:
    if random.random() < 0.3:
        return "rows.parquet", draw_parquet(random, work)
    name, _, content = draw_csv(random, work)
    return name, content


def read_first_rows(drawn: tuple[str, bytes], work: Path) -> None:
    name, content = drawn
    (work / name).write_bytes(content)
    draft = draft_model(read_table(work / name), None, None)
    (work / "first.yaml").write_text(
        write_spec(draft, work / "first.yaml"), encoding="utf-8"
    )
    load(work / "first.yaml")


# texts


@cache
def modules() -> list[bytes]:
    return [path.read_bytes() for path in sorted(find_file("specs").glob("*_rows.py"))]


def draw_module(random: Random, work: Path) -> bytes:
    return mutate_bytes(random, modules())


def read_module(content: bytes, work: Path) -> None:
    (work / "drawn.py").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about odd literals
        local_imports(work, "drawn")


PLACES = [
    *(b"/node:worker", b"/node:worker:0,2-3/cpu", b"/node:ps:*/gpu:0-7", b"/gpu:1"),
    *(b"/job:worker/replica:0/task:1/device:GPU:0", b"/node:heter:1/device:cpu:*"),
]


def draw_place(random: Random, work: Path) -> bytes:
    return mutate_bytes(random, PLACES)


def read_place(content: bytes, work: Path) -> None:
    text = text_of(content)
    place = Place.parse(text)
    assert Place.parse(str(place)) == place
    cluster = Cluster.parse("nodes(worker: 4, ps: 2 {cpu: 1, gpu: 8})")
    assert cluster.all_nodes()


def text_of(content: bytes) -> str:
    """Decode UTF-8 with lone surrogates if possible."""
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return content.decode("utf-8", "replace")


STRUCTURAL = {"read", "parameter", "optimizer", "minimize", "store", "record"}
"""The structural kinds that a front end writes."""


@cache
def graph_texts() -> list[bytes]:
    """Return the graphs of small models as written, and one after every pass."""
    models = [
        load(find_file(f"specs/{name}.yaml")) for name in ("lamb", "lstm", "diabetes")
    ]
    texts = [print_graph(model.graph).encode() for model in models] * 4
    lower_model(models[-1], lambda _, graph: texts.append(print_graph(graph).encode()))
    return texts


def draw_graph(random: Random, work: Path) -> bytes:
    return mutate_bytes(random, graph_texts())


def read_graph(content: bytes, work: Path) -> None:
    for graph in parse_graphs(text_of(content)):
        assert parse_graphs(print_graph(graph)) == (graph,)
        if all(op.kind in op_kinds() for op in graph.ops if op.kind not in STRUCTURAL):
            verify(graph, GraphForm.WRITTEN)


# checkpoints


@cache
def checkpoint_of(work: Path) -> Path:
    """Return a checkpoint with a value for most fields, which cases then damage."""
    (work / "checkpoints").mkdir()
    sums = {"loss": Statistic("ratio", "float64", (2,), bytes(16))}
    return write_checkpoint(
        work / "checkpoints",
        12,
        1,
        statistics=sums,
        eval={"loss": 0.5, "auc": "nan"},
        best=Watched("loss", "min", 0.5, 10, 1),
        workers={"worker:0": 12},
        ahead=(StepStatistics("worker:0", 13, sums),),
    )


@cache
def manifest_text(work: Path) -> bytes:
    return (checkpoint_of(work) / "manifest.json").read_bytes()


def draw_manifest(random: Random, work: Path) -> bytes:
    """Draw a manifest, mostly with a valid digest."""
    text = manifest_text(work)
    if random.random() < 0.2:
        return mutate_bytes(random, [text])
    tree = mutate_tree(random, json.loads(text))
    with suppress(msgspec.MsgspecError, ValueError, AttributeError, TypeError):
        tree["digest"] = digest_of(tree)
    return json.dumps(tree, indent=1).encode("utf-8", "surrogatepass")


def read_damaged_manifest(content: bytes, work: Path) -> None:
    checkpoint = checkpoint_of(work)
    (checkpoint / "manifest.json").write_bytes(content)
    listed = list(find_checkpoints(checkpoint.parent, verify=True))
    screen = console(io.StringIO())
    for view in (*list_view(listed, screen), *details_view(listed[0])):
        screen.print(view)
    msgspec.json.encode([checkpoint_facts(each) for each in listed])


FORMATS = [
    Format("spec", draw_spec, read_spec),
    Format(
        "plan", draw_plan, lambda drawn, work: read_damaged(drawn, work, "plan.json")
    ),
    Format(
        "sources",
        draw_sources,
        lambda drawn, work: read_damaged(drawn, work, "sources.json"),
    ),
    Format("manifest", draw_manifest, read_damaged_manifest),
    Format("safetensors", draw_weights, read_weights),
    Format("npz", draw_npz, read_npz),
    Format("csv", draw_csv, read_csv),
    Format("parquet", draw_parquet, read_parquet),
    Format("pieces of csv", draw_csv, read_csv_pieces),
    Format("pieces of parquet", draw_parquet, read_parquet_pieces),
    Format("table", draw_table, read_first_rows),
    Format("place", draw_place, read_place),
    Format("module", draw_module, read_module),
    Format("graph", draw_graph, read_graph),
]
