"""The JSON Schema of specs accepts valid specs."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from placer.compiler.frontend import json_schema

SPECS = Path(__file__).parents[3] / "specs"


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(json.dumps(json_schema()))
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["digits_backup", "digits_diloco", "digits_async"])
def test_it_accepts_the_settings_of_modes(validator, name):
    validator.validate(yaml.safe_load((SPECS / f"{name}.yaml").read_text()))


def test_it_accepts_the_settings_of_sparse_tables(validator):
    op = {"name": "e", "op": "embedding", "in": "key", "dim": 4, "sparse": True}
    op |= {"admit": {"bloom": {"count": 2, "bytes": 4096}}, "forget": {"every": 8}}
    of_ops = validator.evolve(
        schema={**validator.schema, "$ref": "#/$defs/op.embedding"}
    )
    of_ops.validate({**op, "score": {"click": "clicked"}})
    with pytest.raises(jsonschema.ValidationError, match="cuont"):
        of_ops.validate({**op, "admit": {"bloom": {"cuont": 2, "bytes": 4096}}})
