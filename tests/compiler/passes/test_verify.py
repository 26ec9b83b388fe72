"""Every rule of the verifier, violated once."""

import pytest

from placer.compiler.graph.text import parse_graph
from placer.compiler.passes.verify import GraphForm, verify
from placer.compiler.passes.verify_types import VerifierCache
from placer.errors import GraphError

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
SUM = (ROWS, f"%s: float32[4] P = reduce_sum(%x) {{axis = [0]}} {W}")
SUM_WITH_RESIDUAL = (
    ROWS,
    W_,
    f"%s: float32[4] P, %s.res: () S = reduce_sum(%x) {{axis = [0]}} {W}",
)
ROWS_GRAD = (
    "%x.grad: float32[batch, 4] S = reduce_sum.grad(%s.res, %d)"
    f" {{axis = [0], wrt = [0]}} {W}"
)

# For each rule: the form to verify, the message, and the ops of the graph.
BROKEN = {
    "used before": (
        GraphForm.WRITTEN,
        "'a' is used before it is defined:\n    %h: float32[batch, 3] = fc(%x, %a)",
        [X, H, A],
    ),
    "defined twice": (GraphForm.WRITTEN, f"'x' is defined twice:\n    {X}", [X, X]),
    "unknown op": (
        GraphForm.WRITTEN,
        "unknown op 'fcc':\n    %h: float32[batch, 3] = fcc(%x)",
        [X, "%h: float32[batch, 3] = fcc(%x)"],
    ),
    "a type that is not the declared one": (
        GraphForm.WRITTEN,
        "'h' is float32[batch, 4], but fc gives float32[batch, 3]:\n"
        "    %h: float32[batch, 4] = fc(%x, %a)",
        [X, A, "%h: float32[batch, 4] = fc(%x, %a)"],
    ),
    "operands of wrong types": (
        GraphForm.WRITTEN,
        "fc needs 'w' [4, size] for 'x' float32[batch, 4], 'w' is float32[5, 3]:\n"
        "    %h: float32[batch, 3] = fc(%x, %a)",
        [X, "%a: float32[5, 3] = parameter() {init = zeros}", H],
    ),
    "too many results": (
        GraphForm.WRITTEN,
        "tanh has 1 results:\n"
        "    %h: float32[batch, 4], %i: (float32[batch, 4]),"
        " %j: float32[batch, 4] = tanh(%x)",
        [
            X,
            "%h: float32[batch, 4], %i: (float32[batch, 4]),"
            " %j: float32[batch, 4] = tanh(%x)",
        ],
    ),
    "a residual that is not the declared one": (
        GraphForm.DIFFERENTIATED,
        "'h.res' is (float32[batch, 3]), but fc gives ():\n"
        "    %h: float32[batch, 3], %h.res: (float32[batch, 3]) = fc(%x, %a)",
        [X, A, "%h: float32[batch, 3], %h.res: (float32[batch, 3]) = fc(%x, %a)"],
    ),
    "a residual as a tensor": (
        GraphForm.DIFFERENTIATED,
        "'h.res' is a residual, not a tensor:\n    %t: float32[3] = tanh(%h.res)",
        [X, A, HR, "%t: float32[3] = tanh(%h.res)"],
    ),
    "a gradient without a residual": (
        GraphForm.DIFFERENTIATED,
        "the first operand of fc.grad must be a residual:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%x, %a, %d) {wrt = [1]}",
        [X, A, H, D, G.replace("%h.res, ", "")],
    ),
    "a gradient of another op": (
        GraphForm.DIFFERENTIATED,
        "'h.res' is a residual of fc, not of this op:\n"
        "    %a.grad: float32[4, 3] = tanh.grad(%h.res, %x, %a, %d) {wrt = [1]}",
        [X, A, HR, D, G.replace("fc.grad", "tanh.grad")],
    ),
    "a gradient without a cotangent": (
        GraphForm.DIFFERENTIATED,
        "fc.grad needs 4 operands:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a) {wrt = [1]}",
        [X, A, HR, G.replace(", %d", "")],
    ),
    "gradients of an operand that the forward op does not have": (
        GraphForm.WRITTEN,
        "fc has no operand or result 7:\n    " + G.replace("[1]", "[7]"),
        [X, A, HR, D, G.replace("[1]", "[7]")],
    ),
    "a cotangent of another type": (
        GraphForm.DIFFERENTIATED,
        "'x' is float32[batch, 4], but fc.grad needs float32[batch, 3]:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a, %x) {wrt = [1]}",
        [X, A, HR, G.replace("%d", "%x")],
    ),
    "a gradient of another type than its operand": (
        GraphForm.DIFFERENTIATED,
        "'a.grad' is float32[4, 3], but fc.grad gives float32[batch, 4]:\n"
        "    %a.grad: float32[4, 3] = fc.grad(%h.res, %x, %a, %d) {wrt = [0]}",
        [X, A, HR, D, G.replace("[1]", "[0]")],
    ),
    "terms of a sum of different types": (
        GraphForm.DIFFERENTIATED,
        "accumulate needs operands of the same shape, 'xs[0]' is float32[batch, 4], 'xs[1]'"
        " is float32[4, 3]:\n    %s: float32[4, 3] = accumulate(%x, %a) {of = x}",
        [X, A, "%s: float32[4, 3] = accumulate(%x, %a) {of = x}"],
    ),
    "an update by a gradient of another shape": (
        GraphForm.DIFFERENTIATED,
        "'a' is float32[4, 3], but 'x' is float32[batch, 4]:\n"
        "    %n: float32[4, 3] = sgd(%a, %x) {group = 0}",
        [X, A, "%n: float32[4, 3] = sgd(%a, %x) {group = 0}"],
    ),
    "an update of another type": (
        GraphForm.DIFFERENTIATED,
        "'n' is float32[3], but sgd gives float32[4, 3]:\n"
        "    %n: float32[3] = sgd(%a, %a) {group = 0}",
        [A, "%n: float32[3] = sgd(%a, %a) {group = 0}"],
    ),
    "a store of another shape": (
        GraphForm.DIFFERENTIATED,
        "'a' is float32[4, 3], but 'x' is float32[batch, 4]:\n    store(%a, %x)",
        [X, A, "store(%a, %x)"],
    ),
    "minimize after differentiation": (
        GraphForm.DIFFERENTIATED,
        "minimize is not differentiated:\n    minimize(%l)",
        ["%l: float32[] = parameter() {init = zeros}", "minimize(%l)"],
    ),
    "an optimizer without parameters": (
        GraphForm.DIFFERENTIATED,
        "the optimizer updates no parameter:\n    optimizer() {group = 1, rule = sgd, learning_rate = 0.1}",
        [
            A,
            "optimizer() {group = 0, rule = sgd, learning_rate = 0.1}",
            "optimizer() {group = 1, rule = sgd, learning_rate = 0.1}",
            "%n: float32[4, 3] = sgd(%a, %a) {group = 0}",
        ],
    ),
    "no place": (GraphForm.PLACED, f"the op has no place:\n    {X}", [X]),
    "a place outside the cluster": (
        GraphForm.PLACED,
        "no 'worker:7' in this cluster, which declares worker: 2:\n    "
        + X
        + " @/node:worker:7/cpu",
        [X + " @/node:worker:7/cpu"],
    ),
    "a block outside its parameter": (
        GraphForm.PLACED,
        "float32[4, 3] has no elements 0 to 13:\n"
        f"    %c: float32[13] = cut(%a) {{start = 0, stop = 13}} {W}",
        [f"{A} {W}", f"%c: float32[13] = cut(%a) {{start = 0, stop = 13}} {W}"],
    ),
    "a block of another size": (
        GraphForm.PLACED,
        "'c' is float32[3], but cut gives float32[4]:\n"
        f"    %c: float32[3] = cut(%a) {{start = 0, stop = 4}} {W}",
        [f"{A} {W}", f"%c: float32[3] = cut(%a) {{start = 0, stop = 4}} {W}"],
    ),
    "blocks of another parameter": (
        GraphForm.PLACED,
        "the blocks have 12 elements, which do not form float32[5, 3]:\n"
        f"    %b: float32[5, 3] = assemble(%a) {W}",
        [f"{A} {W}", f"%b: float32[5, 3] = assemble(%a) {W}"],
    ),
    "no layout": (
        GraphForm.LAID_OUT,
        f"'x' has no layout:\n    {X} {W}",
        [f"{X} {W}"],
    ),
    "an operand on other nodes": (
        GraphForm.LAID_OUT,
        "'p' is on ('worker:0',), not on ('worker:0', 'worker:1'):\n"
        f"    %t: float32[3] R = tanh(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%t: float32[3] R = tanh(%p) {W}",
        ],
    ),
    "a term of a sum on other nodes": (
        GraphForm.LAID_OUT,
        f"no node of the op has 'p':\n    %s: float32[3] P = accumulate(%p) {{of = p}} {W1}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%s: float32[3] P = accumulate(%p) {{of = p}} {W1}",
        ],
    ),
    "a partial value where a replica is needed": (
        GraphForm.LAID_OUT,
        f"'s' has layout P, but relu needs R:\n    %r: float32[4] R = relu(%s) {W}",
        [*SUM, f"%r: float32[4] R = relu(%s) {W}"],
    ),
    "a replica where a partial value is needed": (
        GraphForm.LAID_OUT,
        f"'w' has layout R, but add needs P:\n    %r: float32[4] P = add(%s, %w) {W}",
        [*SUM, W_, f"%r: float32[4] P = add(%s, %w) {W}"],
    ),
    "a result in another layout": (
        GraphForm.LAID_OUT,
        f"'t' has layout R, but tanh gives S:\n    %t: float32[batch, 4] R = tanh(%x) {W}",
        [ROWS, f"%t: float32[batch, 4] R = tanh(%x) {W}"],
    ),
    "a partial value on a single node": (
        GraphForm.LAID_OUT,
        f"'n' has layout P, but tanh gives R:\n    %n: float32[3] P = tanh(%p) {W0}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W0}",
            f"%n: float32[3] P = tanh(%p) {W0}",
        ],
    ),
    "a cotangent in another layout": (
        GraphForm.LAID_OUT,
        f"'d' has layout P, but reduce_sum.grad needs R:\n    {ROWS_GRAD}",
        [*SUM_WITH_RESIDUAL, f"%d: float32[4] P = partial(%w) {W}", ROWS_GRAD],
    ),
    "a gradient in another layout": (
        GraphForm.LAID_OUT,
        "'x.grad' has layout P, but reduce_sum.grad gives S:\n    "
        + ROWS_GRAD.replace("] S", "] P").replace("%d", "%w"),
        [*SUM_WITH_RESIDUAL, ROWS_GRAD.replace("] S", "] P").replace("%d", "%w")],
    ),
    "a replicated sum as a gradient": (
        GraphForm.LAID_OUT,
        "'w' has layout R, but accumulate needs P:\n"
        f"    %s: float32[4] P = accumulate(%w, %w) {{of = w}} {W}",
        [W_, f"%s: float32[4] P = accumulate(%w, %w) {{of = w}} {W}"],
    ),
    "a conversion of the wrong kind": (
        GraphForm.LAID_OUT,
        f"partial converts from R to P, not shard:\n    %q: float32[3] P = shard(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {W}",
            f"%q: float32[3] P = shard(%p) {W}",
        ],
    ),
    "an all_reduce to a single node": (
        GraphForm.LAID_OUT,
        f"reduce converts from P to R, not all_reduce:\n"
        f"    %t: float32[4] R = all_reduce(%s) {W0}",
        [*SUM, f"%t: float32[4] R = all_reduce(%s) {W0}"],
    ),
    "a conversion that changes the type": (
        GraphForm.LAID_OUT,
        "'q' is float32[4], but copy gives float32[3]:\n"
        f"    %q: float32[4] R = copy(%p) {W}",
        [
            f"%p: float32[3] R = parameter() {{init = zeros}} {PS}",
            f"%q: float32[4] R = copy(%p) {W}",
        ],
    ),
    "a conversion that crosses nodes": (
        GraphForm.TRANSFERRED,
        f"no node of the op has 'p':\n    %q: float32[3] R = copy(%p) {W}",
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
    "received but not sent": (
        f"no message of edge 1 is in flight:\n    {LISTEN}",
        [LISTEN],
    ),
    "received before it is sent": (
        f"no message of edge 1 is in flight:\n    {LISTEN}",
        [P, LISTEN, SEND],
    ),
    "received twice": (
        "no message of edge 1 is in flight:\n    " + LISTEN.replace("%q", "%r"),
        [P, SEND, LISTEN, LISTEN.replace("%q", "%r")],
    ),
    "never received": (f"edge 1 is never received:\n    {SEND}", [P, SEND]),
    "sent to another node": (
        f"the message goes from /node:ps/cpu to /node:worker:0/cpu:\n    {LISTEN}",
        [P, SEND.replace("/node:worker/", "/node:worker:0/"), LISTEN],
    ),
    "received as another type": (
        "the message carries float32[3]:\n    "
        + LISTEN.replace("float32[3]", "float32[4]"),
        [P, SEND, LISTEN.replace("float32[3]", "float32[4]")],
    ),
}
BROKEN |= {
    name: (GraphForm.TRANSFERRED, message, ops)
    for name, (message, ops) in MESSAGES.items()
}


