"""A made-up table with all that tables have: words, dates, ids, numbers and gaps.

    python bench/mixed_table.py rows.csv                 the last column is yes or no
    python bench/mixed_table.py rows.csv --regression    it is an amount

Each column but `order`, `note` and `region` says something about the label: a customer buys as
before, seasons and weekdays differ, incomes count by their logarithm, and who does not tell
the own age buys less. Some numbers are missing, some with a marker.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np

PLANS = ("basic", "family", "student", "pro")
CITIES = (
    "Oslo, Norway", "Lima, Peru", "Porto, Portugal", "Graz", "Leeds", "Quito", "Turin", "Gent",
    "Malmö", "Kyoto", "Perth", "Cork",
)  # fmt: skip
CHANNELS = ("web", "shop", "phone")
CUSTOMERS = 250
FIRST_DAY = date(2021, 1, 1)


def make_columns(
    rows: int, seed: int, *, is_regression: bool = False
) -> dict[str, list[str]]:
    """Return the cells of each column by its name; the label is the last one."""
    model = np.random.default_rng(5)  # the same for every seed
    plans = model.normal(0, 0.7, len(PLANS))
    cities = model.normal(0, 0.6, len(CITIES))
    customers = model.normal(0, 0.9, CUSTOMERS)
    weekdays = model.normal(0, 0.4, 7)

    draw = np.random.default_rng(seed)
    customer = draw.integers(CUSTOMERS, size=rows)
    plan, city = (
        draw.integers(len(PLANS), size=rows),
        draw.integers(len(CITIES), size=rows),
    )
    channel = draw.choice(len(CHANNELS), size=rows, p=[0.6, 0.3, 0.1])
    day = draw.integers(3 * 365, size=rows)
    age = draw.integers(18, 80, size=rows)
    income = draw.lognormal(10, 0.8, rows)
    rating = draw.integers(1, 6, size=rows)
    visits = draw.poisson(6, rows)
    score = draw.normal(0, 1, rows)
    weight = draw.normal(70, 12, rows)
    age_missing, income_missing = draw.random(rows) < 0.12, draw.random(rows) < 0.06
    weekday = (day + FIRST_DAY.weekday()) % 7

    signal = (
        plans[plan]
        + cities[city]
        + customers[customer]
        + weekdays[weekday]
        + 0.8 * np.sin(2 * np.pi * day / 365.25)
        + np.where(age_missing, -0.9, 0.8 * np.sin((age - 18) / 12))
        + np.where(income_missing, 0.0, 0.8 * (np.log(income) - 10))
        + np.where(plan == 3, 0.25, -0.1) * (visits - 6)
        + 0.5 * np.abs(rating - 3)
        + 0.9 * score * np.where(channel == 1, -1, 1)
        - 0.3
    )
    marker = draw.choice(["n/a", "", "-", "NA"], size=rows)
    columns = {
        "order": [str(n) for n in draw.permutation(rows) * 7 + 100000],
        "customer_id": [str(100 + 37 * n) for n in customer],
        "ordered": [str(FIRST_DAY + timedelta(int(n))) for n in day],
        "age": [m if gap else str(n) for n, gap, m in zip(age, age_missing, marker, strict=True)],
        "income": [
            "n/a" if gap else f"{n:.2f}" for n, gap in zip(income, income_missing, strict=True)
        ],
        "plan": [PLANS[n] for n in plan],
        "city": ["" if gap else CITIES[n] for n, gap in zip(city, draw.random(rows) < 0.03, strict=True)],
        "channel": [CHANNELS[n] for n in channel],
        "rating": [str(n) for n in rating],
        "visits": [str(n) for n in visits],
        "score": [f"{n:.3f}" for n in score],
        "weight": [f"{n:.1f}" for n in weight],
        "note": [f"note {n} of {m}" for n, m in enumerate(draw.integers(10**6, size=rows))],
        "region": ["north"] * rows,
    }  # fmt: skip
    if is_regression:
        amount = 200 + 60 * signal + draw.normal(0, 40, rows)
        columns["amount"] = [f"{n:.2f}" for n in amount]
    else:
        bought = draw.random(rows) < 1 / (1 + np.exp(-1.6 * signal))
        columns["bought"] = ["yes" if each else "no" for each in bought]
    return columns


def write_table(path: Path, columns: dict[str, list[str]]) -> None:
    """Write columns to a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regression", action="store_true")
    chosen = parser.parse_args()
    columns = make_columns(chosen.rows, chosen.seed, is_regression=chosen.regression)
    write_table(chosen.path, columns)


if __name__ == "__main__":
    main()
