"""A sparse table as plain Python: a dict of rows, and one statement after the other.

It is what `placer.tables.sparse` is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

import numpy as np

from placer.plan.settings.sparse.table import Always, Bloom, Count, Probability, Score
from placer.plan.settings.training.optimizers import read_rule
from placer.tables.initial.draws import DISTRIBUTIONS, draw_rows, parameter_key
from placer.tables.optimizer_rules import changing_numbers, constant_numbers, kernels_of

FLOAT = np.dtype("float64")
MASK = 2**64 - 1


def mix(key: int) -> int:
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & MASK
    return key ^ (key >> 31)


@dataclass
class Row:
    value: np.ndarray
    slots: list[np.ndarray]
    scalar: float
    count: int = 0
    seen: int = 0
    time: int = 0
    score: np.float32 = np.float32(0)  # noqa: RUF009
    updates: int = 0


@dataclass
class DictTable:
    """Rows by key, and for keys without a row their count or score and when they were
    seen."""

    settings: object
    seed: int
    rows: dict[int, Row] = field(default_factory=dict)
    waiting: dict[int, tuple[object, int]] = field(default_factory=dict)
    filters: dict[tuple[int, int], int] = field(default_factory=dict)

    def partition(self, key):
        return mix(key) * self.settings.partitions >> 64

    def initial(self, key):
        form, arguments = self.settings.init
        dim = self.settings.dim
        if form == "constant":
            return np.full(dim, arguments[0])
        draw = DISTRIBUTIONS[form](*arguments)
        parameter = parameter_key(self.seed, self.settings.name)
        return draw_rows(draw, parameter, np.array([key], np.uint64), dim)[0]

    def pull(self, key):
        if key in self.rows:
            return self.rows[key].value
        if isinstance(self.settings.admit, Always):
            return self.initial(key)
        return np.full(self.settings.dim, self.settings.default)

    def push(self, batch, rate, step, scale=1.0, draw=None):
        """`batch` has (gradient, occurrences, score, second) by key."""
        admit, updated, refused = self.settings.admit, 0, 0
        new = {
            key: self.admits(key, occurrences, score, step if draw is None else draw)
            for key, (_, occurrences, score, _) in batch.items()
            if key not in self.rows
        }
        old = set(self.rows)
        for key, (gradient, occurrences, score, second) in batch.items():
            count, total = occurrences, np.float32(score)
            if key not in old:
                before, earlier = self.waiting.get(key, (0, 0))
                if isinstance(admit, Count):
                    count += before
                elif isinstance(admit, Score):
                    total = np.float32(np.float32(before) + total)
                if not new[key]:
                    refused += 1
                    seen = step if self.by_steps else max(second, earlier)
                    if isinstance(admit, Count):
                        self.waiting[key] = count, seen
                    elif isinstance(admit, Score):
                        self.waiting[key] = total, seen
                    continue
                self.waiting.pop(key, None)
                self.rows[key] = self.begin(key)
            row = self.rows[key]
            row.count += count
            row.seen, row.time = step, max(row.time, second)
            row.score = np.float32(row.score + total)
            if key in old or isinstance(admit, Always):
                self.update(row, gradient * scale, rate)
                updated += 1
        if isinstance(admit, Bloom):
            self.count_in_filters([key for key, is_new in new.items() if not is_new])
        return updated, sum(new.values()), refused, self.evict()

    def admits(self, key, occurrences, score, draw):
        admit = self.settings.admit
        before, _ = self.waiting.get(key, (0, 0))
        match admit:
            case Always():
                return True
            case Count():
                return before + occurrences >= admit.n
            case Score():
                total = np.float32(np.float32(before) + np.float32(score))
                return bool(total >= np.float32(admit.least))
            case Probability():
                text = sha256(f"{self.seed}/{self.settings.name}".encode()).digest()
                digest = sha256(text + draw.to_bytes(8, "little")).digest()
                salt = int.from_bytes(digest[:8], "little")
                drawn = (mix(mix(key) ^ salt) >> 11) * 2.0**-53
                return drawn < 1.0 - (1.0 - admit.p) ** float(occurrences)
            case Bloom():
                counters = self.counters(key)
                self.estimate[key] = (
                    min(self.filters.get(c, 0) for c in counters) + occurrences
                )
                return self.estimate[key] >= admit.n

    estimate: dict[int, int] = field(default_factory=dict)

    def counters(self, key):
        settings = self.settings
        hashed, bits = mix(key), settings.partitions.bit_length() - 1
        blocks = max(1, settings.admit.nbytes // settings.partitions // 64)
        block = (((hashed << bits) & MASK) >> 32) * blocks >> 32
        second = mix(hashed)
        return [
            (self.partition(key), block * 64 + ((second >> (6 * probe)) & 63))
            for probe in range(4)
        ]

    def count_in_filters(self, keys):
        for key in keys:
            for counter in self.counters(key):
                count = min(self.estimate[key], 255)
                self.filters[counter] = max(self.filters.get(counter, 0), count)

    def begin(self, key):
        settings = self.settings
        rule = read_rule(settings.rule, settings.hyper)
        slots = rule.first_slots
        scalar = slots.pop(rule.row_slot, 0.0)
        arrays = [np.full(settings.dim, value) for value in slots.values()]
        return Row(self.initial(key), arrays, scalar)

    def update(self, row, gradient, rate):
        settings = self.settings
        rule = read_rule(settings.rule, settings.hyper)
        hyper = rule.hyper
        row.updates += 1
        numbers = constant_numbers(hyper, decays=True)._replace(
            **changing_numbers(hyper, row.updates, rate, FLOAT)
        )
        (kernel,) = kernels_of(rule)
        extra = ()
        if rule.row_slot:
            mean = sum(float(g) * float(g) for g in gradient) / settings.dim
            before = row.scalar
            after = (
                numbers.one_minus_b2 * mean + numbers.b2 * before
                if "b1" in hyper
                else before + mean
            )
            extra, row.scalar = (np.float64(before), np.float64(after)), after
        row.value, *row.slots = kernel(row.value, *row.slots, *extra, gradient, numbers)
        if settings.bounds is not None:
            row.value = np.clip(row.value, *settings.bounds)

    @property
    def by_steps(self):
        forget = self.settings.forget
        return forget.unseen_seconds is None or forget.unseen_steps is not None

    @property
    def shares(self):
        """Each share is its partition's part of the capacity, give or take a sixteenth."""
        settings, golden = self.settings, (5**0.5 - 1) / 2
        weights = [1 + (p * golden % 1 - 0.5) / 16 for p in range(settings.partitions)]
        ends = [
            int(sum(weights[: p + 1]) / sum(weights) * settings.capacity)
            for p in range(settings.partitions - 1)
        ]
        return [b - a for a, b in pairwise([0, *ends, settings.capacity])]

    def evict(self):
        settings, evicted = self.settings, 0
        if settings.capacity is None:
            return 0
        for partition in range(settings.partitions):
            share = self.shares[partition]
            own = [key for key in self.rows if self.partition(key) == partition]

            def rank(key):
                row = self.rows[key]
                return (row.seen if settings.evict == "lru" else row.count), key

            if len(own) > share:
                for key in sorted(own, key=rank)[: len(own) - (share - share // 16)]:
                    del self.rows[key]
                    evicted += 1
        return evicted

    def forget(self, step, now):
        forget, partitions = self.settings.forget, self.settings.partitions
        turn = step % forget.every
        first = partitions * turn // forget.every
        stop = partitions * (turn + 1) // forget.every
        return self.sweep(range(first, stop), step, now)

    def shrink(self, step, now):
        return self.sweep(range(self.settings.partitions), step, now)

    def sweep(self, partitions, step, now):
        settings, forgotten = self.settings, 0
        limits, scoring = settings.forget, settings.score
        for key, row in [*self.rows.items()]:
            if self.partition(key) not in partitions:
                continue
            gone = False
            if scoring is not None:
                row.score = np.float32(float(row.score) * scoring.decay)
                if limits.score_below is not None:
                    gone |= bool(row.score < limits.score_below)
            if limits.unseen_steps is not None:
                gone |= step - row.seen > limits.unseen_steps
            if limits.unseen_seconds is not None:
                gone |= now - row.time > int(limits.unseen_seconds)
            if limits.norm_below is not None:
                gone |= sum(float(v) ** 2 for v in row.value) < limits.norm_below**2
            if gone:
                del self.rows[key]
                forgotten += 1
        for key, (amount, seen) in [*self.waiting.items()]:
            if self.partition(key) not in partitions:
                continue
            gone = False
            if isinstance(settings.admit, Score):
                amount = np.float32(float(amount) * scoring.decay)
                self.waiting[key] = amount, seen
                if limits.score_below is not None:
                    gone |= bool(amount < limits.score_below)
            if self.by_steps:
                if limits.unseen_steps is not None:
                    gone |= step - seen > limits.unseen_steps
            else:
                gone |= now - seen > int(limits.unseen_seconds)
            if gone:
                del self.waiting[key]
        return forgotten
