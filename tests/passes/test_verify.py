"""Every rule of the verifier, broken once."""

import pytest

from placer.errors import GraphError
from placer.graph.text import parse_graph
from placer.passes.verify import Stage, verify
from placer.passes.verify_types import Known

W, W0, W1, PS = (
    f"@/node:{node}/cpu" for node in ("worker", "worker:0", "worker:1", "ps")
)


def graph(*ops):
    body = "".join(f"  {op}\n" for op in ops)
    return parse_graph(f"graph @g nodes(worker: 2, ps: 1) batch(8) {{\n{body}}}\n")


X = "%x: float32[batch, 4] = read() {input = x}"
A = "%a: float32[4, 3] = parameter() {init = zeros}"
H = "%h: float32[batch, 3] = fc(%x, %a)"
HR = "%h: float32[batch, 3], %h.res: () = fc(%x, %a)"
D = "%d: float32[batch, 3] = tanh(%h)"
G = "%a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a, %d) {wrt = [1]}"

ROWS = f"%x: float32[batch, 4] S = read() {{input = x}} {W}"
W_ = f"%w: float32[4] R = parameter() {{init = zeros}} {W}"
PART = (ROWS, f"%s: float32[4] P = reduce_sum(%x) {{axis = [0]}} {W}")
PART_RES = (
    ROWS,
    W_,
    f"%s: float32[4] P, %s.res: () S = reduce_sum(%x) {{axis = [0]}} {W}",
)
ROWS_GRAD = (
    "%x.grad: float32[batch, 4] S = reduce_sum.grad(%s.res, %d)"
    f" {{axis = [0], wrt = [0]}} {W}"
)

