"""Groups values of a hook into one variable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placer.compiler.emit.bundles import Bundle
from placer.compiler.emit.computed import cotangent_literal
from placer.compiler.emit.hook import Hook
from placer.compiler.emit.roles import differentiated, parameter_of
from placer.compiler.emit.scope import Held
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.schedule.units import Unit


def group_outputs(hook: Hook, unit: Unit) -> tuple[dict[str, list[str]], Held]:
    """Return the variables that hold several outputs of a function.

    Returns:
        Variables such as `s`, each with values that the same later functions use, and no
        other statements. Then variables such as `g`, each with the gradients or the new
        values of all parameters of a table.
    """
    scope, graph = hook.scope, hook.graph
    bundles: Held = {}
    pairs = [(hook.parameter_for(value), value) for value in unit.outputs]
    order = [*hook.bundles.of_table]
    found = _complete_bundles(hook, pairs)
    for bundle, values in sorted(found, key=lambda each: order.index(each[0].table)):
        is_gradient = differentiated(graph, values[0]) is not None
        variable = scope.new_variable(f"{'g' if is_gradient else 'new'}{bundle.number}")
        bundles[variable] = bundle, dict(zip(bundle.members, values, strict=True))
    bundled = {value for _, values in bundles.values() for value in values.values()}
    saved: dict[tuple[int, ...], list[str]] = {}
    for value in unit.outputs:
        users = tuple(n for n in hook.users.get(value, ()) if hook.units[n] is not unit)
        only_functions = users and all(hook.units[n].computed for n in users)
        is_number = cotangent_literal(graph, value) is not None
        is_saved = only_functions and not is_number
        # Converting may only give its operand another name.
        is_converted = is_conversion(graph.producers[value].kind)
        if value not in bundled and is_saved and not is_converted:
            saved.setdefault(users, []).append(value)
    groups = [values for values in saved.values() if len(values) > 1]
    return {scope.new_variable("s"): values for values in groups}, bundles


def parameters_to_group(hook: Hook) -> dict[int, list[tuple[Bundle, list[str]]]]:
    """Return the bundles of parameters that functions take, with the value of each member.

    They are listed by the number of the unit that assigns the last value of the bundle. A
    table has no bundle if functions take different values of one parameter, or values on
    several sets of devices.
    """
    graph = hook.graph
    numbers = {
        value.name: number
        for number, unit in enumerate(hook.units)
        for op in unit.ops
        for value in op.results
    }
    inputs = dict.fromkeys(v for u in hook.units if u.computed for v in u.inputs)
    pairs = [(parameter_of(graph, value), value) for value in inputs]
    groups: dict[int, list[tuple[Bundle, list[str]]]] = {}
    for bundle, values in _complete_bundles(hook, pairs):
        devices = {graph.devices(graph.producers[v]) for v in values}
        if len(devices) == 1:
            number = max(numbers[value] for value in values)
            groups.setdefault(number, []).append((bundle, values))
    return groups


def _complete_bundles(
    hook: Hook, pairs: Iterable[tuple[str | None, str]]
) -> Iterator[tuple[Bundle, list[str]]]:
    """Yield the bundles with exactly one value for each parameter, and these values."""
    of_table: dict[str, list[tuple[str, str]]] = {}
    for parameter, value in pairs:
        bundle = hook.bundles.of_member.get(parameter or "")
        if parameter is not None and bundle is not None:
            of_table.setdefault(bundle.table, []).append((parameter, value))
    for table, found in of_table.items():
        bundle = hook.bundles.of_table[table]
        values = dict(found)
        if len(found) == len(values) and values.keys() == {*bundle.members}:
            yield bundle, [values[member] for member in bundle.members]
