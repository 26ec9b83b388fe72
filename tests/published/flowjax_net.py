"""User code: a masked autoregressive flow of flowjax."""

import flowjax.distributions
import flowjax.flows
import jax
from paramax import unwrap


def make():
    return flowjax.flows.masked_autoregressive_flow(
        jax.random.key(0),
        base_dist=flowjax.distributions.StandardNormal((4,)),
        flow_layers=2,
        nn_width=8,
    )


def losses(flow, x):
    return -unwrap(flow).log_prob(x)
