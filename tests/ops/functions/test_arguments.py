"""The arguments of a traced function, read from their text in a node program."""

import json

import jax
from flax import nnx

from placer.ops.functions.arguments import read_arguments


def look_up(tables):
    return tables


def test_a_dict_has_its_keys_in_the_written_order():
    text = '[{"dict": {"b": {"in": "float32[2]"}, "a": {"param": "float32[3]"}}}]'
    template = read_arguments(look_up, text)
    assert [str(each) for each in template.types] == ["float32[2]", "float32[3]"]
    (filled,) = template.fill(iter(["x", "w"]))
    assert [*filled.items()] == [("b", "x"), ("a", "w")]


def dropout():
    return nnx.Dropout(0.5, rngs=nnx.Rngs(0))


def drop_twice(first, second):
    return first, second


def test_streams_of_all_arguments_have_different_keys():
    nested = {"list": [{"dict": {"second": {"make": "dropout"}}}]}
    text = json.dumps([{"make": "dropout"}, nested])
    key = jax.random.key(3)
    first, second = read_arguments(drop_twice, text, True).fill(iter(()), key)
    for number, layer in enumerate((first, second[0]["second"])):
        expected = jax.random.key_data(jax.random.fold_in(key, number))
        assert (jax.random.key_data(layer.rngs.key[...]) == expected).all()
