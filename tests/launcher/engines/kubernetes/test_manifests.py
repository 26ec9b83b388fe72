"""The files of a job on Kubernetes: as reviewed, and valid for Kubernetes and JobSet."""

from __future__ import annotations

import base64
import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml
from support.data_sets import FOLDER
from support.kubernetes.requests import needs_of, options, request_of

import placer
from placer.channel.endpoint import parse_endpoint
from placer.errors import PlacerError
from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import JobRequest, Needs
from placer.launcher.engines.kubernetes.groups import group_nodes, host_names, job_name
from placer.launcher.engines.kubernetes.names import is_image
from placer.plan.plan import SOURCES, Plan, read_plan
from placer.plan.settings.evaluation_and_stopping import Checkpointing, Publishing
from placer.system.resources import find_file

GOLDEN = Path(__file__).parents[3] / "golden" / "kubernetes"
UPDATE = "PLACER_UPDATE_GOLDEN"
SCHEMA = FOLDER / "jobset-crd.yaml.gz"
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
FILES = {"plan.json": b"{}\n", "worker/program.py": b"print('step')\n"}
"""The files of a build, for its archive: those of a plan change with the compiler."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """The plans of two specs: with servers, and with a GPU on a heter node."""
    folder = tmp_path_factory.mktemp("builds")
    for spec, overrides in (("digits", {}), ("wide_deep", {"emulate": False})):
        source = find_file(f"specs/{spec}.yaml")
        placer.compile(source, folder / spec, overrides=overrides)
    return {spec: read_plan(folder / spec) for spec in ("digits", "wide_deep")}


def case(plans: Mapping[str, Plan], name: str) -> tuple[JobRequest, dict[str, Any]]:
    """Return a reviewed request and its options: its files are golden."""
    spec, _, crd = name.rpartition("_")
    if spec in ("digits", "restarts"):
        saving = ["--steps=100", "--checkpoint=/out/checkpoints"]
        restarts = 3 if spec == "restarts" else 0
        saving += [f"--restarts={restarts}"] if restarts else []
        request = request_of(
            plans["digits"], FILES, *saving, saves=True, restarts=restarts
        )
        return request, options(crd=crd, volumes="runs:/out")
    request = request_of(plans[spec], FILES, data=Path("/data"), name="Wide & deep")
    chosen = {
        "namespace": "ml",
        "volumes": "rows:/data:ro,/local/scratch:/scratch",
        "user": 1000,
        "cpu": "4",
        "port": 5000,
        "service_account": "training",
        "node_selector": "pool=gpu",
        "labels": "kueue.x-k8s.io/queue-name=team,cost-centre=0x17",
    }
    return request, options(crd=crd, **chosen)


CASES = (
    "digits_jobset",
    "digits_none",
    "restarts_jobset",
    "wide_deep_jobset",
    "wide_deep_none",
)


@pytest.mark.parametrize("name", CASES)
def test_files_are_those_that_were_reviewed(
    name: str, plans: Mapping[str, Plan]
) -> None:
    request, chosen = case(plans, name)
    files = kubernetes.write(request, chosen)
    assert files == kubernetes.write(request, chosen)
    assert [path for path, file in files.items() if file.private] == ["key.yaml"]
    texts = {path: str(file.content) for path, file in files.items()}
    folder = GOLDEN / name
    if os.environ.get(UPDATE):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            (folder / path).write_text(text)
    expected = {path.name: path.read_text() for path in folder.iterdir()}
    # Other versions of zlib compress it to other bytes.
    parts = [whole.pop("build.yaml").rpartition("|\n") for whole in (texts, expected)]
    assert parts[0][0] == parts[1][0]
    assert {unpacked(archive) == FILES for *_, archive in parts} == {True}
    # If the change is intended: UPDATE=1 writes the files, for review.
    assert texts == expected


def unpacked(text: str) -> dict[str, bytes]:
    """Return the files of an archive in Base64."""
    content = gzip.decompress(base64.b64decode(text))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = {}
        for member in archive:
            assert (member.mtime, member.uid, member.mode) == (0, 0, 0o644)
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


def objects(request: JobRequest, chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a job, as they are read."""
    for file in kubernetes.write(request, chosen).values():
        yield from yaml.safe_load_all(str(file.content))