W_IN_RANGES = f"%w: float32[4] F[0/4] = parameter() {{init = zeros}} {W}"
TANH = f"%t: float32[4] R = tanh(%w) {W}"
UPDATE = f"%w.new: float32[4] F[0/4] = sgd(%w, %g) {{group = 0}} {W}"
RANGES = {
    "an op that cannot work on ranges": (
        f"'w' has layout F, but tanh needs R:\n    {TANH}",
        [W_IN_RANGES, TANH],
    ),
    "a whole gradient of a parameter in ranges": (
        f"'g' has layout R, but sgd needs F:\n    {UPDATE}",
        [W_IN_RANGES, W_.replace("%w", "%g"), UPDATE],
    ),
    "ranges that end after their group": (
        "'w' exceeds its group:\n    " + W_IN_RANGES.replace("0/4", "2/5"),
        [W_IN_RANGES.replace("0/4", "2/5")],
    ),
}
BROKEN |= {
    name: (GraphForm.LAID_OUT, message, ops) for name, (message, ops) in RANGES.items()
}


@pytest.mark.parametrize("rule", BROKEN)
def test_an_error_contains_the_op(rule):
    form, message, ops = BROKEN[rule]
    with pytest.raises(GraphError) as caught:
        verify(graph(*ops), form)
    assert caught.value.message == message


