"""Compares a checkpoint with the model and the data of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from placer.checkpoint.manifest import Machine, Manifest, Progress, StoredData
from placer.errors import CheckpointError, did_you_mean
from placer.plan.plan import Parameter, Plan
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.source import Data
from placer.plan.settings.training.update_modes import Geo
from placer.plan.settings_by_key import setting_text, settings_by_key
from placer.readers import Digests, Order
from placer.runtime.control.events import NodeWarning, Report
from placer.runtime.saving.optimizer_state import (
    OptimizerState,
    first_difference,
    planned_state,
    stored_outer_state,
    stored_state,
)
from placer.runtime.saving.row_files import compare_sparse
from placer.runtime.saving.start_facts import COMPARABLE, StartFacts
from placer.runtime.saving.stored_blocks import holding_table, training_table
from placer.system.listed import list_names

OTHER_PLACEMENT: Final = "another placement, model or gradient accumulation"
_SHOWN = 8
"""The largest number of names in a message."""
_COMPARED_ELSEWHERE: Final = (
    *("data.", "seed", "train.epochs", "train.nan"),
    *("train.eval.", "train.checkpoint.", "train.early_stopping."),
)
"""Prefixes of settings that have a message of their own, or do not affect programs."""


def _parts(count: int) -> str:
    return f"{count} part{'s' * (count != 1)}"


def _outer_state(plan: Plan, parameter: Parameter) -> OptimizerState:
    """Return the state of the servers' optimizer, if workers train with their own."""
    planned = holding_table(plan, parameter)
    if isinstance(planned.mode, Geo) and planned.rule is not None:
        return planned_state(plan, planned, parameter)
    return OptimizerState()


def check_same_model(
    manifest: Manifest, plan: Plan, report: Report, partial: bool
) -> None:
    """Check that a checkpoint has the parameters and the optimizer state of a model.

    Args:
        manifest: the manifest of the checkpoint.
        report: called with a warning that lists the differences, if `partial` is true.
        partial: allow missing and additional parameters, and other optimizer state.

    Raises:
        CheckpointError: if a shape, a dtype or the number of parts of a batch differs;
            also, unless `partial` is true, if the set of parameters or the optimizer state
            differs.
    """
    for name, count in plan.parts.items():
        if (cut := manifest.parts.get(name, count)) != count:
            raise CheckpointError(
                f"'{name}' computes each batch in {_parts(count)}, but the run of the"
                f" checkpoint in {_parts(cut)}",
                hint=f"pass parts={cut} to placer.trace",
            )
    missing, changed, without_state = [], [], []
    other_functions: dict[tuple[str, str], str] = {}  # each with its first parameter
    for parameter in plan.parameters:
        stored = manifest.parameters.get(parameter.name)
        if stored is None:
            missing.append(parameter.name)
            continue
        if (stored.dtype, stored.shape) != (parameter.dtype, parameter.shape):
            changed.append(
                f"{parameter.name} is {stored.dtype}{list(stored.shape)}, but the model has"
                f" {parameter.dtype}{list(parameter.shape)}"
            )
        state = planned_state(plan, training_table(plan, parameter), parameter)
        if difference := first_difference(stored_state(stored), state):
            without_state.append(f"{parameter.name} ({difference})")
        elif stored.fn and state.fn and stored.fn != state.fn:
            other_functions.setdefault((stored.fn, state.fn), parameter.name)
        outer = _outer_state(plan, parameter)
        if first_difference(stored_outer_state(stored), outer):
            without_state.append(f"{parameter.name} (outer {outer.rule})")
    sparse = compare_sparse(manifest, plan.sparse_tables)
    for names, more in zip((missing, changed, without_state), sparse, strict=True):
        names += more
    known = {each.name for each in plan.parameters}
    known |= {each.name for each in plan.sparse_tables}
    stored_names = manifest.parameters.keys() | manifest.sparse.keys()
    extra = sorted(stored_names - known)
    other_name = "" if manifest.name == plan.name else f" '{manifest.name}'"
    refusal = f"the checkpoint is of another model{other_name}"
    shown = len(plan.parameters) + len(extra) if partial else _SHOWN
    parts = [
        f"{what}: {list_names(names, shown)}"
        for what, names in (
            ("not in the checkpoint", missing),
            ("not in the model", extra),
            ("state of another optimizer", without_state),
        )
        if names
    ]
    if changed:
        raise CheckpointError(
            f"{refusal}: {'; '.join(changed[:_SHOWN])}",
            hint="start a new run with --init-params CHECKPOINT instead of --resume; it"
            " loads the values and rows that fit",
        )
    for (before, now), name in other_functions.items():
        report(
            NodeWarning(
                f"the optimizer of {name} was {before} and is {now}, which continues with"
                " the state of the checkpoint"
            )
        )
    if not parts:
        return
    if partial:
        report(NodeWarning(f"the checkpoint is used in part: {'; '.join(parts)}"))
        return
    hint = "add --partial to start the missing values from their initial values"
    if len(missing) == 1 and (near := did_you_mean(missing[0], extra)):
        hint = f"{near}; {hint}"
    if known.isdisjoint(stored_names):
        hint = "name a checkpoint of this model, or start without --resume"
    raise CheckpointError(f"{refusal}: {'; '.join(parts)}", hint=hint)


