"""The API of a cluster of processes over HTTP, for the kubectl of Kubernetes itself.

It has what kubectl asks for in jobs of placer, but for commands in pods.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.kubernetes.cluster import PLURALS, Cluster, Refused
from support.kubernetes.kubectl import is_selected
from support.kubernetes.pod import Object

_VERSIONS = {
    "v1": ("ConfigMap", "Secret", "Service", "Pod"),
    "batch/v1": ("Job",),
    "jobset.x-k8s.io/v1alpha2": ("JobSet",),
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "watch"]
_KINDS = {
    "pods": "Pod",
    **{plural.partition(".")[0]: kind for kind, plural in PLURALS.items()},
}
_REASONS = {403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}


@contextmanager
def api_of(cluster: Cluster) -> Iterator[str]:
    """Serve the API of a cluster; yield its address."""

    class Handler(_Handler):
        pass

    Handler.cluster = cluster
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        parts, query = self._request()
        match parts:
            case ["api"]:
                self._answer({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                self._answer({"kind": "APIGroupList", "groups": self._groups()})
            case ["api", "v1"]:
                self._answer(self._resources("v1"))
            case ["apis", group, version]:
                self._answer(self._resources(f"{group}/{version}"))
            case [*_, "namespaces", _, "pods", name, "log"]:
                self._log(name, query)
            case [*_, "namespaces", _, kind, name]:
                found = self._find(_KINDS[kind], name)
                self._answer(
                    *((found,) if found else (f'{kind} "{name}" not found', 404))
                )
            case [*_, "namespaces", _, kind]:
                self._list(_KINDS[kind], query)
            case _:
                self._answer("no such path", 404)

    def do_POST(self) -> None:
        parts, _ = self._request()
        if parts[-1] == "exec":
            self._answer("you may not run commands in pods", 403)
            return
        given = json.loads(self._body())
        assert _KINDS[parts[-1]] == given["kind"]
        try:
            made = self.cluster.create(given)
        except Refused as refused:
            self._answer(str(refused), 409)
        else:
            self._answer(made, 201)

    def do_DELETE(self) -> None:
        (*_, kind, name), _ = self._request()
        options = json.loads(self._body() or b"{}")
        found = self._find(_KINDS[kind], name)
        if found is None:
            self._answer(f'{kind} "{name}" not found', 404)
            return
        if kind == "pods":
            pod = self.cluster.pods[found["metadata"]["uid"]]
            self.cluster.delete_pod(pod, options.get("gracePeriodSeconds"))
        else:
            self.cluster.delete(_KINDS[kind], name)
        details = {"name": name, "uid": found["metadata"]["uid"]}
        self._answer({"kind": "Status", "status": "Success", "details": details})

    def _request(self) -> tuple[list[str], dict[str, str]]:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        return url.path.strip("/").split("/"), query

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, what: Object | str, code: int = 200) -> None:
        if isinstance(what, str):
            what = {
                "kind": "Status",
                "status": "Failure",
                "message": what,
                "reason": _REASONS[code],
                "code": code,
            }
        data = json.dumps({"apiVersion": "v1", **what}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _groups(self) -> list[Object]:
        found = []
        for each in _VERSIONS:
            name, slash, version = each.partition("/")
            if slash and (self.cluster.has_jobset or "jobset" not in name):
                here = {"groupVersion": each, "version": version}
                found.append(
                    {"name": name, "versions": [here], "preferredVersion": here}
                )
        return found

    def _resources(self, version: str) -> Object:
        plurals = {kind: name for name, kind in _KINDS.items()}
        resources: list[Any] = [
            {
                "name": plurals[kind],
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": _VERBS,
            }
            for kind in _VERSIONS[version]
        ]
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }

    def _all(self, kind: str) -> list[Object]:
        version = next(name for name, kinds in _VERSIONS.items() if kind in kinds)
        with self.cluster.lock:
            if kind == "Pod":
                found = [pod.object for pod in self.cluster.pods.values()]
            else:
                found = [o for k, o in self.cluster.objects.items() if k[0] == kind]
            copies = json.loads(json.dumps(found))
        for each in copies:
            each["apiVersion"] = version
            each["metadata"].update(namespace="default", resourceVersion="1")
        return list(copies)

    def _find(self, kind: str, name: str) -> Object | None:
        return next((o for o in self._all(kind) if o["metadata"]["name"] == name), None)

    def _list(self, kind: str, query: dict[str, str]) -> None:
        found = self._all(kind)
        if "labelSelector" in query:
            found = [o for o in found if is_selected(o, query["labelSelector"])]
        if "fieldSelector" in query:
            name = query["fieldSelector"].removeprefix("metadata.name=")
            found = [o for o in found if o["metadata"]["name"] == name]
        if "watch" in query:
            self._watch_end(kind, {each["metadata"]["name"] for each in found})
            return
        version = next(name for name, kinds in _VERSIONS.items() if kind in kinds)
        self._answer(
            {
                "apiVersion": version,
                "kind": f"{kind}List",
                "metadata": {"resourceVersion": "1"},
                "items": found,
            }
        )

    def _watch_end(self, kind: str, names: set[str]) -> None:
        """Answer a watch: tell the end of each object that is there."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        last = {o["metadata"]["name"]: o for o in self._all(kind)}
        while names:
            there = {o["metadata"]["name"] for o in self._all(kind)}
            for name in sorted(names - there):
                event = {"type": "DELETED", "object": last[name]}
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
            names &= there
            with self.cluster.lock:
                self.cluster.changed.wait(0.2)

    def _log(self, name: str, query: dict[str, str]) -> None:
        found = self._find("Pod", name)
        if found is None:
            self._answer(f'pods "{name}" not found', 404)
            return
        pod = self.cluster.pods[found["metadata"]["uid"]]
        assert query["follow"] == query["timestamps"] == "true"
        since, said = query.get("sinceTime", "")[:19], 0
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        while True:
            with pod.grew:
                while said == len(pod.lines) and not pod.has_ended:
                    pod.grew.wait(1)
                lines, is_last = pod.lines[said:], pod.has_ended
            said += len(lines)
            for time, text in lines:
                if time[:19] >= since:
                    self.wfile.write(f"{time} ".encode() + text + b"\n")
                    self.wfile.flush()
            if is_last and said == len(pod.lines):
                return
