"""User code: a BERT classifier of Keras Hub, with dropout."""

import keras_hub
import optax

MODEL = keras_hub.models.BertTextClassifier(
    keras_hub.models.BertBackbone(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.1,
        max_sequence_length=8,
        name="backbone",
    ),
    num_classes=3,
    name="bert",
)


def make():
    return MODEL.trainable_variables


def state():
    return MODEL.non_trainable_variables


def losses(variables, state, tokens, mask, label, training):
    inputs = {"token_ids": tokens, "padding_mask": mask, "segment_ids": 0 * tokens}
    logits, state = MODEL.stateless_call(variables, state, inputs, training=training)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label), state