# What is wrong, how far the graph has come, and its ops; the last is the bad one unless
# another follows.
BROKEN = {
    "used before": (
        Stage.WRITTEN,
        "'a' is used before it is defined:\n    %h: float32[batch, 3] = fc(%x, %a)",
        [X, H, A],
    ),
    "defined twice": (Stage.WRITTEN, f"'x' is defined twice:\n    {X}", [X, X]),
    "unknown op": (
        Stage.WRITTEN,
        "unknown op 'fcc':\n    %h: float32[batch, 3] = fcc(%x)",
        [X, "%h: float32[batch, 3] = fcc(%x)"],
    ),
    "a type that is not the declared one": (
        Stage.WRITTEN,
        "'h' is float32[batch, 4], and fc gives float32[batch, 3]:\n"
        "    %h: float32[batch, 4] = fc(%x, %a)",
        [X, A, "%h: float32[batch, 4] = fc(%x, %a)"],
    ),
    "operands that do not fit": (
        Stage.WRITTEN,
        "fc needs 'w' [4, size] for 'x' float32[batch, 4], 'w' is float32[5, 3]:\n"
        "    %h: float32[batch, 3] = fc(%x, %a)",
        [X, "%a: float32[5, 3] = parameter() {init = zeros}", H],
    ),
    "an attribute that the op has not": (
        Stage.WRITTEN,
        "fc has no attribute 'speed':\n"
        "    %h: float32[batch, 3] = fc(%x, %a) {speed = 2}",
        [X, A, H + " {speed = 2}"],
    ),
    "too many results": (
        Stage.WRITTEN,
        "tanh gives 1 results:\n"
        "    %h: float32[batch, 4], %i: (float32[batch, 4]),"
        " %j: float32[batch, 4] = tanh(%x)",
        [
            X,
            "%h: float32[batch, 4], %i: (float32[batch, 4]),"
            " %j: float32[batch, 4] = tanh(%x)",
        ],
    ),
    "a residual that is not the declared one": (
        Stage.DIFFERENTIATED,
        "'h.res' is (float32[batch, 3]), and fc gives ():\n"
        "    %h: float32[batch, 3], %h.res: (float32[batch, 3]) = fc(%x, %a)",
        [X, A, "%h: float32[batch, 3], %h.res: (float32[batch, 3]) = fc(%x, %a)"],
    ),
    "a residual as a tensor": (
        Stage.DIFFERENTIATED,
        "'h.res' is a residual, not a tensor:\n    %t: float32[3] = tanh(%h.res)",
        [X, A, HR, "%t: float32[3] = tanh(%h.res)"],
    ),
    "a gradient without a residual": (
        Stage.DIFFERENTIATED,
        "fc.grad takes a residual first:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%x, %a, %d) {wrt = [1]}",
        [X, A, H, D, G.replace("%h.res, ", "")],
    ),
    "a gradient of another op": (
        Stage.DIFFERENTIATED,
        "'h.res' is a residual of fc:\n"
        "    %a.grad: float32[4, 3] = tanh.grad(%h.res, %x, %a, %d) {wrt = [1]}",
        [X, A, HR, D, G.replace("fc.grad", "tanh.grad")],
    ),
    "a gradient that lacks a cotangent": (
        Stage.DIFFERENTIATED,
        "fc.grad takes 4 operands here:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a) {wrt = [1]}",
        [X, A, HR, G.replace(", %d", "")],
    ),
    "a cotangent of another type": (
        Stage.DIFFERENTIATED,
        "'x' is float32[batch, 4], and fc.grad takes float32[batch, 3] there:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a, %x) {wrt = [1]}",
        [X, A, HR, G.replace("%d", "%x")],
    ),
    "a gradient of another type than its operand": (
        Stage.DIFFERENTIATED,
        "'a.grad' is float32[4, 3], and fc.grad gives float32[batch, 4]:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a, %d) {wrt = [0]}",
        [X, A, HR, D, G.replace("[1]", "[0]")],
    ),
    "parts of a sum that differ": (
        Stage.DIFFERENTIATED,
        "accumulate needs operands of one shape, 'xs[0]' is float32[batch, 4], 'xs[1]'"
        " is float32[4, 3]:\n    %s: float32[4, 3] = accumulate(%x, %a)",
        [X, A, "%s: float32[4, 3] = accumulate(%x, %a)"],
    ),
    "an update by a gradient of another shape": (
        Stage.DIFFERENTIATED,
        "'a' is float32[4, 3] and 'x' is float32[batch, 4]:\n"
        "    %n: float32[4, 3] = sgd(%a, %x) {group = 0}",
        [X, A, "%n: float32[4, 3] = sgd(%a, %x) {group = 0}"],
    ),
    "an update of another type": (
        Stage.DIFFERENTIATED,
        "'n' is float32[3], and sgd gives float32[4, 3]:\n"
        "    %n: float32[3] = sgd(%a, %a) {group = 0}",
        [A, "%n: float32[3] = sgd(%a, %a) {group = 0}"],
    ),
    "a store of another shape": (
        Stage.DIFFERENTIATED,
        "'a' is float32[4, 3] and 'x' is float32[batch, 4]:\n    store(%a, %x)",
        [X, A, "store(%a, %x)"],
    ),
    "minimize left over": (
        Stage.DIFFERENTIATED,
        "it is not differentiated:\n    minimize(%l)",
        ["%l: float32[] = parameter() {init = zeros}", "minimize(%l)"],
    ),
    "an optimizer of nothing": (
        Stage.DIFFERENTIATED,
        "it updates nothing:\n    optimizer() {group = 1, rule = sgd}",
        [
            A,
            "optimizer() {group = 0, rule = sgd}",
            "optimizer() {group = 1, rule = sgd}",
            "%n: float32[4, 3] = sgd(%a, %a) {group = 0}",
        ],
    ),
    "no place": (Stage.PLACED, f"it has no place:\n    {X}", [X]),
    "a place that the cluster has not": (
        Stage.PLACED,
        "no 'worker:7' in this cluster, which declares worker: 2:\n    "
        + X
        + " @/node:worker:7/cpu",
        [X + " @/node:worker:7/cpu"],
    ),
    "a block outside its parameter": (
        Stage.PLACED,
        "float32[4, 3] has no elements 0 to 13:\n"
        f"    %c: float32[13] = cut(%a) {{start = 0, stop = 13}} {W}",
        [f"{A} {W}", f"%c: float32[13] = cut(%a) {{start = 0, stop = 13}} {W}"],
    ),
    "a block of another size": (
        Stage.PLACED,
        "'c' is float32[3], and cut gives float32[4]:\n"
        f"    %c: float32[3] = cut(%a) {{start = 0, stop = 4}} {W}",
        [f"{A} {W}", f"%c: float32[3] = cut(%a) {{start = 0, stop = 4}} {W}"],
    ),
    "blocks that do not make a parameter": (
        Stage.PLACED,
        "its blocks hold 12 elements, and float32[5, 3] has others:\n"
        f"    %b: float32[5, 3] = assemble(%a) {W}",
        [f"{A} {W}", f"%b: float32[5, 3] = assemble(%a) {W}"],
    ),
    "no layout": (
        Stage.LAID_OUT,
        f"'x' has no layout:\n    {X} {W}",
        [f"{X} {W}"],
    ),
    "an operand that is elsewhere": (
        Stage.LAID_OUT,
        "'p' is on ('worker:0',), not on ('worker:0', 'worker:1'):\n"
        f"    %t: float32[3] R = tanh(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%t: float32[3] R = tanh(%p) {W}",
        ],
    ),
    "a part of a sum that never reaches it": (
        Stage.LAID_OUT,
        f"'p' never reaches it:\n    %s: float32[3] P = accumulate(%p) {W1}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%s: float32[3] P = accumulate(%p) {W1}",
        ],
    ),
    "a part of a sum where the whole is needed": (
        Stage.LAID_OUT,
        f"'s' is P, and relu takes R there:\n    %r: float32[4] R = relu(%s) {W}",
        [*PART, f"%r: float32[4] R = relu(%s) {W}"],
    ),
    "a whole where parts are needed": (
        Stage.LAID_OUT,
        f"'w' is R, and add takes P there:\n    %r: float32[4] P = add(%s, %w) {W}",
        [*PART, W_, f"%r: float32[4] P = add(%s, %w) {W}"],
    ),
    "a result in another layout": (
        Stage.LAID_OUT,
        f"'t' is R, and tanh gives S:\n    %t: float32[batch, 4] R = tanh(%x) {W}",
        [ROWS, f"%t: float32[batch, 4] R = tanh(%x) {W}"],
    ),
    "parts on a single node": (
        Stage.LAID_OUT,
        f"'n' is P, and tanh gives R:\n    %n: float32[3] P = tanh(%p) {W0}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%n: float32[3] P = tanh(%p) {W0}",
        ],
    ),
    "a cotangent in another layout": (
        Stage.LAID_OUT,
        f"'d' is P, and reduce_sum.grad takes R there:\n    {ROWS_GRAD}",
        [*PART_RES, f"%d: float32[4] P = partial(%w) {W}", ROWS_GRAD],
    ),
    "a gradient in another layout": (
        Stage.LAID_OUT,
        "'x.grad' is P, and reduce_sum.grad gives S:\n    "
        + ROWS_GRAD.replace("] S", "] P").replace("%d", "%w"),
        [*PART_RES, ROWS_GRAD.replace("] S", "] P").replace("%d", "%w")],
    ),
    "a sum of wholes as a gradient": (
        Stage.LAID_OUT,
        "'w' is R, and accumulate takes P there:\n"
        f"    %s: float32[4] P = accumulate(%w, %w) {{of = w}} {W}",
        [W_, f"%s: float32[4] P = accumulate(%w, %w) {{of = w}} {W}"],
    ),
    "a conversion that is another one": (
        Stage.LAID_OUT,
        f"R to P is partial:\n    %q: float32[3] P = shard(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W}",
            f"%q: float32[3] P = shard(%p) {W}",
        ],
    ),
    "a conversion that changes the type": (
        Stage.LAID_OUT,
        "'q' is float32[4], and copy gives float32[3]:\n"
        f"    %q: float32[4] R = copy(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {PS}",
            f"%q: float32[4] R = copy(%p) {W}",
        ],
    ),
    "a conversion that crosses nodes": (
        Stage.TRANSFERRED,
        f"'p' never reaches it:\n    %q: float32[3] R = copy(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {PS}",
            f"%q: float32[3] R = copy(%p) {W}",
        ],
    ),
}

