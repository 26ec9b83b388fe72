"""Runs a prediction on all nodes of a build, as processes or as threads."""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placer.compiler.build_or_spec import build_folder, is_spec
from placer.compiler.frontend.unknown_arguments import refuse_unknown
from placer.errors import PlacerError, RunWarning
from placer.launcher.data_check import check_rows_to_predict
from placer.launcher.launch import AnyPath
from placer.launcher.logs import log_folder
from placer.launcher.one_process import one_process_build
from placer.launcher.processes import run_processes
from placer.launcher.supervise import Watch
from placer.plan.folder import check_outside
from placer.plan.plan import Plan, read_plan, read_sources
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.sources import KINDS
from placer.runtime.control.events import show_output
from placer.runtime.control.option_checks import check_one_process, check_thread_options
from placer.runtime.control.options import OF_PREDICTION, Options, takes_options
from placer.runtime.control.result import Outcome, PredictionResult
from placer.runtime.prediction.request import PredictionRequest, check_request, rows_of
from placer.runtime.signals.interruption import NOTHING_PREDICTED, Interruption
from placer.runtime.signals.signals import end_shown
from placer.system.callsite import warn_at_caller
from placer.system.files.globs import would_match
from placer.system.files.nearest_path import path_hint
from placer.system.files.utf8 import check_utf8
from placer.system.files.writable import why_not_writable
from placer.system.reentry import refuse_at_import, refuse_in_node

if TYPE_CHECKING:
    import numpy as np

_KIND_OF_SUFFIX = {
    suffix: name for name, kind in KINDS.items() for suffix in kind.suffixes
}
_TEMPORARY = "placer-"