def has_new_rows(manifest: Manifest, facts: StartFacts) -> bool:
    """Return whether the training rows are not those of the checkpoint.

    Raises:
        CheckpointError: if the batch or the inputs have changed.
    """
    stored, own = manifest.train, facts.train
    allows = f"{'--new-rows' if own.settings.stream is None else 'a stream'} allows other rows"
    before, now = map(_inputs_of, (stored, own))
    if before and now and before != now:
        raise CheckpointError(
            f"the inputs are {list_names(now, _SHOWN)}, but were {list_names(before, _SHOWN)}",
            hint=f"{allows}, but not other inputs",
        )
    if stored.settings.batch != own.settings.batch:
        raise CheckpointError(
            f"data.train.batch is {own.settings.batch}, but was {stored.settings.batch}",
            hint=f"{allows}, but not another batch",
        )
    return bool(_difference(stored, own, ordered=True))


def _inputs_of(data: StoredData) -> list[str]:
    """Return the inputs with digests."""
    digests = data.digests
    return (
        [] if digests is None else sorted(digests.columns.keys() | digests.whole.keys())
    )


def is_inside_pass(progress: Progress, batch: int) -> bool:
    """Whether a position is inside a pass of a stream, so that the pass goes on."""
    stream = progress.stream
    return stream is not None and 0 < progress.batches < stream.current.rows // batch


def trained_file(manifest: Manifest) -> str:
    """Return the file that a run over fixed rows has trained, before it becomes a stream.

    Raises:
        CheckpointError: if it has trained a set of files.
    """
    source = manifest.train.settings.parsed
    if not source.declaration.is_file:
        return ""
    if is_glob(source.path):
        raise CheckpointError(
            f"the run of the checkpoint has trained the set {source.text}, and its checkpoint"
            " does not name the files, so a stream cannot go on after them",
            hint="train the first files as a stream as well, or start a new run from the"
            " checkpoint's parameters with --init-params",
        )
    return source.path


def rows_left(manifest: Manifest) -> int:
    """Return the number of rows that the epoch of a checkpoint has not trained."""
    data, progress = manifest.train.settings, manifest.progress
    assert data.batch is not None
    assert data.remainder is not None
    order = Order(
        manifest.train.rows, data.batch, data.shuffle, data.seed, data.remainder
    )
    epoch = min(order.rows, order.steps_per_epoch * order.batch)
    return max(0, epoch - progress.batches * order.batch)


def check_same_data(manifest: Manifest, facts: StartFacts) -> None:
    """Raise CheckpointError if the data or the order of training rows has changed."""
    _check_same_lanes(manifest, facts.train.settings)
    for name, stored, own in (
        ("data.train", manifest.train, facts.train),
        ("data.eval", manifest.evaluation, facts.evaluation),
    ):
        if stored is None or own is None:
            continue
        if problem := _difference(stored, own, ordered=name == "data.train"):
            hint = "start a new run from the checkpoint's parameters with --init-params"
            if name == "data.train" and own.settings.stream is None:
                hint = f"add --new-rows to go on with other rows, or {hint}"
            raise CheckpointError(
                f"{name} differs from the data of the checkpoint: {problem}", hint=hint
            )


