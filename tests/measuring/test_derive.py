"""The entries of a cost file, derived from given times of two builds."""

from functools import cache
from pathlib import Path

import pytest

from placer.compiler.frontend.python.read import read_model
from placer.compiler.placing.costs import Machine
from placer.compiler.placing.step_items import step_items
from placer.compiler.schedule.schedule import make_schedule
from placer.measuring.builds import split_build
from placer.measuring.child import EMULATED, Measured
from placer.measuring.derive import Derivation
from placer.measuring.overheads import FEW, MANY
from placer.measuring.timer import REST

SPEC = Path(__file__).parents[2] / "specs" / "mlp_pipeline.yaml"
STEPS = 10
US = 1_000
CALL, TASK, PIECE = 40, 5, 100
MESSAGES = {
    kind: {"1000": [20 * US] * 5, "2000": [us * US] * 5}
    for kind, us in (("send", 25), ("receive", 30))
}


@cache
def builds():
    model = read_model(SPEC, nodes=None, overrides=None, code=True)
    return split_build(model, 16, 1, {}), split_build(model, 128, 8, None)


def flat(us, times=1):
    return [us * US] * (STEPS * times)


def derived(together=1.0, unwaited=1.0, devices=None, elsewhere=None):
    """Return the costs if each piece takes `PIECE` us alone and `together` of it in a large
    function, and if a step takes `unwaited` of the time when no call waits."""
    fine, coarse = builds()
    others = {
        "read": flat(30),
        "parameters": flat(7),
        "update": flat(90),
        REST: flat(60),
    }
    overheads = [
        ("call", FEW, flat(CALL)),
        ("call: arguments on a device", MANY, flat(CALL)),
        ("call: arguments in host memory", MANY, flat(CALL)),
        ("call: results", MANY, flat(CALL + 64)),  # 2 us each
        ("elementwise", 1_000, flat(CALL)),
        ("call on another device", FEW, flat(70)),
        ("sum of microbatches: arrays", FEW, flat(10)),
        ("sum of microbatches: arrays", MANY, flat(42)),
        ("sum of microbatches: bytes", 1_000, flat(10)),
        ("update adam", 10, flat(50)),
    ]
    alone = {f"{name}()": flat(CALL + PIECE + 100) for name in fine.segments}
    fine_times = Measured({**alone, **others}, [], STEPS, overheads)
    # All pieces are in three functions, run for each of eight microbatches.
    pieces = together * len(fine.segments) * PIECE / len(coarse.segments)
    functions = {f"{name}()": flat(CALL + pieces, 8) for name in coarse.segments}
    rest = {**others, "read": flat(30, 8), REST: flat(60 + 24 * TASK)}
    waited = sum(sum(t) for t in (*functions.values(), *rest.values())) / STEPS
    plain = [int(unwaited * waited)] * STEPS
    coarse_times = Measured({**functions, **rest}, plain, STEPS, [])
    machine = Machine("a processor", 2, devices or {}, {})
    return Derivation(
        {}, fine, fine_times, coarse, coarse_times, [MESSAGES], machine, elsewhere
    ).costs()


def micro(costs, entry, size):
    return costs.times(entry, size)[7] / US


def test_an_argument_and_a_result_are_what_they_add_to_a_call():
    costs = derived()
    assert micro(costs, "call", 1) == CALL
    assert micro(costs, "call: results", 3) == pytest.approx(6)
    assert micro(costs, "call: arguments on a device", 3) == 0


def test_calls_and_tasks_are_what_a_step_takes_beside_them():
    costs = derived()
    found = {
        name: micro(costs, name, 1) for name in ("step", "task", "read", "other call")
    }
    assert found == {"step": 60, "task": TASK, "read": 30, "other call": 7}
    assert micro(costs, "read", 10**9) == 30


def test_an_update_has_a_base_and_a_rate():
    costs = derived()
    elements = 64 * 256 + 256 + 2 * (256 * 256 + 256) + 256 * 10 + 10
    assert micro(costs, "update adam", 10) == 50
    assert micro(costs, "update adam", elements) == 90


def test_messages_have_the_times_of_their_ends():
    costs = derived()
    assert micro(costs, "send", 1_500) == 22.5
    assert micro(costs, "receive", 2_000) == 30


def pieces_of(costs):
    return {
        name: s[0].us[2] for name, s in costs.entries.items() if name.startswith("cpu")
    }


def test_pieces_are_scaled_to_their_time_in_large_functions():
    whole, half = pieces_of(derived(1.0)), pieces_of(derived(0.5))
    assert whole.keys() == half.keys()
    assert len(whole) == 10  # h2 and h3 share theirs
    assert sum(half.values()) == pytest.approx(sum(whole.values()) / 2, rel=0.05)


def test_a_prediction_of_the_coarse_build_takes_its_time_without_waiting():
    fine, coarse = builds()
    step = coarse.step
    items = step_items(step, make_schedule(step.graph, "1f1b"), derived(unwaited=0.9))
    functions = [item for item in items.items["worker:0"] if len(item.busy) > 1]
    assert len(functions) == 8 * len(coarse.segments) == 24
    found = sum(times[7] for item in functions for times in item.busy.values())
    alone = 24 * CALL + 8 * len(fine.segments) * PIECE
    assert found == pytest.approx(0.9 * alone * US, rel=0.02)


def test_an_emulated_device_has_the_times_of_the_processor():
    costs = derived(devices={"gpu": EMULATED})
    names = {name for name in costs.entries if name.startswith("cpu ")}
    assert all(costs.has(f"gpu {name[4:]}") for name in names)


def test_a_device_has_the_times_of_its_own_build():
    model = read_model(SPEC, nodes=None, overrides=None, code=True)
    build = split_build(model, 16, 1, {}, "gpu")
    times = {f"{name}()": flat(70 + 20 + 100) for name in build.segments}
    costs = derived(elsewhere=(build, Measured(times, [], STEPS, [])))
    names = {name for name in costs.entries if name.startswith("gpu ")}
    assert len(names) == 10
    # 20 us and less than 100 us for the arguments and results of each.
    assert all(20 <= costs.entries[name][0].us[2] <= 120 for name in names)
