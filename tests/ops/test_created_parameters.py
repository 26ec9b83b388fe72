"""The parameters that layers create for their operands."""

import pytest
from msgspec import to_builtins
from support.op_use import Use

LAYERS = """\
fc(float32[batch, 64]) {size: 10}
  w float32[64, 10] xavier_uniform
  b float32[10] zeros

fc(float64[batch, 64]) {size: 10, bias: false, transpose_w: true}
  w float64[10, 64] xavier_uniform

embedding(int32[batch]) {size: [9, 4]}
  table float32[9, 4] uniform

conv2d(float32[batch, 8, 8, 4]) {filters: 6, kernel_size: 3}
  w float32[3, 3, 4, 6] xavier_uniform
  b float32[6] zeros

conv2d(float32[batch, 8, 8, 4]) {filters: 6, kernel_size: [1, 5], groups: 2, bias: false}
  w float32[1, 5, 2, 6] xavier_uniform

conv1d(float64[batch, 9, 4]) {filters: 6, kernel_size: 3}
  w float64[3, 4, 6] xavier_uniform
  b float64[6] zeros

depthwise_conv2d(float32[batch, 8, 8, 4]) {kernel_size: 3, multiplier: 2}
  w float32[3, 3, 4, 2] xavier_uniform
  b float32[8] zeros

conv2d_transpose(float32[batch, 8, 8, 4]) {filters: 6, kernel_size: 2, groups: 2}
  w float32[2, 2, 3, 4] xavier_uniform
  b float32[6] zeros

simple_rnn(float32[batch, 4, 3]) {size: 2}
  w_input float32[3, 2] xavier_uniform
  w_recurrent float32[2, 2] orthogonal
  b float32[2] zeros

gru(float32[batch, 4, 3], int32[batch]) {size: 2}
  w_input float32[3, 6] xavier_uniform
  w_recurrent float32[2, 6] orthogonal
  b float32[6] zeros
  b_recurrent float32[2] zeros

lstm(float32[batch, 4, 3], float32[batch, 2], float32[batch, 2]) {size: 2, bias: false}
  w_input float32[3, 8] xavier_uniform
  w_recurrent float32[2, 8] orthogonal

multi_head_attention(float32[batch, 3, 4]) {heads: 2}
  w_query float32[4, 4] xavier_uniform
  b_query float32[4] zeros
  w_key float32[4, 4] xavier_uniform
  b_key float32[4] zeros
  w_value float32[4, 4] xavier_uniform
  b_value float32[4] zeros
  w_output float32[4, 4] xavier_uniform
  b_output float32[4] zeros

multi_head_attention(float32[batch, 3, 4], float32[batch, 5, 3], int32[batch]) \
{heads: 2, size: 6, bias: false}
  w_query float32[4, 6] xavier_uniform
  w_key float32[3, 6] xavier_uniform
  w_value float32[3, 6] xavier_uniform
  w_output float32[6, 4] xavier_uniform

position_embedding(float64[batch, 9, 4])
  table float64[9, 4] {'normal': 0.02}

layer_norm(float32[batch, 3, 4])
  scale float32[4] ones
  bias float32[4] zeros

layer_norm(float32[batch, 3, 4]) {bias: false}
  scale float32[4] ones

layer_norm(float32[batch, 3, 4]) {affine: false}

layer_norm(float32[batch, 3, 4]) {axis: 1, bias: false}
  scale float32[3, 4] ones

rms_norm(float32[batch, 3, 4])
  scale float32[4] ones

rms_norm(float32[batch, 3, 4]) {affine: false}

group_norm(float32[batch, 3, 4]) {groups: 2}
  scale float32[4] ones
  bias float32[4] zeros
"""


@pytest.mark.parametrize(
    "case", LAYERS.strip().split("\n\n"), ids=lambda case: case.partition("\n")[0]
)
def test_a_layer_creates_its_parameters(case):
    line, *expected = case.split("\n")
    created = Use.parse(line).created
    assert [
        f"  {p.operand} {p.type} {to_builtins(p.init)}" for p in created
    ] == expected
