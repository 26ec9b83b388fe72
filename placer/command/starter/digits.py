"""A first spec for data that scikit-learn bundles."""

from __future__ import annotations

from shlex import quote

from placer.command.starter.text import comment_text

_TEXT = """\
# Classify images of handwritten digits, 8 x 8 pixels each. The data ships with
# scikit-learn. Written by `placer init`; change it as you like.
#
#     placer train {spec}
#
# For a table of your own: placer init TABLE.csv

# Two processes of this machine compute, each with half of the rows of a batch, and a
# parameter server (ps) keeps and updates the parameters. With other counts, the result is
# the same; only speed and memory change.
nodes:
  worker: {{count: 2}}
  ps: {{count: 1}}

# What a source provides for each row. The first dimension is the batch.
inputs:
  image: float32[batch, 64]
  label: int32[batch]

# Rows are permuted once with a fixed seed: the first four fifths train, the last fifth is
# for evaluation after each epoch.
data:
  train:
    source: "sklearn:digits"
    split: train
    batch: 64  # rows of a step, of both workers together
    shuffle: true  # another order in each epoch
    seed: 1
  eval: {{source: "sklearn:digits", split: test}}

graph:
  # The place of the ops inside: the CPU of every worker. Each computes its rows.
  - place: /node:worker/cpu
    ops:
      - {{name: h1, op: fc, in: image, size: 128, activation: relu}}
      - {{name: logits, op: fc, in: h1, size: 10}}

      # One logit for each of the 10 digits; softmax makes probabilities of them, and the
      # largest is the prediction.
      - {{name: loss, op: softmax_cross_entropy, in: [logits, label]}}
      - {{name: accuracy, op: accuracy, in: [logits, label]}}
      - {{name: probability, op: softmax, in: logits}}

train:
  minimize: loss
  epochs: 15  # passes over the training rows
  metrics: [loss, accuracy]
  # At this place, the server sums the gradients of the workers. At /node:worker/cpu, the
  # workers would exchange gradients (all-reduce) instead.
  optimizer: {{op: adam, learning_rate: 0.005, place: /node:ps/cpu}}

# What `placer predict` and `placer export` compute; labels are not needed.
predict: {{outputs: [probability]}}
"""


def digits_spec(out: str) -> str:
    """Return the text of a small spec; `out` is the path of its file."""
    return _TEXT.format(spec=comment_text(quote(out)))