def _check_same_lanes(manifest: Manifest, own: Data) -> None:
    """Raise CheckpointError if a stream does not have the lanes of the checkpoint."""
    before, position = manifest.train.settings.stream, manifest.progress.stream
    if before is None or own.stream is None or position is None:
        return
    was, now = before.lanes, own.stream.lanes
    if was != now:
        fixed = "the number of lanes of a stream is fixed: write the earlier one"
        if None in (was, now):
            fixed = (
                "a stream goes on with files or with lanes: write the earlier source"
            )
        raise CheckpointError(
            f"data.train.stream has {_lanes(now)}, but had {_lanes(was)} in the checkpoint",
            hint=f"{fixed}, or start a new run from the checkpoint's parameters with"
            " --init-params",
        )
    if now is None or own.stream.rows is None or own.batch is None:
        return
    left = position.current.rows, own.stream.rows // own.batch * own.batch
    if is_inside_pass(manifest.progress, own.batch) and left[0] != left[1]:
        raise CheckpointError(
            f"the checkpoint is inside a pass of {left[0]:,} rows, and a pass has {left[1]:,}"
            " rows now",
            hint="end this pass first: write the earlier data.train.stream.rows, and add"
            " --passes 1",
        )


def _lanes(count: int | None) -> str:
    return "files" if count is None else f"{count} lanes"


def check_not_later(manifest: Manifest, total_steps: int) -> None:
    """Raise CheckpointError if the run would end before the step of the checkpoint."""
    done = manifest.progress.step
    if done > total_steps:
        raise CheckpointError(
            f"the checkpoint is of step {done}, but the run ends after step"
            f" {total_steps}",
            hint="set a later last step with --steps"
            + (" or train.epochs" if manifest.progress.stream is None else ""),
        )


def _difference(stored: StoredData, own: StoredData, *, ordered: bool) -> str:
    was, is_stream = (each.settings.stream is not None for each in (stored, own))
    if was != is_stream:
        return "it was a stream" if was else "it is a stream now"
    # The files of the pass in which a run continues are compared when they are opened.
    if stored.rows != own.rows and not is_stream:
        return f"it has {own.rows} rows, but had {stored.rows}"
    if ordered:
        for key in ("batch", "shuffle", "seed", "remainder"):
            before, now = getattr(stored.settings, key), getattr(own.settings, key)
            if before != now:
                return f"{key} is {_yaml(now)}, but was {_yaml(before)}"
    if stored.digests is not None and own.digests is not None:
        return _compare_digests(
            stored.digests, own.digests, whole=_is_same_kind(stored, own)
        )
    return ""


def _is_same_kind(stored: StoredData, own: StoredData) -> bool:
    """Whether the digests over all rows (`Digests.whole`) of two sources can be compared."""
    return stored.settings.parsed.kind == own.settings.parsed.kind


def _compare_digests(stored: Digests, own: Digests, *, whole: bool) -> str:
    positions = {row: i for i, row in enumerate(own.rows)}
    for name in sorted(stored.columns.keys() & own.columns.keys()):
        for i, row in enumerate(stored.rows):
            j = positions.get(row)
            if j is not None and stored.columns[name][i] != own.columns[name][j]:
                return f"'{name}' of row {row} has changed"
    for name in sorted(stored.whole.keys() & own.whole.keys()) if whole else ():
        if stored.whole[name] != own.whole[name]:
            return f"some row of '{name}' has changed"
    # The pieces of a file determine the order of the rows.
    files = stored.file, own.file
    if None not in files and files[0] != files[1]:
        return "the file has changed"
    return ""


def _is_compared_whole(stored: StoredData, own: StoredData) -> bool:
    """Whether the digests cover every row of both sources."""
    before, now = stored.digests, own.digests
    if before is None or now is None:
        return False
    if now.file is not None:
        return False
    compared: set[str] = set()
    if len(now.rows) == own.rows and before.rows == now.rows:
        compared |= before.columns.keys() & now.columns.keys()
    # Digests over all rows do not cover the effect of these options.
    options = ("columns", "features", "csv", "parquet", "python")
    is_read_alike = all(
        getattr(stored.settings, option) == getattr(own.settings, option)
        for option in options
    )
    if is_read_alike and _is_same_kind(stored, own):
        compared |= before.whole.keys() & now.whole.keys()
    return compared >= now.columns.keys() | now.whole.keys()


