"""What a save of a table has to have in common with the table that loads it."""

from __future__ import annotations

from msgspec import Struct, structs

from placer.config import optimizers
from placer.config.sparse import Bloom, Count, Score
from placer.config.sparse import SparseTable as Settings
from placer.errors import RunError


class SavedForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The form of the arrays of a save, on which their meaning depends.

    Attributes:
        dim: the values of a row.
        dtype: their dtype.
        rule: the optimizer's rule.
        slots: what it keeps for each value and for each row, in order.
        partitions: the number of partitions.
        counts: what entries of keys without a row have: `occurrences`, `score` or nothing.
        seen: whether they were seen in a `step` or a `second`.
        filter: the bytes of Bloom filters.
        times: whether rows have the second in which they were seen.
        scores: whether rows have a score.
    """

    dim: int
    dtype: str
    rule: str
    slots: tuple[str, ...]
    partitions: int
    counts: str
    seen: str
    filter: int
    times: bool
    scores: bool

    @classmethod
    def of(cls, settings: Settings, dtype: str) -> SavedForm:
        """Return the form of a table."""
        hyper = optimizers.complete(settings.rule, settings.hyper)
        admit, forget = settings.admit, settings.forget
        counts = {Count: "occurrences", Score: "score"}.get(type(admit), "")
        has_times = forget.unseen_seconds is not None
        by_steps = not has_times or forget.unseen_steps is not None
        return cls(
            dim=settings.dim,
            dtype=dtype,
            rule=settings.rule,
            slots=tuple(optimizers.slots(settings.rule, hyper)),
            partitions=settings.partitions,
            counts=counts,
            seen=("step" if by_steps else "second") if counts else "",
            filter=admit.nbytes if isinstance(admit, Bloom) else 0,
            times=has_times,
            scores=settings.score is not None,
        )

    def check(self, name: str, saved: SavedForm) -> None:
        """Raise RunError if a save is not of this form, which is that of table `name`."""
        own, other = structs.asdict(self), structs.asdict(saved)
        wrong = [key for key in own if own[key] != other[key]]
        if wrong:
            has, wants = (
                ", ".join(f"{key} {each[key]!r}" for key in wrong)
                for each in (other, own)
            )
            raise RunError(f"table {name}: the save has {has}, and the table {wants}")
