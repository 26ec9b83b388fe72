"""Writes the progress of a run for TensorBoard."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.errors import PlacerError, install_extra
from placer.runtime.callbacks.callbacks import Callback, Record
from placer.system.files.atomic import atomic_file

FLUSH_SECONDS: Final = 1
"""Seconds between two writes of new numbers to the file."""
ABOUT: Final = "placer.json"
"""The name of the file in a run's folder that lists the run's folders of checkpoints."""
_INSTALL: Final = install_extra("tensorboard")


class About(msgspec.Struct):
    """The content of the file `ABOUT`: the folders to which the run has saved checkpoints."""

    checkpoints: list[str]


class TensorBoard(Callback):
    """Writes the scalars of a run to a folder for TensorBoard.

    After each step it writes the metrics as `train/NAME`, the learning rate as
    `learning_rate` (`learning_rate/NAME` with several optimizers), and
    `samples_per_second`. After an evaluation it writes `eval/NAME`, after an epoch
    `epoch/NAME`.

    Args:
        resumed: whether the run continues from a checkpoint. TensorBoard then hides numbers
            of the earlier run for steps after the checkpoint.

    Raises:
        PlacerError: if tensorboardX is not installed, or the files cannot be written.
    """

    def __init__(self, folder: Path, *, resumed: bool = False) -> None:
        check_installed()
        self._folder = folder
        self._resumed = resumed
        self._writer: Any = None
        self._last = 0  # the last written step

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def on_step(self, record: Record) -> None:
        if record.again and record.step <= self._last:
            # The steps from here on replace the earlier ones.
            self.__exit__()
            self._writer, self._resumed = None, True
        self._last = record.step
        scalars = _named("train", record.metrics)
        rates = record.learning_rates
        if len(rates) == 1:
            scalars["learning_rate"] = next(iter(rates.values()))
        else:
            scalars |= _named("learning_rate", rates)
        scalars["samples_per_second"] = record.samples_per_second
        self._write(scalars, record)

    def on_evaluation(self, record: Record) -> None:
        self._write(_named("eval", record.eval or {}), record)

    def on_epoch(self, record: Record) -> None:
        self._write(_named("epoch", record.metrics), record)

    def _write(self, scalars: dict[str, float], record: Record) -> None:
        if self._writer is None:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(
                str(self._folder),
                purge_step=record.step if self._resumed else None,
                flush_secs=FLUSH_SECONDS,
                # Otherwise two files of the same second would have the same name.
                filename_suffix=f".{time.time_ns()}",
            )
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, record.step, walltime=record.time)


def check_installed() -> None:
    """Raise PlacerError if tensorboardX is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ModuleNotFoundError as error:
        raise PlacerError(
            f"'tensorboard' needs the package {error.name}, which is not installed",
            hint=_INSTALL,
        ) from error


def run_folder(
    parent: Path, name: str, checkpoints: Path | None, resume: Path | None
) -> Path:
    """Create the folder of a run in `parent`, and return its path.

    A resumed run uses the folder of the run that saved the checkpoint, if `parent` contains
    that folder. Other runs use a new folder `NAME-N` with the next number.

    Args:
        parent: the folder of all runs.
        checkpoints: the folder to which the run saves checkpoints, if any.
        resume: the checkpoint or folder of checkpoints from which the run continues.

    Raises:
        PlacerError: if the folder cannot be created.
    """
    check_installed()
    try:
        parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = _folder_of(parent, name, resume) if resume is not None else None
        if folder is None:
            folder = _create_numbered(parent, name)
        if checkpoints is not None:
            saved = _checkpoints_of(folder)
            about = About([*dict.fromkeys([*saved, str(checkpoints.resolve())])])
            text = msgspec.json.format(msgspec.json.encode(about)) + b"\n"
            with atomic_file(folder / ABOUT, 0o644) as file:
                file.write(text)
    except OSError as error:
        raise PlacerError(
            f"cannot write to the folder '{parent}' for TensorBoard: {error.strerror}"
        ) from error
    return folder


def _named(prefix: str, numbers: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in numbers.items()}


def _numbered(parent: Path, name: str) -> dict[int, Path]:
    pattern = re.compile(rf"{re.escape(name)}-([0-9]{{1,9}})")
    matches = ((pattern.fullmatch(each.name), each) for each in parent.iterdir())
    return {int(match[1]): each for match, each in matches if match}


def _create_numbered(parent: Path, name: str) -> Path:
    number = max(_numbered(parent, name), default=0)
    while True:
        number += 1
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:  # another run has just used the number
            continue
        return folder


def _folder_of(parent: Path, name: str, resume: Path) -> Path | None:
    """Return the folder of the last run that saved the checkpoint `resume`, if any."""
    # `resume` is a folder of checkpoints, or a checkpoint inside such a folder.
    saved = {str(resume.resolve()), str(resume.resolve().parent)}
    runs = sorted(_numbered(parent, name).items(), reverse=True)
    return next((each for _, each in runs if saved & {*_checkpoints_of(each)}), None)


def _checkpoints_of(folder: Path) -> list[str]:
    try:
        return msgspec.json.decode(
            (folder / ABOUT).read_bytes(), type=About
        ).checkpoints
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return []  # a run without checkpoints, or a folder of another program
