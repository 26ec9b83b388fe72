"""All options of all commands, and what makes each of them an error: an option that would
have no effect is refused.

The options come from the parsers of the commands, and the keywords from the signatures of
the functions; each needs an entry here. An entry is a command line that is refused, with a
part of the error, or says why the option always has an effect.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import placer
from placer.channel.keys import new_key, write_key
from placer.command.cli import commands
from placer.errors import PlacerError
from placer.runtime.control.options import OPTIONS

SPEC = """\
name: small
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: mean_squared_error, in: [h, y]}
train: {minimize: loss, epochs: 1, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@dataclass(frozen=True)
class Refused:
    """Words that a command refuses.

    Attributes:
        words: the words after those that `BEGINNINGS` has for the command; names in
            braces stand for files.
        says: a part of the error.
    """

    words: str
    says: str


Entry = Refused | tuple[Refused, ...] | str

BEGINNINGS: Mapping[str, str] = {
    "init": "",
    "train": "{spec}",
    "compile": "{spec} --out {new}",
    "launch": "{build}",
    "predict": "{build} --params {params} --out {new}.csv",
    "export": "{build} --params {params} --out {new}",
    "report": "{build}",
    "show": "{build}",
    "explain": "{build}",
    "check": "{spec}",
    "run": "{build} --node worker:0",
    "opt": "{graph}",
}
"""What each command needs before the words of an entry."""

_SYNCHRONOUS = "the nodes of this build train synchronously"
_LIMIT = "a limit of waits, of which a run may have none"
RUN: Mapping[str, Entry] = {
    "--steps": "the number of steps",
    **{
        option.split()[0]: Refused(option, "data.train of this build is no stream")
        for option in ("--until now", "--passes 2", "--skip-pass")
    },
    "--history": "a file that is written",
    "--save-params": "a file that is written",
    "--init-params": Refused(
        "--init-params {params} --resume {folder}", "cannot be combined"
    ),
    "--checkpoint": "a checkpoint is saved at the end, at least",
    "--checkpoint-every": Refused("--checkpoint-every 5", "needs checkpoints, but"),
    "--checkpoint-keep": Refused("--checkpoint-keep 5", "needs checkpoints, but"),
    "--publish": Refused("--publish {new}", "'publish'"),
    "--resume": Refused(
        "--resume {folder} --init-params {params}", "cannot be combined"
    ),
    "--new-rows": Refused("--new-rows", "needs 'resume' (--resume DIR)"),
    "--partial": Refused("--partial", "needs 'resume' (--resume DIR)"),
    "--shrink": (
        Refused("--shrink", "needs 'resume' (--resume DIR)"),
        Refused("--shrink --resume {folder}", "no sparse table has `forget`"),
    ),
    "--restarts": Refused(
        "--in-process --restarts 2", "'restarts' cannot be used with in-process"
    ),
    "--grace": Refused("--grace 5", "the run saves nothing"),
    "--base-port": Refused(
        "--in-process --base-port 9000", "'base_port' cannot be used"
    ),
    "--join-timeout": Refused("--in-process --join-timeout 9", "'join_timeout' cannot"),
    "--deadline": f"{_LIMIT}; threads have it, too",
    "--lost-after": Refused(
        "--in-process --lost-after 9", "'lost_after' cannot be used"
    ),
    "--transport": Refused(
        "--in-process --transport tcp", "'transport' cannot be used"
    ),
    "--key": Refused("--in-process --key {key}", "'key' cannot be used"),
    "--insecure-network": (
        Refused("--insecure-network", "all nodes run on this machine"),
        Refused(
            "--transport shared --insecure-network", "all nodes run on this machine"
        ),
    ),
    "--record-order": Refused("--record-order {new}", _SYNCHRONOUS),
    "--replay-order": (
        Refused("--replay-order {folder}", _SYNCHRONOUS),
        Refused("--replay-order {folder} --restarts 1", "cannot be combined"),
    ),
    "--trace": "a file that is written",
    "--trace-steps": Refused("--trace-steps 1:2", "needs 'trace' (--trace FILE)"),
    "--emulate": "allows runs without accelerators; a machine may have them or not",
    "--debug-nans": "the steps run op by op",
}
COMPILE: Mapping[str, Entry] = {
    "--set": "a key of the spec, whose effect the spec says",
    "--nodes": Refused("--nodes worker=3 --single-process", "cannot be combined"),
    "--single-process": Refused("--single-process --nodes worker=3", "be combined"),
    "--outputs": "the values that predictions return",
    "--no-code": "forbids what a spec may do; one that does not is as it asks",
}
LAUNCH: Mapping[str, Entry] = {
    "--json": "the form of the result",
    "--logs": Refused("--in-process --logs {new}", "'logs' cannot be used"),
    "--tensorboard": "a folder that is written",
    "--elastic": (
        Refused("--elastic worker=1", "needs 'restarts' (--restarts N)"),
        Refused("--elastic worker=2 --restarts 1", "has no effect"),
    ),
    "--in-process": "where the nodes run",
    "--quiet": "what is printed",
}
OF_A_BUILD: Mapping[str, Entry] = {
    "--set": Refused(
        "--set train.epochs=2", "is a build, whose keys cannot be changed"
    ),
    "--no-code": Refused("--no-code", "which cannot be used without running its code"),
}
VIEW: Mapping[str, Entry] = {
    "--set": OF_A_BUILD["--set"],
    "--no-code": "no code of a build is run to show it, as it asks",
}
_ON = "--on slurm --write {new}"
_FOR_ENGINES = Refused("--option partition=short", "need an engine")
TABLE: Mapping[str, Mapping[str, Entry]] = {
    "init": {
        "--label": Refused("--label y", "--label needs a FILE.csv"),
        "--ids": Refused("--ids a", "--ids needs a FILE.csv"),
        "--task": Refused("--task regression", "--task needs a FILE.csv"),
        "--out": "the name of the file",
        "--force": "allows to overwrite; a file that is not there needs no permission",
    },
    "train": {
        **COMPILE,
        **RUN,
        **LAUNCH,
        "--out": "the folder of the run",
        "--transport": (
            Refused("--in-process --transport tcp", "'transport' cannot be used"),
            Refused(
                "--single-process --transport tcp", "it concerns several processes"
            ),
        ),
    },
    "compile": {
        **COMPILE,
        "--out": "the folder of the build",
        "--print-after": Refused(
            "--print-after predict --print-after recompute", "has no effect"
        ),
    },
    "launch": {
        **RUN,
        **LAUNCH,
        "--on": Refused(
            "--on slurm --hosts {hosts}", "--hosts cannot be used with --on"
        ),
        "--option": _FOR_ENGINES,
        "--write": Refused("--write {new}", "need an engine"),
        "--hosts": Refused(
            "--hosts {hosts} --in-process", "cannot be used with --hosts"
        ),
        "--ssh": (
            Refused("--ssh 'ssh -4'", "--ssh is for other machines"),
            Refused("--on slurm --ssh ssh", "--ssh cannot be used with --on"),
        ),
        "--python": (
            Refused("--python python3", "is for other machines"),
            Refused("--on slurm --python python3", "--python cannot be used with --on"),
        ),
        "--restarts": (
            RUN["--restarts"],
            Refused("--hosts {hosts} --restarts 2", "needs 'checkpoint'"),
            Refused("--on slurm --restarts 2", "needs 'checkpoint'"),
        ),
        "--data": "the data, and what placer.data_folder() returns",
        "--json": Refused(f"{_ON} --json", "no effect with --write"),
        "--logs": (
            Refused("--in-process --logs {new}", "'logs' cannot be used"),
            Refused(f"{_ON} --logs {{folder}}", "no effect with --write"),
        ),
        "--tensorboard": Refused(
            f"{_ON} --tensorboard {{folder}}", "no effect with --write"
        ),
        "--elastic": (
            *LAUNCH["--elastic"],
            Refused("--on slurm --elastic worker=1", "cannot be used with slurm"),
            Refused(f"{_ON} --elastic worker=1", "no effect with --write"),
        ),
        "--quiet": Refused(f"{_ON} --quiet", "no effect with --write"),
        "--in-process": Refused("--on slurm --in-process", "cannot be used with --on"),
        "--base-port": (
            Refused("--in-process --base-port 9000", "'base_port' cannot be used"),
            Refused("--on slurm --base-port 9000", "cannot be used with an engine"),
            Refused("--hosts {ports} --base-port 9000", "has an explicit port"),
        ),
    },
    "predict": {
        **OF_A_BUILD,
        "--params": "the parameters",
        "--outputs": "what is returned",
        "--out": "the file that is written",
        "--in": "the rows",
        "--keys": "columns of the file that is written",
        "--columns": Refused("--columns z=pixels", "'z'"),
        "--raw": "asks for outputs as they are computed; others than of classes are",
        "--single-process": "where the rows are predicted",
        "--base-port": (
            Refused("--in-process --base-port 9000", "'base_port' cannot be used"),
            Refused(
                "--single-process --base-port 9000", "it concerns several processes"
            ),
        ),
        "--join-timeout": (
            Refused("--in-process --join-timeout 9", "'join_timeout' cannot be used"),
            Refused(
                "--single-process --join-timeout 9", "it concerns several processes"
            ),
        ),
        "--transport": (
            Refused("--in-process --transport tcp", "'transport' cannot be used"),
            Refused(
                "--single-process --transport tcp", "it concerns several processes"
            ),
        ),
        "--deadline": _LIMIT,
        "--emulate": RUN["--emulate"],
        "--logs": Refused("--in-process --logs {new}", "'logs' cannot be used"),
        "--in-process": "where the nodes run",
        "--quiet": "what is printed",
        "--json": "the form of the result",
    },
    "export": {
        **OF_A_BUILD,
        "--params": "the parameters",
        "--outputs": "what the model returns",
        "--out": "the folder that is written",
        "--batch": "the files of StableHLO that are written",
    },
    "runs": {"--json": "the form of the list"},
    "report": {
        **VIEW,
        "--trace": "what the page shows; a trace of another build is refused",
        "--out": Refused("--out {new} --json", "--out has no effect with --json"),
        "--open": Refused("--open --json", "--open has no effect with --json"),
        "--json": "the form of the result",
        "--svg": Refused("--svg --json", "--svg has no effect with --json"),
    },
    "checkpoints": {
        "--no-verify": "the files are not read",
        "--json": "the form of the list",
    },
    "show": {
        **VIEW,
        **{
            option: Refused(f"{option} --summary --tables", "cannot be combined")
            for option in ("--summary", "--tables", "--schedule")
        },
        "--graph": Refused("--graph --tables", "cannot be combined"),
        "--phase": Refused("--phase step", "--phase needs --graph"),
        "--json": Refused("--json", "--json needs --tables"),
        "--node": Refused("--node worker:0 --tables", "cannot be combined"),
    },
    "explain": VIEW,
    "check": {**COMPILE, "--no-data": "the data is not opened"},
    "run": {
        **RUN,
        "--node": "the node that is run",
        "--endpoints": Refused("--endpoints worker:7=a:1", "no node 'worker:7'"),
        "--hosts": Refused(
            "--hosts {hosts} --endpoints worker:0=127.0.0.1:1,worker:1=127.0.0.1:2",
            "--hosts has no effect",
        ),
        "--bind": "the address where the node listens",
        "--data": "the data; a node that reads none has it as all nodes",
        "--events": "a file that is written",
        "--base-port": Refused(
            "--base-port 9000 --endpoints worker:0=127.0.0.1:1,worker:1=127.0.0.1:2",
            "has an explicit port",
        ),
        "--restarts": Refused("--restarts 2", "needs 'checkpoint'"),
        "--join-timeout": _LIMIT,
        "--lost-after": _LIMIT,
        "--transport": "how the node listens",
        "--key": "what a node needs to connect to this one",
        "--report-fd": "hidden: of launchers",
        "--order-fd": "hidden: of launchers",
        "--paced": "hidden: of launchers",
        "--prediction": "hidden: of launchers",
        "--attempt": "hidden: of launchers",
        "--check": "hidden: of launchers",
        "--run-id": "hidden: of launchers",
        "--guard-fd": "hidden: of guards",
        "--leave-on-sigterm": "hidden: of engines",
    },
    "schema": {},
    "to-yaml": {"--out": "the file that is written"},
    "opt": {
        "--pass": "the passes that are run",
        "--why": Refused("--why", "--why needs --pass"),
    },
    "key new": {},
    "info": {"--json": "the form of the facts"},
}
EVERYWHERE: Mapping[str, str] = {"--debug": "what is printed of an error"}


def all_commands(
    group: click.Group = commands, before: str = ""
) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_each_option_of_each_command_has_an_entry() -> None:
    found = {
        name: sorted(
            each.opts[0] for each in command.params if isinstance(each, click.Option)
        )
        for name, command in all_commands()
    }
    listed = {
        name: sorted([*entries, *(o for o in EVERYWHERE if o in found.get(name, ()))])
        for name, entries in TABLE.items()
    }
    assert found == listed


LISTS: Mapping[str, tuple[str, str, object]] = {
    "--nodes": ("worker=1,ps=2", "x=3", {"worker": 1, "ps": 2, "x": 3}),
    "--elastic": ("worker=1,ps=2", "x=3", {"worker": 1, "ps": 2, "x": 3}),
    "--endpoints": ("a:0=h:1", "a:1=h:2", {"a:0": "h:1", "a:1": "h:2"}),
    "--columns": ("a=b", "c=d", {"a": "b", "c": "d"}),
    "--batch": ("1,32", "4", (1, 32, 4)),
}
NAMES = "a,b", "c", ("a", "b", "c")


def test_each_repeated_list_option_adds_to_the_list() -> None:
    found = 0
    for name, command in all_commands():
        for option in command.params:
            context = click.Context(command)
            if not isinstance(option, click.Option) or not {",", "…"} & {
                *option.make_metavar(context)
            }:
                continue
            flag = option.opts[0]
            first, second, both = LISTS.get(flag, NAMES)
            given, _, _ = command.make_parser(context).parse_args(
                [flag, first, flag, second]
            )
            value, _ = option.handle_parse_result(context, given, [])
            assert value == both, (name, flag)
            found += 1
            if isinstance(both, dict):
                twice = {option.name: [second, second]}
                with pytest.raises(click.BadParameter, match="is repeated"):
                    option.handle_parse_result(context, twice, [])
    assert found >= 12


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The files that entries name."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "small.yaml").write_text(SPEC)
    np.savez(folder / "rows.npz", x=np.ones((8, 2), "f4"), y=np.ones((8, 1), "f4"))
    placer.compile(folder / "small.yaml", folder / "build", outputs=["h"])
    (folder / "params").write_bytes(b"")
    (folder / "empty").mkdir()
    write_key(folder / "key", new_key())
    (folder / "hosts").write_text("worker: [127.0.0.1, 127.0.0.1]")
    (folder / "ports").write_text("worker: ['127.0.0.1:5000', '127.0.0.1:5001']")
    (folder / "graph.txt").write_text((folder / "build" / "graph.txt").read_text())
    return {
        "spec": str(folder / "small.yaml"),
        "build": str(folder / "build"),
        "params": str(folder / "params"),
        "folder": str(folder / "empty"),
        "key": str(folder / "key"),
        "hosts": str(folder / "hosts"),
        "ports": str(folder / "ports"),
        "rows": str(folder / "rows.npz"),
        "graph": str(folder / "graph.txt"),
    }


def refusals() -> Iterator[Any]:
    for command, entries in TABLE.items():
        for option, entry in entries.items():
            each = (entry,) if isinstance(entry, Refused) else entry
            if isinstance(each, str):
                continue
            for number, refused in enumerate(each):
                yield pytest.param(
                    command, option, refused, id=f"{command} {option} {number}"
                )


@pytest.mark.parametrize(("command", "option", "refused"), [*refusals()])
def test_an_option_without_effect_is_refused(
    command: str,
    option: str,
    refused: Refused,
    names: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("PLACER_SSH", "PLACER_ENDPOINTS", "PLACER_TRANSPORT"):
        monkeypatch.delenv(variable, raising=False)
    assert option in refused.words
    text = f"{command} {BEGINNINGS[command]} {refused.words}"
    words = shlex.split(text.format(**names, new=tmp_path / "new"))
    with pytest.raises((PlacerError, click.UsageError)) as error:
        commands.main(words, prog_name="placer", standalone_mode=False)
    assert refused.says in (
        str(error.value)
        if isinstance(error.value, PlacerError)
        else error.value.format_message()
    )
    assert not list(tmp_path.iterdir()), "it was refused only after it had begun"


OF_FUNCTIONS: Mapping[
    Callable[..., Any], Mapping[str, tuple[dict[str, Any], str] | str]
] = {
    placer.launch: {
        "build": "the build",
        "in_process": ({"in_process": True, "hosts": "{hosts}"}, "'in_process' cannot"),
        "logs": ({"in_process": True, "logs": "{new}"}, "'logs' cannot be used"),
        "watch": ({"in_process": True, "watch": print}, "'watch' cannot be used"),
        "progress": (
            {"in_process": True, "progress": True},
            "'progress' cannot be used",
        ),
        "return_params": (
            {"return_params": True, "hosts": "{hosts}"},
            "'return_params' cannot be used",
        ),
        "callbacks": "objects that are called",
        "tensorboard": "a folder that is written",
        "hosts": ({"hosts": "{hosts}", "on": "slurm"}, "cannot be combined"),
        "on": ({"hosts": "{hosts}", "on": "slurm"}, "cannot be combined"),
        "elastic": ({"elastic": "worker=1"}, "needs 'restarts'"),
    },
    placer.compile: {
        "spec": "the spec",
        "out": "the folder of the build",
        "nodes": (
            {"nodes": {"worker": 3}, "single_process": True},
            "cannot be combined",
        ),
        "overrides": "keys of the spec",
        "single_process": (
            {"nodes": {"worker": 3}, "single_process": True},
            "cannot be combined",
        ),
        "outputs": "the values that predictions return",
        "code": "forbids what a spec may do",
        "after_pass": "a function that is called",
    },
    placer.predict: {
        "build": "the build",
        "rows": "the rows",
        "params": "the parameters",
        "outputs": "what is returned",
        "keys": "columns that are returned",
        "raw": "asks for outputs as they are computed; others than of classes are",
        "columns": ({"columns": {"z": "pixels"}, "rows": "{rows}"}, "'z'"),
        "single_process": (
            {"single_process": True, "transport": "tcp", "rows": "{rows}"},
            "it concerns several processes",
        ),
        "in_process": "where the nodes run",
        "logs": (
            {"in_process": True, "logs": "{new}", "rows": "{rows}"},
            "'logs' cannot be used",
        ),
        "watch": (
            {"in_process": True, "watch": print, "rows": "{rows}"},
            "'watch' cannot be used",
        ),
    },
    placer.export: {
        "build": "the build",
        "out": "the folder that is written",
        "params": "the parameters",
        "outputs": "what the model returns",
        "batch": "the files that are written",
    },
}
FIRST: Mapping[str, Mapping[str, str]] = {
    "launch": {"build": "{build}"},
    "compile": {"spec": "{spec}", "out": "{new}"},
    "predict": {"build": "{build}", "params": "{params}"},
}


def test_each_keyword_of_each_function_has_an_entry() -> None:
    """Options of a run are those of the commands."""
    options = {option.name for option in OPTIONS}
    for function, entries in OF_FUNCTIONS.items():
        own = inspect.signature(function).parameters.keys() - options - {"options"}
        assert own == entries.keys(), function


def keyword_refusals() -> Iterator[Any]:
    for function, entries in OF_FUNCTIONS.items():
        for name, entry in entries.items():
            if not isinstance(entry, str):
                yield pytest.param(function, *entry, id=f"{function.__name__} {name}")


@pytest.mark.parametrize(("function", "keywords", "says"), [*keyword_refusals()])
def test_a_keyword_without_effect_is_refused(
    function: Callable[..., Any],
    keywords: Mapping[str, Any],
    says: str,
    names: Mapping[str, str],
    tmp_path: Path,
) -> None:
    given = {
        name: value.format(**names, new=tmp_path / "new")
        if isinstance(value, str)
        else value
        for name, value in {**FIRST[function.__name__], **keywords}.items()
    }
    with pytest.raises(PlacerError) as error:
        function(**given)
    assert says in str(error.value)
    assert not list(tmp_path.iterdir())
