"""The page about Kubernetes has all options, and its NetworkPolicy fits the pods."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import yaml

from placer.launcher.engines import kubernetes
from placer.launcher.engines.kubernetes.manifests import labels

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.md").read_text()


def test_the_page_lists_all_options() -> None:
    table = PAGE.partition("| option | meaning |")[2].partition("\n\n")[0]
    firsts = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall("`([a-z-]+)`", " ".join(firsts))
    assert sorted(named) == sorted(option.name for option in kubernetes.OPTIONS)


def test_the_network_policy_is_valid_and_chooses_the_pods() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    policy = yaml.safe_load(text)
    assert kubernetes_validate.validate(policy, "1.37", strict=True)
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= labels("digits").items()
    (port,) = policy["spec"]["ingress"][0]["ports"]
    (default,) = (each.default for each in kubernetes.OPTIONS if each.name == "port")
    assert port["port"] == default
