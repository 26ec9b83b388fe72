"""Cost files: what they contain, how times follow from samples, and which files are refused."""

import json

import pytest

from placer.compiler.placing.costs import (
    DECLARED,
    STEPS,
    Machine,
    Sample,
    measured_costs,
    parse_costs,
    quantile_sample,
    read_costs,
    write_costs,
)
from placer.errors import PlacerError

MACHINE = Machine("a processor", 2, {}, {"python": "3.13", "jax": "0.10"})


def flat(size, us, flops=0):
    return Sample(size, (us,) * 5, flops)


def costs_of(**entries):
    return measured_costs(entries, MACHINE)


def test_a_written_file_is_read_with_the_same_times():
    costs = costs_of(
        send=[flat(1_000, 20), flat(0, 10)], read=[Sample(1, (1, 2, 3, 4, 9))]
    )
    again = parse_costs(write_costs(costs), "costs.json")
    assert again.entries == costs.entries
    assert again.machine == MACHINE


def test_a_file_does_not_depend_on_the_order_of_its_entries():
    entries = {"send": [flat(1, 2), flat(9, 3)], "read": [flat(1, 2)]}
    other = {"read": entries["read"], "send": entries["send"][::-1]}
    data = write_costs(measured_costs(entries, MACHINE))
    assert data == write_costs(measured_costs(other, MACHINE))
    content = json.loads(data)
    assert [*content["entries"]] == ["read", "send"]
    assert [*content] == sorted(content)


def test_samples_are_interpolated_and_extended():
    costs = costs_of(send=[flat(10, 100), flat(20, 200), flat(40, 220)])
    expected = {0: 0, 10: 100, 15: 150, 30: 210, 60: 240}
    times = {size: costs.times("send", size)[0] / 1_000 for size in expected}
    assert times == expected


def test_a_single_sample_is_proportional_to_the_size():
    costs = costs_of(send=[flat(10, 100)])
    assert costs.times("send", 5) == (50_000,) * STEPS


def test_times_never_fall_with_the_size():
    # The larger sample was faster by chance.
    costs = costs_of(send=[flat(10, 100), flat(20, 90)])
    assert costs.times("send", 1_000) == (100_000,) * STEPS


def test_quantiles_run_from_the_lowest_to_the_highest_percentile():
    costs = costs_of(send=[Sample(1, (10, 20, 30, 40, 50))])
    times = costs.times("send", 1)
    assert (times[0], times[-1]) == (10_000, 50_000)
    assert [*times] == sorted(times)
    assert times[7] < 30_000 < times[8]


def test_a_sample_has_the_percentiles_of_the_measured_times():
    nanoseconds = [1_000 * i + 400 for i in range(100, -1, -1)]
    assert quantile_sample(7, nanoseconds, 5) == Sample(7, (10, 25, 50, 75, 90), 5)


def test_a_piece_without_an_entry_has_the_median_rate_of_the_file():
    pieces = {str(us): [flat(1, us, flops=2_000_000)] for us in (40, 60, 500)}
    costs = costs_of(send=[flat(1, 9_000)], **pieces)
    assert costs.per_mflop == 30_000
    assert costs.of_flops(3_000_000, ops=2) == (90_000,) * STEPS


def test_an_overhead_that_a_file_lacks_comes_from_the_fixed_rates():
    costs = costs_of(send=[flat(1, 1)])
    assert costs.times("read", 8) == DECLARED.times("read", 8)
    assert "read" in costs.missing_overheads
    assert "send" not in costs.missing_overheads


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not a cost file"),
        (b"[]", "its version is missing"),
        (b'{"version": 7}', "its version is 7"),
        ('{"version": 1, "entries": {}}', "missing required field `machine`"),
        ({"x": []}, "$.entries[...]"),
        ({"x": [{"size": -1, "us": [1, 1, 1, 1, 1]}]}, "$.entries[...][0].size"),
        ({"x": [{"size": 1, "us": [1, 1, 1]}]}, "length 5"),
        ({"x": [{"size": 1, "us": [3, 1, 1, 1, 1]}]}, "'x' has times that do not ascend"),
        ({"x": [{"size": 1, "us": [1] * 5}] * 2}, "'x' has two samples of one size"),
        ({"x": [{"size": 1, "us": [1] * 5, "s": 1}]}, "unknown field `s`"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_cost_file_is_refused(tmp_path, content, words):
    if isinstance(content, dict):
        head = json.loads(write_costs(costs_of()))
        content = json.dumps({**head, "entries": content})
    file = tmp_path / "costs.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlacerError) as caught:
        read_costs(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "--measure" in caught.value.hint


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PlacerError, match="cannot read the costs"):
        read_costs(tmp_path / "costs.json")