@pytest.mark.parametrize("name", CASES)
def test_objects_are_valid_for_five_versions_of_kubernetes(
    name: str, plans: Mapping[str, Plan]
) -> None:
    for each in objects(*case(plans, name)):
        for version in VERSIONS:
            if each["kind"] != "JobSet":
                assert kubernetes_validate.validate(each, version, strict=True)
                continue
            for job in each["spec"]["replicatedJobs"]:
                template = job["template"]
                alone = {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "a", **template.get("metadata", {})},
                    "spec": template["spec"],
                }
                assert kubernetes_validate.validate(alone, version, strict=True)


@cache
def jobset_schema() -> jsonschema.Draft202012Validator:
    """Return the strict schema of a JobSet: unknown fields are errors."""
    if not SCHEMA.is_file():
        pytest.skip(f"there is no {SCHEMA.name}: PLACER_TEST_DATA names its folder")
    text = gzip.decompress(SCHEMA.read_bytes())
    definition = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = definition["spec"]["versions"]
    assert (definition["spec"]["group"], version["name"]) == (
        "jobset.x-k8s.io",
        "v1alpha2",
    )
    schema = version["schema"]["openAPIV3Schema"]
    _forbid_unknown(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def _forbid_unknown(schema: dict[str, Any]) -> None:
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
        schema.pop("anyOf", None)
        schema["type"] = ["integer", "string"]
    for part in schema.get("properties", {}).values():
        _forbid_unknown(part)
    if "properties" in schema:
        schema["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            _forbid_unknown(schema[name])


@pytest.mark.parametrize("name", [name for name in CASES if "jobset" in name])
def test_jobsets_are_valid(name: str, plans: Mapping[str, Plan]) -> None:
    *_, jobset = objects(*case(plans, name))
    jobset_schema().validate(jobset)
    first = jobset["spec"]["replicatedJobs"][0]
    for broken in (
        {"spec": {**jobset["spec"], "succesPolicy": {}}},
        {"spec": {**jobset["spec"], "successPolicy": {"operator": "Some"}}},
        {"spec": {**jobset["spec"], "replicatedJobs": [{**first, "replica": 1}]}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jobset_schema().validate({**jobset, **broken})


def test_a_kind_whose_nodes_differ_is_several_jobs(plans: Mapping[str, Plan]) -> None:
    needs = needs_of(["worker:0", "worker:1", "worker:2", "ps:0"])
    needs["worker:2"] = Needs(5 << 20, 2)
    request = request_of(plans["digits"], FILES, needs=needs)
    *_, jobset = objects(request, options())
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    counts = {name: job["replicas"] for name, job in jobs.items()}
    assert counts == {"worker-0-1": 2, "worker-2": 1, "ps": 1}
    targets = jobset["spec"]["successPolicy"]["targetReplicatedJobs"]
    assert targets == ["worker-0-1", "worker-2"]
    container = jobs["worker-2"]["template"]["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert container["resources"]["limits"] == {"memory": "5Mi", "nvidia.com/gpu": "2"}
    (addresses,) = (
        each["value"] for each in container["env"] if each["name"] == "PLACER_ENDPOINTS"
    )
    assert "worker:2=digits-worker-2-0-0.digits:27600" in addresses.split(",")


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("My_Model", ["worker:0"]),
        ("7B model", ["worker:0", "ps:0"]),
        ("模型", ["worker:0"]),
        ("a" * 80, [f"worker:{i}" for i in range(1200)]),
        ("a" * 63 + "b", ["a_b:0", "a__b:0", "a_b_:0"]),
        ("-x-", [f"{'k' * 70}:0", f"{'k' * 71}:0"]),
    ],
)
@pytest.mark.parametrize("jobset", [True, False])
def test_all_names_are_labels_of_dns(name: str, nodes: list[str], jobset: bool) -> None:
    groups = group_nodes(needs_of(nodes))
    job = job_name(name, groups)
    hosts = host_names(job, groups, jobset)
    assert list(hosts) == nodes
    assert len({*hosts.values()}) == len(nodes)
    for host in hosts.values():
        pod, _, service = host.partition(".")
        for label in (f"{pod}-abcde", service, f"{job}-build"[:63]):
            assert len(label) <= 63
            assert label[0].isalpha()
            assert set(label) <= {*"abcdefghijklmnopqrstuvwxyz0123456789-"}


def test_names_of_jobs_are_those_of_the_model() -> None:
    groups = group_nodes(needs_of(["worker:0"]))
    names = {name: job_name(name, groups) for name in ("Wide_Deep", "7b", "é")}
    assert names == {"Wide_Deep": "wide-deep", "7b": "run-7b", "é": "run"}
    assert job_name("a" * 80, groups) != job_name("a" * 81, groups)


def test_the_address_of_a_pod_and_a_port_are_an_address_to_listen_at() -> None:
    # A script puts them together, without brackets around an IPv6 address.
    assert parse_endpoint("ps:0", "10.0.0.7:27600") == ("10.0.0.7", 27600)
    assert parse_endpoint("ps:0", "fd00::7:27600") == ("fd00::7", 27600)


def test_a_build_that_is_too_large_is_refused_with_its_size(
    plans: Mapping[str, Plan],
) -> None:
    files = {**FILES, "worker/weights.bin": os.urandom(1 << 20)}
    request = request_of(plans["digits"], files)
    with pytest.raises(PlacerError) as caught:
        kubernetes.write(request, options())
    assert "the packed build has 1,0" in str(caught.value)
    assert "can hold only 716,800" in str(caught.value)
    assert "--option build=PATH" in str(caught.value)
    assert "build.yaml" not in kubernetes.write(
        request, options(build="/builds/digits")
    )


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"image": None}, "needs an image with Python and placer: --option image=NAME"),
        ({"port": 0}, "port: 0 is not between 1 and 65535"),
        ({"cpu": "four"}, "cpu: 'four' is not a number such as 4 or 500m"),
        ({"user": -1}, "user: -1 is negative"),
        ({"labels": "queue"}, "labels: 'queue' must have the form name=value,…"),
        ({"volumes": "claim"}, "volumes: 'claim' is not a volume"),
        ({"volumes": "claim:/data:rw"}, "'claim:/data:rw' is not a volume"),
        ({"volumes": "Claim:/data"}, "'Claim' is not a valid name of a claim"),
        ({"volumes": "a:/data,b:/data/"}, "two volumes have the path '/data'"),
        ({"volumes": "a:/"}, "no volume can be mounted at '/'"),
        ({"volumes": "a:/placer/run"}, "no volume can be mounted at '/placer/run'"),
        ({"volumes": "/data/../etc:/data"}, "'/data/../etc' must not contain '..'"),
        ({"build": "builds"}, "build: 'builds' is not an absolute path"),
        ({"image": "placer image"}, "'placer image' is not a valid name of an image"),
        ({"image": "Team/Placer:1"}, "'Team/Placer:1' is not a valid name of an image"),
        ({"image": "team/placer:"}, "'team/placer:' is not a valid name of an image"),
        ({"image": "a" * 256}, "aaa' is not a valid name of an image"),
        ({"image": "docker://placer"}, "'docker://placer' is not a valid name of"),
        ({"kubectl": "'"}, " is not a command: no closing quotation"),
        ({"kubectl": " "}, "kubectl: the command is empty"),
        ({"labels": "a queue=x"}, "labels: 'a queue=x' is not a valid label"),
        ({"node_selector": "pool=-a"}, "node-selector: 'pool=-a' is not a valid label"),
        (
            {"labels": "app.kubernetes.io/instance=a"},
            "placer itself sets the label 'app.kubernetes.io/instance'",
        ),
        ({"service_account": "Me"}, "service-account: 'Me' is not a valid name"),
        ({"gpu_resource": "gpu"}, "gpu-resource: 'gpu' is not a name such as"),
    ],
)
def test_options_that_no_job_can_have(
    chosen: dict[str, Any], message: str, plans: Mapping[str, Plan]
) -> None:
    with pytest.raises(PlacerError) as caught:
        kubernetes.write(request_of(plans["digits"], FILES), options(**chosen))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "image",
    [
        "placer",
        "registry.example:5000/my-team/my_placer.x:1.2-a_B",
        "Registry.Example/placer",
        "[fd00::7]:5000/a__b/c--d",
        f"placer:1@sha256:{'0' * 64}",
        f"registry.example:5000/{'a' * 255}:{'1' * 128}@sha256:{'0' * 64}",
    ],
)
def test_images_have_the_names_of_images(image: str) -> None:
    assert is_image(image)


