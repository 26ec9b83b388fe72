"""The template of a first spec."""

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
# class, or a word in a column of numbers, the run ends with an error that names the line
# and the remedy.
% if has_no_header
#
# The first row of the file contains numbers, so the columns have no names. `header` below
# names them. Choose better names there, and use them in the rest of the file. If the first
# row is the header, delete `header`.
% if left_out
#
# Columns that the model does not use:
$left_out
% always

# Two worker processes on this machine each compute half of the rows of a batch. A parameter
# server (ps) stores and updates the parameters. Other counts change only speed and memory,
# not the result.
nodes:
  worker: {count: 2}
  ps: {count: 1}

# The values that the data source provides for each row. The first dimension is the batch.
inputs:
  $inputs

# Rows are permuted once with a fixed seed. The first four fifths are for training, the last
# fifth is for the evaluation after each epoch. To evaluate on another file, change the
# source of eval and delete both splits.
data:
  train:
    source: $source
    split: train
    batch: $batch  # rows of a step, for both workers together
    shuffle: true  # a new order in each epoch
    seed: 1
% if features
    # Features are computed from columns. `standardize` scales numbers to mean 0 and variance
    # 1, because training is slow with very different scales.
% if has_log1p
    # `log1p`, ln(1 + x), compresses columns with a few very large numbers.
% if has_buckets
    # `buckets` are ranges, numbered from 0; missing numbers have a separate bucket.
% if has_days
    # `days` counts the days since 1970-01-01.
% if has_hash
    # `hash` maps an id to a number below `bins`; a few ids share a number.
% if features
    features:
      $features
% if columns
    columns:  # an input that is not listed reads the column with its name
      $columns
% if has_options
    $kind:
      $form
% if markers
      # More words that mean a missing number, besides NA, n/a, - and other common ones.
      missing_values:
        $markers
% if filled
      # The number that replaces an empty cell: the median of its column.
      missing:
        $filled
% if vocabulary
      # The number of a word is its position in the list, from 0.
      vocabulary:
        $vocabulary
% if unknown
      # The number of all other cells: missing, rare or new words.
      unknown:
        $unknown
% always
  eval: {source: $source_in_braces, split: test}

graph:
  # These ops run on the CPU of every worker. Each worker computes its own rows.
  - place: /node:worker/cpu
    ops:
% if has_numbers
      # Outliers are limited to 10 standard deviations.
      - {name: clipped, op: clip, in: numbers, min: -10, max: 10}
% if has_both

% if embeddings
      # An embedding is a table with a trained vector for each number, such as the number of a
      # word. size is [count of numbers, length of a vector].
      $embeddings
% always

      $concat
      - {name: h1, op: fc, in: $first, size: $width1, activation: relu}
      # In training, dropout sets random outputs of the layer to zero. This keeps the model
      # from memorizing the rows.
      - {name: dropped1, op: dropout, in: h1, rate: $dropout}
      - {name: h2, op: fc, in: dropped1, size: $width2, activation: relu}
      - {name: dropped2, op: dropout, in: h2, rate: $dropout}
% if is_quantity
      - {name: out, op: fc, in: dropped2, size: 1}

      # $label has mean $mean and standard deviation $deviation. The network predicts it
      # scaled to mean 0 and variance 1. `prediction` has the scale of the file again.
      - {name: scaled_prediction, op: reshape, in: out, shape: [batch]}
      - {name: scaled_label, op: scale, in: $label, $to_scaled}
      - {name: prediction, op: scale, in: scaled_prediction, $from_scaled}
      - name: loss
        op: mean_squared_error
        in: [scaled_prediction, scaled_label]

      # The root mean squared error, in the unit of the file. It is $deviation for a model
      # that always predicts the mean.
      - {name: rmse, op: root_mean_squared_error, in: [prediction, $label]}
% if has_two_classes
      - {name: out, op: fc, in: dropped2, size: 1}

      # The logit of $class1. Its sigmoid is the probability of $class1. If the logit is above
      # 0, the prediction is $class1, otherwise $class0. The loss is the log loss.
      - {name: logit, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: sigmoid_cross_entropy, in: [logit, $label]}
      - {name: auc, op: auc, in: [logit, $label], logits: true}

      # accuracy needs the logits of both classes. The logit of the first class is the
      # negative of the other. A model that always predicts $frequent has accuracy $share.
      - {name: opposite, op: negative, in: out}
      - {name: both, op: concat, in: [opposite, out], axis: 1}
      - {name: accuracy, op: accuracy, in: [both, $label]}
      - {name: probability, op: sigmoid, in: logit}
% if has_more_classes
      - {name: logits, op: fc, in: dropped2, size: $classes}

      # One logit for each of the $classes classes. softmax turns the logits into
      # probabilities; the most probable class is the prediction. A model that always predicts
      # $frequent has accuracy $share.
      - {name: loss, op: softmax_cross_entropy, in: [logits, $label]}
      - {name: accuracy, op: accuracy, in: [logits, $label]}
      - {name: probability, op: softmax, in: logits}
% always

train:
  minimize: loss
  metrics: [$metrics]
  # At most $epochs passes over the training rows. The run ends early if the loss does not
  # improve in 8 evaluations in a row. The parameters of the best evaluation are saved in
  # the folder of the run, in checkpoints/best.
  epochs: $epochs
  early_stopping: {metric: loss, mode: min, patience: 8}
  checkpoint: {every: 10m, best: {metric: loss, mode: min}}
  # At this place, the server sums the gradients of the workers. With /node:worker/cpu, the
  # workers would sum them without a server (all-reduce). weight_decay keeps the weights
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

# The outputs of `placer predict` and `placer export`, which need no labels.
predict: {outputs: [$output]}
"""

OWN_NAMES = {*re.findall(r"name: (\w+)", TEMPLATE)}
OWN_NAMES |= {"numbers", "features", "minimize", "batch"}
"""Names that an input cannot have, because the spec uses them, mostly for ops."""
