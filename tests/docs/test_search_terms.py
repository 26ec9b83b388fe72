"""The search of the built site finds the page for the words that users know."""

from __future__ import annotations

import pytest
from support.browser import needs_browser, open_browser
from support.site import page_of

pytestmark = [needs_browser, pytest.mark.site]

TERMS = {
    "coming-from/jax": ["shard_map", "jax.jit", "mesh", "NamedSharding"],
    "coming-from/paddlepaddle": ["DistributedStrategy", "fleet", "paddle"],
    "coming-from/ray-train": ["Ray Tune", "hyperparameter sweep"],
    "coming-from/tensorflow": ["ParameterServerStrategy", "TF_CONFIG", "SavedModel"],
    "coming-from/torchrun": ["DDP", "FSDP", "DistributedDataParallel", "drop_last"],
    "help/faq": ["TPU", "colab"],
    "help/troubleshooting": [
        *("slow step", "bottleneck", "NaN", "out of memory", "OOM", "hang", "deadlock"),
    ],
    "how-to/checkpoints": [
        *("checkpoint", "resume", "continue a run", "save best model"),
        "fault tolerance",
    ],
    "how-to/comparing-runs": ["compare runs", "experiment tracking", "grid search"],
    "how-to/daily-clicks": ["evaluate a checkpoint on other rows"],
    "how-to/data": [
        *("tf.data", "DataLoader", "csv", "parquet", "missing values", "shuffle"),
        *("remainder", "vocabulary", "last batch"),
    ],
    "how-to/extending": ["custom op", "custom metric"],
    "how-to/features": ["feature hashing", "cross features"],
    "how-to/gpus": ["GPU", "CUDA"],
    "how-to/jax-models": [
        *("optax", "flax", "keras", "equinox", "haiku", "huggingface", "pretrained"),
        *("batchnorm", "dropout"),
    ],
    "how-to/kubernetes": ["kubernetes", "docker"],
    "how-to/machines": ["multi-node", "ssh", "firewall", "world size", "TLS"],
    "how-to/ray": ["ray", "ray cluster"],
    "how-to/serving": ["serve", "export", "inference", "stablehlo", "predict"],
    "how-to/slurm": ["slurm", "sbatch"],
    "how-to/streams": ["streaming", "online learning", "cron", "kafka"],
    "how-to/tracing": ["trace", "profile", "perfetto"],
    "how-to/training": [
        *("early stopping", "callbacks", "tensorboard", "metrics", "AUC"),
        *("validation", "model.eval"),
    ],
    "learn/asynchronous": ["async", "geo", "staleness", "DiLoCo", "backup workers"],
    "learn/choosing-a-mode": ["all-reduce", "reproducible", "straggler"],
    "learn/concepts": ["worker", "parameter server", "data parallel"],
    "learn/layouts": ["sharding", "tensor parallelism"],
    "learn/microbatches": ["microbatch", "gradient accumulation"],
    "learn/pipelines": ["pipeline", "1F1B"],
    "learn/places": ["place", "/node:worker"],
    "learn/sparse-tables": [
        *("embedding", "hash table", "rows per server"),
        "memory of each server sparse table",
    ],
    "reference/api/optimizer": ["Adam", "optimizer"],
    "reference/api/programs": ["placer.trace"],
    "reference/api/running": ["placer.launch"],
    "reference/command-line/launch": [
        *("--lost-after", "--checkpoint-every", "--emulate", "placer launch"),
    ],
    "reference/limits": ["windows"],
    "reference/ops/loss": ["cross entropy"],
    "reference/ops/normalization": ["batch normalization"],
    "reference/spec": [
        *("learning rate schedule", "mixed precision", "bfloat16", "seed"),
        *("gradient clipping", "weight decay", "freeze", "auc bytes"),
    ],
    "start/install": ["install", "linux"],
}
"""The terms for which a page must be among the first three results."""

FIRST_PAGES = """terms => terms.map(term =>
    Search._performSearch(term).slice(-3).reverse().map(([page]) => page))"""


def test_the_page_for_a_term_is_among_the_first_three() -> None:
    wanted = {term: page for page, terms in TERMS.items() for term in terms}
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(page_of("search"))
        found = page.evaluate(FIRST_PAGES, [*wanted])
    wrong = [
        f"{term}: {', '.join(pages)}; not {page}"
        for (term, page), pages in zip(wanted.items(), found, strict=True)
        if page not in pages
    ]
    assert not wrong, "\n".join(wrong)


def test_the_search_field_leads_to_results_with_any_of_the_words() -> None:
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(page_of("index"))
        page.keyboard.press("Control+k")
        page.keyboard.type("embedding nosuchword")
        page.keyboard.press("Enter")
        first = page.locator("ul.search > li a").first
        first.click()
        assert page.url == page_of("learn/sparse-tables")