@pytest.mark.parametrize(
    ("arguments", "volumes", "message"),
    [
        (
            ["--save-params=/out/params.safetensors"],
            None,
            "--save-params is '/out/params.safetensors', which is not on a volume: it would"
            " be lost with the pod\n  hint: mount a volume there: --option"
            " volumes=CLAIM:/PATH",
        ),
        (
            ["--checkpoint=/outside"],
            "runs:/out",
            "--checkpoint is '/outside', which is",
        ),
        (["--checkpoint=/out/../tmp"], "runs:/out", "--checkpoint is '/tmp', which is"),
        (
            ["--record-order=/data/order"],
            "runs:/out,rows:/data:ro",
            "--record-order is '/data/order', but its volume is read-only\n"
            "  hint: make it writable: --option volumes=rows:/data, without :ro",
        ),
    ],
)
def test_files_that_would_be_lost_are_refused(
    arguments: list[str], volumes: str | None, message: str, plans: Mapping[str, Plan]
) -> None:
    request = request_writing(plans["digits"], *arguments)
    with pytest.raises(PlacerError) as caught:
        kubernetes.write(request, options(volumes=volumes))
    assert message in str(caught.value)


def test_files_on_volumes_and_what_is_read_are_not_refused(
    plans: Mapping[str, Plan],
) -> None:
    arguments = ["--save-params=/data/out/a", "--checkpoint=/data/out", "--resume=/r"]
    request = request_writing(plans["digits"], *arguments, "--history=/dev/stdout")
    volumes = "rows:/data:ro,runs:/data/out"
    assert kubernetes.write(request, options(volumes=volumes))