P = f"%p: float32[3] R = parameter() {{init = zeros}} {PS}"
SEND = f"send(%p) {{edge = 1, to = /node:worker/cpu}} {PS}"
LISTEN = f"%q: float32[3] R = listen_and_serv() {{edge = 1, from = /node:ps/cpu}} {W}"
MESSAGES = {
    "sent twice": (f"edge 1 is sent twice:\n    {SEND}", [P, SEND, SEND, LISTEN]),
    "received and never sent": (
        f"no message of edge 1 is on its way:\n    {LISTEN}",
        [LISTEN],
    ),
    "received before it is sent": (
        f"no message of edge 1 is on its way:\n    {LISTEN}",
        [P, LISTEN, SEND],
    ),
    "received twice": (
        "no message of edge 1 is on its way:\n    " + LISTEN.replace("%q", "%r"),
        [P, SEND, LISTEN, LISTEN.replace("%q", "%r")],
    ),
    "never received": (f"nobody receives edge 1:\n    {SEND}", [P, SEND]),
    "sent to somebody else": (
        f"it goes from /node:ps/cpu to /node:worker:0/cpu:\n    {LISTEN}",
        [P, SEND.replace("/node:worker/", "/node:worker:0/"), LISTEN],
    ),
    "received as another type": (
        "it carries float32[3]:\n    " + LISTEN.replace("float32[3]", "float32[4]"),
        [P, SEND, LISTEN.replace("float32[3]", "float32[4]")],
    ),
}
BROKEN |= {
    name: (Stage.TRANSFERRED, message, ops) for name, (message, ops) in MESSAGES.items()
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_told_with_the_op(rule):
    stage, message, ops = BROKEN[rule]
    with pytest.raises(GraphError) as caught:
        verify(graph(*ops), stage)
    assert caught.value.message == message


OF_A_STAGE = (
    "minimize left over",
    "an optimizer of nothing",
    "no place",
    "a place that the cluster has not",
    "no layout",
    "an operand that is elsewhere",
    "a part of a sum that never reaches it",
    "a part of a sum where the whole is needed",
    "a whole where parts are needed",
    "a result in another layout",
    "parts on a single node",
    "a cotangent in another layout",
    "a gradient in another layout",
    "a sum of wholes as a gradient",
    "a conversion that is another one",
    "a conversion that crosses nodes",
    *MESSAGES,
)


@pytest.mark.parametrize("rule", OF_A_STAGE)
def test_a_rule_of_a_stage_does_not_hold_before_it(rule):
    stage, _, ops = BROKEN[rule]
    verify(graph(*ops), Stage(stage - 1))


def test_what_was_found_right_does_not_excuse_what_is_wrong():
    known = Known()
    right = graph(X, A, HR, D, G)
    verify(right, Stage.DIFFERENTIATED, known)
    verify(right, Stage.DIFFERENTIATED, known)
    wrong = graph(X, A, HR, D, G.replace("%x, %a, %d", "%x, %a, %x"))
    with pytest.raises(GraphError, match=r"fc\.grad takes float32\[batch, 3\] there"):
        verify(wrong, Stage.DIFFERENTIATED, known)
    other = graph(X, A, D.replace("%h", "%x").replace("3]", "4]"), H)
    verify(other, Stage.WRITTEN, known)
    with pytest.raises(GraphError, match="'h' is"):
        verify(
            graph(X, A, H.replace("batch, 3", "batch, 2")),
            Stage.WRITTEN,
            known,
        )


def test_what_is_held_may_wait_for_a_part_of_a_sum():
    held = f"%x.again: float32[batch, 4] S = hold(%x, %s) {{again = true}} {W}"
    verify(graph(*PART, held), Stage.LAID_OUT)
    with pytest.raises(GraphError, match=r"'x\.again' is R, and hold gives S"):
        verify(graph(*PART, held.replace("] S", "] R")), Stage.LAID_OUT)


def test_a_message_pair_is_right():
    verify(graph(P, SEND, LISTEN), Stage.TRANSFERRED)


@pytest.mark.parametrize("shape", ["[f2.eval]", "8", "none", "[[1]]"])
def test_an_attribute_of_another_type_is_told_with_the_op(shape):
    constant = f"%c: float32[] = constant() {{value = 1.0, shape = {shape}}}"
    with pytest.raises(GraphError, match=r"constant cannot have shape: .*\n    %c"):
        verify(graph(constant), Stage.WRITTEN)
