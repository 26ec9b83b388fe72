"""The arguments of a traced function, read from their text in a node program."""

from placer.ops.functions.arguments import read_arguments


def look_up(tables):
    return tables


def test_a_dict_has_its_keys_in_the_written_order():
    text = '[{"dict": {"b": {"in": "float32[2]"}, "a": {"param": "float32[3]"}}}]'
    template = read_arguments(look_up, text)
    assert [str(each) for each in template.types] == ["float32[2]", "float32[3]"]
    (filled,) = template.fill(iter(["x", "w"]))
    assert [*filled.items()] == [("b", "x"), ("a", "w")]