@pytest.mark.parametrize(
    ("setting", "key", "flag"),
    [
        (
            {"checkpoint": Checkpointing(to="saved")},
            "train.checkpoint.to",
            "--checkpoint",
        ),
        (
            {"publishing": Publishing(folder="saved")},
            "train.publish.folder",
            "--publish",
        ),
    ],
)
def test_folders_of_the_spec_would_be_lost_beside_the_build(
    setting: dict[str, Any], key: str, flag: str, plans: Mapping[str, Plan]
) -> None:
    replace, plan = msgspec.structs.replace, plans["digits"]
    train = replace(plan.settings.train, **setting)
    plan = replace(plan, settings=replace(plan.settings, train=train))
    files = {**FILES, SOURCES: b'{"spec": "../digits.yaml", "ops": {}}'}
    with pytest.raises(PlacerError) as caught:
        kubernetes.write(request_of(plan, files), options(volumes="runs:/out"))
    says = str(caught.value)
    assert f"{key} is '/placer/run/saved', which is not on a volume" in says
    assert f"hint: choose another folder with {flag} DIR, or mount" in says
    on_volume = options(volumes="runs:/out", build="/out/builds/digits")
    assert kubernetes.write(request_of(plan, files), on_volume)


def request_writing(plan: Plan, *arguments: str) -> JobRequest:
    """Return a request of a run that writes the files of its arguments, as
    `request_job` does."""
    named = dict(each.split("=") for each in arguments)
    kept = ("--save-params", "--history")
    writes = {flag: Path(path) for flag, path in named.items() if flag in kept}
    return replace(request_of(plan, FILES, *arguments), writes=writes)


def test_texts_that_kubectl_would_take_for_numbers_are_quoted(
    plans: Mapping[str, Plan],
) -> None:
    request = request_of(plans["digits"], FILES)
    files = kubernetes.write(request, options(labels="a=1e3,b=0o7,c=4Gi"))
    lines = [line.strip() for line in str(files["run.yaml"].content).splitlines()]
    assert {'a: "1e3"', 'b: "0o7"', "c: 4Gi"} <= {*lines}