OF_A_FORM = (
    "minimize after differentiation",
    "an optimizer without parameters",
    "no place",
    "a place outside the cluster",
    "no layout",
    "an operand on other nodes",
    "a term of a sum on other nodes",
    "a partial value where a replica is needed",
    "a replica where a partial value is needed",
    "a result in another layout",
    "a partial value on a single node",
    "a cotangent in another layout",
    "a gradient in another layout",
    "a replicated sum as a gradient",
    "a conversion of the wrong kind",
    "an all_reduce to a single node",
    "a conversion that crosses nodes",
    *MESSAGES,
)


@pytest.mark.parametrize("rule", OF_A_FORM)
def test_a_rule_of_a_form_is_not_checked_for_earlier_forms(rule):
    form, _, ops = BROKEN[rule]
    verify(graph(*ops), GraphForm(form - 1))


def test_the_cache_does_not_hide_errors():
    cache = VerifierCache()
    valid = graph(X, A, HR, D, G)
    verify(valid, GraphForm.DIFFERENTIATED, cache)
    verify(valid, GraphForm.DIFFERENTIATED, cache)
    invalid = graph(X, A, HR, D, G.replace("%x, %a, %d", "%x, %a, %x"))
    with pytest.raises(GraphError, match=r"fc\.grad needs float32\[batch, 3\]"):
        verify(invalid, GraphForm.DIFFERENTIATED, cache)
    other = graph(X, A, D.replace("%h", "%x").replace("3]", "4]"), H)
    verify(other, GraphForm.WRITTEN, cache)
    with pytest.raises(GraphError, match="'h' is"):
        verify(
            graph(X, A, H.replace("batch, 3", "batch, 2")),
            GraphForm.WRITTEN,
            cache,
        )


def test_a_hold_can_wait_for_a_partial_value():
    held = f"%x.again: float32[batch, 4] S = hold(%x, %s) {{again = true}} {W}"
    verify(graph(*SUM, held), GraphForm.LAID_OUT)
    with pytest.raises(GraphError, match=r"'x\.again' has layout R, but hold gives S"):
        verify(graph(*SUM, held.replace("] S", "] R")), GraphForm.LAID_OUT)


def test_a_pair_of_messages_is_valid():
    verify(graph(P, SEND, LISTEN), GraphForm.TRANSFERRED)
