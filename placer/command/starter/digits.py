"""A first spec for the handwritten digits of scikit-learn."""

from __future__ import annotations

from shlex import quote

from placer.command.starter.text import comment_text

_TEXT = """\
# Classify images of handwritten digits, 8 x 8 pixels each. The data ships with
# scikit-learn. Written by `placer init`; change it as you like.
#
#     placer train {spec}
#
# For your own table: placer init TABLE.csv

# Two worker processes on this machine each compute half of the rows of a batch. A parameter
# server (ps) stores and updates the parameters. Other counts change only speed and memory,
# not the result.
nodes:
  worker: {{count: 2}}
  ps: {{count: 1}}

# The values that the data source provides for each row. The first dimension is the batch.
inputs:
  image: float32[batch, 64]
  label: int32[batch]

# Rows are permuted once with a fixed seed. The first four fifths are for training, the last
# fifth is for the evaluation after each epoch.
data:
  train:
    source: "sklearn:digits"
    split: train
    batch: 64  # rows of a step, for both workers together
    shuffle: true  # a new order in each epoch
    seed: 1
  eval: {{source: "sklearn:digits", split: test}}

graph:
  # These ops run on the CPU of every worker. Each worker computes its own rows.
  - place: /node:worker/cpu
    ops:
      - {{name: h1, op: fc, in: image, size: 128, activation: relu}}
      - {{name: logits, op: fc, in: h1, size: 10}}

      # One logit for each of the 10 digits. softmax turns the logits into probabilities; the
      # most probable digit is the prediction.
      - {{name: loss, op: softmax_cross_entropy, in: [logits, label]}}
      - {{name: accuracy, op: accuracy, in: [logits, label]}}
      - {{name: probability, op: softmax, in: logits}}

train:
  minimize: loss
  epochs: 15  # passes over the training rows
  metrics: [loss, accuracy]
  # At this place, the server sums the gradients of the workers. With /node:worker/cpu, the
  # workers would sum them without a server (all-reduce).
  optimizer: {{op: adam, learning_rate: 0.005, place: /node:ps/cpu}}

# The outputs of `placer predict` and `placer export`, which need no labels.
predict: {{outputs: [probability]}}
"""


def digits_spec(out: str) -> str:
    """Return the text of a small spec; `out` is the path of its file."""
    return _TEXT.format(spec=comment_text(quote(out)))
