"""Names of other systems for keys and update modes of a spec."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

_KEYS: Final = {
    "op": "type optimizer rule algorithm kind layer",
    "learning_rate": "lr step_size alpha",
    "b1": "beta1 beta_1",
    "b2": "beta2 beta_2",
    "source": "file path filename dataset",
    "size": "units features out_features num_units hidden hidden_size dim width",
    "activation": "act nonlinearity",
    "update": "mode sync_mode update_mode strategy consistency a_sync sync async geo"
    " half_async every max_staleness staleness backup",
    "every": "steps interval period frequency k_steps h tau push_every sync_every"
    " local_steps inner_steps sync_steps sync_interval sync_period push_nums"
    " geo_need_push_nums geo_sgd_need_push_nums communication_interval",
    "max_staleness": "staleness stale bound staleness_bound slack tau max_delay delay",
    "max_merge": "max_merge_var_num merge_steps",
    "queue": "send_queue_size queue_size",
    "staleness_scale": "staleness_aware scale_by_staleness",
    "compensate": "dc_asgd lambda lam variance_lambda delay_compensation",
    "backup": "backup_workers stragglers drop",
    "outer": "outer_optimizer server_optimizer global_optimizer",
    "scale": "average aggregation combine reduction",
}
"""Other names of each key. A name counts where its key is valid and the name is not."""

_LOCAL: Final = "{geo: {every: 100, outer: {op: sgd, learning_rate: 1.0}}}"
_DILOCO: Final = (
    "{geo: {every: 100, outer: {op: nesterov, learning_rate: 0.7, momentum: 0.9}}}"
)
_MODES: Final = {
    "sync": "synchronous sync_sgd bsp",
    "async": "asynchronous async_sgd a_sync hogwild downpour asp",
    "half_async": "half_async halfasync",
    "{async: {max_staleness: 4}}": "ssp bounded bounded_staleness bounded_async stale",
    "{sync: {backup: 1}}": "backup backup_workers stragglers",
    "{geo: {every: 100}}": "geo geo_sgd geo_async geosgd",
    _LOCAL: "local_sgd localsgd post_local_sgd fedavg model_averaging",
    _DILOCO: "diloco",
}
"""Other names of each value of `update`."""


def meant_key(name: str, valid: Collection[str]) -> str | None:
    """Return the valid key that other systems call `name`, or None.

    >>> meant_key("k_steps", ["every", "scale"])
    'every'
    """
    return next((key for key in _meanings(_KEYS, name) if key in valid), None)


def meant_mode(name: str) -> str | None:
    """Return the value of `update` that other systems call `name`, or None."""
    return next(_meanings(_MODES, name), None)


def _meanings(table: dict[str, str], name: str) -> Iterator[str]:
    plain = name.casefold().replace("-", "_")
    return (meaning for meaning, names in table.items() if plain in names.split())
