"""The text of a first spec, with gaps for what depends on its table."""

import re

TEMPLATE = """\
% always
# Predict the column $label_column of $file: $rows rows, $column_count. Written by
# `placer init`; change it as you like.
#
#     placer train $spec
% if is_part
#
# Only the first $read rows were read to write this spec. If a later row has another
# class, or a word in a column of numbers, the run ends with its line and what to write.
% if has_no_header
#
# The first row of the file has numbers, so the columns have no names: `header` below gives
# them some. Write better ones there, and change them below it. If the first row is the
# header, delete `header`.
% if left_out
#
# Columns that are left out:
$left_out
% always

# Two processes of this machine compute, each with half of the rows of a batch, and a
# parameter server (ps) keeps and updates the parameters. With other counts, the result is
# the same; only speed and memory change.
nodes:
  worker: {count: 2}
  ps: {count: 1}

# What a source provides for each row. The first dimension is the batch.
inputs:
  $inputs

# Rows are permuted once with a fixed seed: the first four fifths train, the last fifth is
# for evaluation after each epoch. To evaluate on another file, change the source of eval
# and leave out both splits.
data:
  train:
    source: $source
    split: train
    batch: $batch  # rows of a step, of both workers together
    shuffle: true  # another order in each epoch
    seed: 1
% if features
    # Features are computed from columns. `standardize` gives numbers mean 0 and variance 1:
    # with very different scales, training is slow.
% if has_log1p
    # `log1p`, ln(1 + x), is for numbers of which a few are very large.
% if has_buckets
    # `buckets` are ranges, numbered from 0; a missing number has one of its own.
% if has_days
    # `days` are those since 1970-01-01.
% if has_hash
    # `hash` makes a number below `bins` of an id; a few ids share one.
% if features
    features:
      $features
% if columns
    columns:  # an input that is not listed reads the column of its name
      $columns
% if has_options
    $kind:
      $form
% if markers
      # Words in columns of numbers that count as a missing number, as NA, n/a, - and other
      # usual ones do.
      missing_values:
        $markers
% if filled
      # The number to use for an empty cell: the median of its column.
      missing:
        $filled
% if vocabulary
      # The number of a word is its position in the list, from 0.
      vocabulary:
        $vocabulary
% if unknown
      # The number of every other cell: a missing, a rare or a new word.
      unknown:
        $unknown
% always
  eval: {source: $source_in_braces, split: test}

graph:
  # The place of the ops inside: the CPU of every worker. Each computes its rows.
  - place: /node:worker/cpu
    ops:
% if has_numbers
      # A value far from all others counts as 10 standard deviations.
      - {name: clipped, op: clip, in: numbers, min: -10, max: 10}
% if has_both

% if embeddings
      # An embedding is a table with a trained vector for each number, such as that of a
      # word; size is [numbers, length of a vector].
      $embeddings
% always

      $concat
      - {name: h1, op: fc, in: $first, size: $width1, activation: relu}
      # In training, dropout leaves out some of these numbers, others in each step: so the
      # model does not learn the rows by heart.
      - {name: dropped1, op: dropout, in: h1, rate: $dropout}
      - {name: h2, op: fc, in: dropped1, size: $width2, activation: relu}
      - {name: dropped2, op: dropout, in: h2, rate: $dropout}
% if is_quantity
      - {name: out, op: fc, in: dropped2, size: 1}

      # $label is $mean on average, with a standard deviation of $deviation. The network
      # predicts it as a number with mean 0 and variance 1, and `prediction` has the scale
      # of the file again.
      - {name: scaled_prediction, op: reshape, in: out, shape: [batch]}
      - {name: scaled_label, op: scale, in: $label, $to_scaled}
      - {name: prediction, op: scale, in: scaled_prediction, $from_scaled}
      - name: loss
        op: mean_squared_error
        in: [scaled_prediction, scaled_label]

      # The root mean squared error, in the unit of the file. A model that always predicts
      # the average has $deviation.
      - {name: rmse, op: root_mean_squared_error, in: [prediction, $label]}
% if has_two_classes
      - {name: out, op: fc, in: dropped2, size: 1}

      # The logit of $class1: its sigmoid is the probability, and above 0 the prediction is
      # $class1, not $class0. The loss is the log loss.
      - {name: logit, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: sigmoid_cross_entropy, in: [logit, $label]}
      - {name: auc, op: auc, in: [logit, $label], logits: true}

      # accuracy compares the logits of all classes; here that of the first class is the
      # negative. A model that always predicts $frequent has accuracy $share.
      - {name: opposite, op: negative, in: out}
      - {name: both, op: concat, in: [opposite, out], axis: 1}
      - {name: accuracy, op: accuracy, in: [both, $label]}
      - {name: probability, op: sigmoid, in: logit}
% if has_more_classes
      - {name: logits, op: fc, in: dropped2, size: $classes}

      # One logit for each of the $classes classes; softmax makes probabilities of them, and
      # the largest is the prediction. A model that always predicts $frequent has accuracy
      # $share.
      - {name: loss, op: softmax_cross_entropy, in: [logits, $label]}
      - {name: accuracy, op: accuracy, in: [logits, $label]}
      - {name: probability, op: softmax, in: logits}
% always

train:
  minimize: loss
  metrics: [$metrics]
  # At most $epochs passes over the training rows. The run ends before if the loss of
  # 8 evaluations in a row is not the best one. The parameters of the best
  # evaluation are in the folder of the run, in checkpoints/best.
  epochs: $epochs
  early_stopping: {metric: loss, mode: min, patience: 8}
  checkpoint: {every: 10m, best: {metric: loss, mode: min}}
  # At this place, the server sums the gradients of the workers. At /node:worker/cpu, the
  # workers would exchange gradients (all-reduce) instead. weight_decay keeps the weights
  # small.
  optimizer:
% if sparse
    $sparse
    - op: adamw
      learning_rate: $learning_rate
      weight_decay: $weight_decay
      place: /node:ps/cpu
% if is_dense
    op: adamw
    learning_rate: $learning_rate
    weight_decay: $weight_decay
    place: /node:ps/cpu
% always

# What `placer predict` and `placer export` compute; labels are not needed.
predict: {outputs: [$output]}
"""

OWN_NAMES = {*re.findall(r"name: (\w+)", TEMPLATE)}
OWN_NAMES |= {"numbers", "features", "minimize", "batch"}
"""The names in the spec that no input may have, most of them of ops."""
