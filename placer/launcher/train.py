"""Compiles a spec and runs it, in a new folder for the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placer.compiler.driver import compile_in_memory
from placer.compiler.frontend.unknown_arguments import refuse_unknown
from placer.launcher.elastic_checks import Least
from placer.launcher.launch import AnyPath, launch_checked
from placer.launcher.run_folder import new_run
from placer.launcher.start_arrays import check_arrays, options_of
from placer.launcher.supervise import Watch
from placer.runtime.callbacks.callbacks import check_callbacks
from placer.runtime.control.option_checks import check_one_process, check_thread_options
from placer.runtime.control.options import takes_options
from placer.runtime.control.result import Result
from placer.system.reentry import refuse_in_node

if TYPE_CHECKING:
    from placer.compiler.frontend.python.overrides import Overrides
    from placer.compiler.frontend.python.program import Program


@takes_options
def train(
    spec: AnyPath | Program,
    *,
    out: AnyPath | None = None,
    nodes: Mapping[str, int] | None = None,
    overrides: Overrides | None = None,
    single_process: bool = False,
    outputs: Sequence[str] | None = None,
    code: bool = True,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
    return_params: bool | None = None,
    callbacks: Iterable[object] = (),
    tensorboard: AnyPath | None = None,
    elastic: Least | None = None,
    **options: Any,
) -> Result:
    """Compile a spec, and run all of its nodes on this machine until the run ends.

    This combines `compile` and `launch`, as `placer train` does on the command line. The
    build is the subfolder `build` of the run's folder. A run that ends before its first
    step is done leaves no folder. For other machines, call `compile`, and `launch` with
    `hosts` or `on`.

    Args:
        spec: a YAML file, a Program, or `FILE.py:FUNCTION`, as in `compile`.
        out: the folder of the run: new or empty. Default: `runs/NAME-N` in the working
            folder, with the name of the model and the next number. With `resume`, the
            default is the folder of the run that saved the checkpoint.
        nodes, overrides, single_process, outputs, code: as in `compile`.
        in_process, logs, watch, progress, return_params, callbacks, tensorboard, elastic:
            as in `launch`.
        options: the fields of `placer.Options`, such as `steps=100`. As in `launch`,
            `init_params` may be a dict of arrays.

    Returns:
        The `Result` of the run, as from `launch`.

    Raises:
        SpecError, PlaceError, GraphError: the spec has an error.
        PlacerError: the options are invalid, or the folder cannot be used.
        RunError: a node failed. The text names the root cause; all processes have ended.
        KeyboardInterrupt, SystemExit, Exception: as in `launch`.

    Example:
        result = placer.train("digits.yaml", overrides={"train.epochs": 5})
        print(result.eval["accuracy"])
    """
    refuse_in_node("placer.train")
    refuse_unknown("train", options)
    # Errors in options are reported before the compilation.
    with options_of(options) as chosen:
        callbacks = check_callbacks(callbacks)
        if single_process:
            check_one_process(chosen)
        if in_process:
            check_thread_options(
                chosen, logs=logs, watch=watch, progress=progress or None
            )
        if tensorboard is not None:
            from placer.runtime.callbacks.tensorboard import check_installed

            check_installed()
        compiled = compile_in_memory(
            Path(spec) if isinstance(spec, str) else spec,
            nodes=nodes,
            overrides=overrides,
            single_process=single_process,
            outputs=outputs,
            code=code,
            publish=chosen.publish is not None,
        )
        check_arrays(compiled.plan, options, chosen, elsewhere=False)
        folder = None if out is None else Path(out)
        with new_run(compiled, chosen, folder, overrides=overrides) as run:
            return launch_checked(
                run.build,
                run.plan,
                run.options,
                in_process=in_process,
                logs=logs,
                watch=watch,
                progress=progress,
                return_params=return_params,
                callbacks=callbacks,
                tensorboard=tensorboard,
                elastic=elastic,
                note=run.note,
                folder=lambda: run.build.parent,
            )