def uncompared_rows(train: StoredData) -> str:
    """Return a warning for a run with `--restarts` if only some rows of a source can be
    compared after a failure; else empty."""
    if _is_compared_whole(train, train):
        return ""
    return (
        "only some rows of data.train are compared after a failure: if the source then"
        " returns other rows, the results differ from those of a run without failures"
    )


def differences(
    manifest: Manifest, plan: Plan, facts: StartFacts, *, other_rows: bool = False
) -> list[str]:
    """Return reasons why a resumed run may not have the same bits as an uninterrupted run.

    An empty list guarantees the same bits.
    """
    settings = ", ".join(_changed_settings(manifest.settings, plan))
    names = f" ({settings})" if settings else ""
    other = _other_function(manifest, facts.train.settings)
    if manifest.placement != facts.placement:
        return [*other, f"{OTHER_PLACEMENT}{names}"]
    found = [*other]
    modes = [table.mode for node in plan.nodes for table in node.tables if table.mode]
    modes += [table.mode for table in plan.sparse_tables if table.mode]
    if any(not mode.in_rounds for mode in modes):
        found.append("workers train asynchronously")
    if plan.has_backup:
        found.append("each step uses the gradients of the fastest workers")
    last = manifest.progress
    if last.is_end and any(
        mode.in_rounds and last.step % mode.every
        for mode in modes
        if isinstance(mode, Geo)
    ):
        found.append("the earlier run ended in the middle of a round of 'geo'")
    if not manifest.computation.startswith(COMPARABLE):
        found.append("it was saved by an older placer, so programs cannot be compared")
    elif manifest.computation != facts.computation:
        found.append(f"another program, module or optimizer{names}")
    # The files of a stream are compared when they are opened.
    is_same = other_rows or facts.train.settings.stream is not None
    if not is_same and not _is_compared_whole(manifest.train, facts.train):
        found.append("only some rows of data.train were compared")
    if _batch(manifest.evaluation) != _batch(facts.evaluation):
        found.append("another data.eval.batch")
    if manifest.seed != plan.settings.seed:
        found.append(f"seed {plan.settings.seed} instead of {manifest.seed}")
    for node, now in facts.machines.items():
        before = manifest.machines.get(node)
        if before is None:
            return [*other, OTHER_PLACEMENT]
        for key in Machine.__struct_fields__:
            was, is_now = getattr(before, key), getattr(now, key)
            if was != is_now:
                found.append(f"{node}: {_changed(key, was, is_now)}")
    return found


def _other_function(manifest: Manifest, own: Data) -> list[str]:
    """Return a reason if another function now gets the marks of the lanes of a stream."""
    before, position = manifest.train.settings.source, manifest.progress.stream
    if position is None or not position.lanes or before == own.source:
        return []
    return [f"{own.source} gets the marks of {before}"]


def _changed_settings(before: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Yield the settings that differ and affect programs, each with both values."""
    if not before:
        return  # The checkpoint is of an older placer.
    now = msgspec.json.decode(msgspec.json.encode(settings_by_key(plan)))
    keys = [
        key
        for key in before | now
        if before.get(key) != now.get(key) and not key.startswith(_COMPARED_ELSEWHERE)
    ]
    for key in keys[:_SHOWN]:
        is_now, was = (setting_text(each.get(key)) or "none" for each in (now, before))
        yield f"{key} is {is_now}, was {was}"
    if (more := len(keys) - _SHOWN) > 0:
        yield f"and {more} more settings"


def _batch(data: StoredData | None) -> int | None:
    return None if data is None else data.settings.batch


def _changed(key: str, was: object, now: object) -> str:
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return f"{key.replace('_', ' ')} {now} instead of {was}"
    names = sorted(name for name in was | now if was.get(name) != now.get(name))
    return ", ".join(
        f"{name} {now.get(name, 'none')} instead of {was.get(name, 'none')}"
        for name in names
    )


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