@partial(takes_options, names=OF_PREDICTION)
def predict(
    build: AnyPath,
    rows: AnyPath | Mapping[str, Any] | None = None,
    *,
    params: AnyPath | Mapping[str, np.ndarray],
    outputs: Sequence[str] = (),
    keys: Sequence[str] = (),
    columns: Mapping[str, str | Sequence[str]] | None = None,
    raw: bool = False,
    single_process: bool = False,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Predict rows with a build, and return the outputs by name.

    All nodes of the build take part, unless `single_process` is given. Only the ops that
    the outputs depend on are run, so that inputs such as labels may be absent. The
    outputs have the same values as in an evaluation: dropout is off, and batch
    normalization uses its running statistics.

    Args:
        build: a build folder whose spec has `predict.outputs`, or that was compiled with
            `outputs`. Or a spec (a YAML file or `FILE.py:FUNCTION`), which is compiled
            with `outputs` into a temporary folder.
        rows: a file (`.csv`, `.csv.gz`, `.parquet`, `.npz`), a source such as
            `sklearn:digits`, or an array for each input by name. Default: the rows of
            `data.eval`, or else of `data.train`. Columns are read as the spec says.
        params: the parameters: a dict of arrays such as `Result.params`, a file from
            `save_params` of `launch`, a checkpoint, or a folder of checkpoints, whose
            last good checkpoint is used. Only a checkpoint contains sparse tables.
        outputs: the outputs of the build to return. Default: all.
        keys: columns of the rows to return as well.
        columns: the column or columns that an input reads, where they differ from the
            spec.
        raw: return class scores as the model computes them.
        single_process: predict in one process instead of on the nodes of the build.
        in_process: run the nodes as threads of this process instead of as processes.
        logs: as in `launch`.
        watch: as in `launch`.
        options: `transport`, `emulate`, `deadline`, `join_timeout` and `base_port` of
            `placer.Options`.

    Returns:
        An array [rows, ...] for each key and output, in the order of the rows. An output
        with class scores is returned as `class`, the name of each row's class, and
        `probability.NAME` for each class (docs/reference/spec.md#predict).

    Raises:
        SpecError, PlaceError, GraphError: the spec has an error.
        PlacerError: the build lacks an output, or arguments cannot be combined.
        DataError: the rows or the parameters do not fit the model.
        RunError: a node failed; all processes have ended.

    Example:
        predicted = placer.predict("build", "rows.csv", params="m.safetensors")
        print(predicted["class"], predicted["probability.yes"])
    """
    refuse_in_node("placer.predict")
    refuse_unknown("predict", options)
    import numpy as np

    from placer.readers.whole_numbers import to_array
    from placer.runtime.saving.parameter_files import file_of_parameters

    with ExitStack() as exits:
        exits.enter_context(end_shown())
        exits.enter_context(_errors_of_arrays())
        temporary = tempfile.TemporaryDirectory(prefix=_TEMPORARY)
        folder = Path(exits.enter_context(temporary))
        needs_build = is_spec(build)
        used_build = Path(build)
        if needs_build:
            compiled = build_folder(
                used_build, single_process=single_process, outputs=outputs or None
            )
            used_build = exits.enter_context(compiled)
        if isinstance(rows, Mapping):
            arrays = {key: to_array(value) for key, value in rows.items()}
            rows = folder / "rows.npz"
            _write_arrays(rows, arrays)
            used = {
                n for output in read_plan(used_build).outputs for n in output.inputs
            }
            columns = {n: n for n in arrays if n in used} | dict(columns or {})
        elif not isinstance(rows, str | os.PathLike | None):
            raise PlacerError(
                f"'rows' is a {type(rows).__name__}, not a file or arrays by name",
                hint="write the rows to a file, such as rows.parquet, or pass a dict "
                "with an array for each input",
            )
        request = make_request(
            folder / "outputs.npz",
            rows,
            outputs=outputs,
            keys=keys,
            columns=columns,
            raw=raw,
        )
        file = exits.enter_context(file_of_parameters(params))
        chosen = Options(init_params=file, **options)
        if single_process:
            check_one_process(chosen)
        if single_process and not needs_build:
            check_predict(used_build, request, logs=logs)
            used_build = exits.enter_context(one_process_build(used_build))
        result = predict_to_file(
            used_build,
            request,
            chosen,
            in_process=in_process,
            logs=logs,
            watch=watch,
        )
        for text in result.warnings:
            warn_at_caller(text, RunWarning)
        with np.load(folder / "outputs.npz", allow_pickle=False) as file:
            return dict(file)


@contextmanager
def _errors_of_arrays() -> Iterator[None]:
    """In errors, replace a temporary file by the name of the argument whose arrays it
    holds."""
    try:
        yield
    except PlacerError as error:
        temporary = re.escape(f"{tempfile.gettempdir()}/{_TEMPORARY}")
        file = rf"'?(?:npz:)?{temporary}\w+/(rows|params)(?:\.npz)?'?"
        error.message = re.sub(file, r"'\1'", error.message)
        raise


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays with any names. `numpy.savez` reserves some names, such as `file`."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise PlacerError(
                    f"the rows of '{name}' are Python objects, not numbers or text",
                    hint="fill in missing values and make all rows the same length, "
                    "or use a file such as rows.parquet, which may have missing "
                    "values",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)


def make_request(
    out: AnyPath,
    rows: AnyPath | None = None,
    *,
    outputs: Sequence[str] = (),
    keys: Sequence[str] = (),
    columns: Mapping[str, str | Sequence[str]] | None = None,
    raw: bool = False,
) -> PredictionRequest:
    """Return the request that the nodes of a prediction read. Relative paths start in
    the working folder. Raises PlacerError if `rows` is neither a file nor a source."""
    read = {
        name: column if isinstance(column, str) else [*column]
        for name, column in (columns or {}).items()
    }
    source = None if rows is None else _source_of(str(rows))
    target = str(Path(out).absolute())
    return PredictionRequest(target, source, read, tuple(keys), tuple(outputs), raw)


def _source_of(rows: str) -> str:
    kind, colon, path = rows.partition(":")
    if not colon or kind not in KINDS:
        suffixes = _KIND_OF_SUFFIX.items()
        found = next((k for suffix, k in suffixes if rows.endswith(suffix)), None)
        if found is None:
            listed = ", ".join(_KIND_OF_SUFFIX)
            forms = ", ".join(each.form for each in KINDS.values())
            raise PlacerError(
                f"'{rows}' is not a file of rows",
                hint=f"use a file that ends in {listed}, or one of: {forms}",
            )
        kind, path = found, rows
    if KINDS[kind].is_file and path:
        check_utf8(Path(path), PlacerError)
        path = str(Path(path).absolute())
        if not is_glob(path) and not Path(path).is_file():
            raise PlacerError(f"the file '{path}' does not exist", hint=path_hint(path))
    return f"{kind}:{path}"


def check_predict(
    build: Path,
    request: PredictionRequest,
    params: Path | None = None,
    logs: AnyPath | None = None,
) -> Plan:
    """Return the plan of a build. Raises PlacerError if the build cannot make the
    requested prediction."""
    refuse_in_node("placer.predict")
    plan = read_plan(build)
    spec = build / read_sources(build).spec
    refuse_at_import("placer.predict", spec.parent, plan.modules)
    check_request(plan, request)
    out = Path(request.out)
    check_utf8(out, PlacerError)
    if not out.parent.is_dir():
        raise PlacerError(
            f"cannot write '{out}': the folder '{out.parent}' does not exist",
            hint=path_hint(out.parent, Path.is_dir),
        )
    if why := why_not_writable(out, replaces=True):
        raise PlacerError(f"cannot write '{out}': {why}")
    if out.exists() and not out.is_file():
        raise PlacerError(f"cannot write '{out}': it is not a regular file")
    check_outside(out, build)
    if logs is not None:
        check_outside(Path(logs), build, "logs to ")
    source = rows_of(plan, request).parsed
    for read in (params, spec.parent / source.path):
        if read is not None and out.resolve().is_relative_to(read.resolve()):
            raise PlacerError(f"cannot write '{out}': the prediction reads '{read}'")
    if is_glob(source.path) and would_match(source.path, spec.parent, out):
        raise PlacerError(
            f"cannot write '{out}': it would be a file of {source.text}, which the"
            " prediction reads",
            hint="write the predictions to another folder",
        )
    return plan


def predict_to_file(
    build: Path,
    request: PredictionRequest,
    options: Options,
    *,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
) -> PredictionResult:
    """Run a prediction that writes its result to a file; see `predict` for the arguments."""
    plan = check_predict(build, request, options.init_params)
    interruption = Interruption(nothing_kept=NOTHING_PREDICTED)
    result: Outcome
    if in_process:
        check_thread_options(options, logs=logs, watch=watch)
        from placer.runtime.process.threads import run_in_threads

        result = run_in_threads(
            build, options, interruption=interruption, prediction=request
        )
    else:
        check_rows_to_predict(plan, build, request)
        with log_folder(logs, plan.name, build) as run_logs:
            result = run_processes(
                build,
                plan,
                options,
                run_logs,
                watch or show_output,
                interruption,
                prediction=request,
            )
    assert isinstance(result, PredictionResult)
    return result
