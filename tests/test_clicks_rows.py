"""The rows of specs/clicks_rows.py are what its documentation says."""

import runpy

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from placer.system.resources import find_file

MODULE = runpy.run_path(str(find_file("specs/clicks_rows.py")))
FIELDS, IDS = MODULE["FIELDS"], MODULE["IDS"]


@pytest.fixture(scope="module")
def rows():
    """The rows to evaluate on."""
    return MODULE["test"]()


def test_a_row_is_a_function_of_its_number():
    whole, part = MODULE["rows"](0, 9), MODULE["rows"](5, 3)
    for name, column in whole.items():
        np.testing.assert_array_equal(column[5:8], part[name])


def test_rows_to_evaluate_on_are_no_rows_to_train_on(rows):
    train = MODULE["train"]()
    assert len(train["click"]) == MODULE["TRAIN_ROWS"]
    same = np.isin(train["numbers"][:, 0], rows["numbers"][:, 0])
    assert not (same & np.isin(train["numbers"][:, 1], rows["numbers"][:, 1])).any()


def test_keys_are_any_64_bits_and_unlike_others():
    keys = MODULE["keys_of"](np.arange(FIELDS * IDS))
    assert keys.dtype == np.int64
    assert len(np.unique(keys)) == FIELDS * IDS
    # Every bit is set in about half of them.
    bits = np.unpackbits(keys[:, None].view(np.uint8), axis=1).mean(0)
    np.testing.assert_allclose(bits, 0.5, atol=0.01)


def test_keys_are_zipf_distributed_in_each_field(rows):
    ids, keys = rows["ids"], rows["keys"]
    np.testing.assert_array_equal(keys, MODULE["keys_of"](ids))
    assert (ids // IDS == np.arange(FIELDS)).all()
    share = np.arange(1, IDS + 1) ** -1.1
    share /= share.sum()
    for field in range(FIELDS):
        counts = np.bincount(ids[:, field] - field * IDS, minlength=IDS) / len(ids)
        np.testing.assert_allclose(counts[:5], share[:5], rtol=0.05)
        assert counts[1000:].sum() == pytest.approx(share[1000:].sum(), rel=0.05)


def test_clicks_have_the_chances_of_which_the_best_auc_is_known(rows):
    click, chance = rows["click"], rows["chance"]
    for part in np.array_split(np.argsort(chance[:, 0]), 10):
        assert click[part].mean() == pytest.approx(chance[part].mean(), abs=0.02)
    assert roc_auc_score(click[:, 0], chance[:, 0]) == pytest.approx(0.832, abs=0.0005)
