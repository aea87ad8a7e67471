"""`kubectl`, as far as the pages use it, against the cluster of the page.

Every verb that the pages show does what it does in a cluster; what it prints is only as near to the original
as the pages show it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from ..devplugin.daemon.rig import until
from . import debugpod
from .cluster import Cluster, Daemon, Object, RefusedError
from .programs import DAEMONS, launch
from .shown import filled, table
from .words import Words, parse

_FLAGS = {
    "-n": "namespace", "-o": "output", "-l": "labels", "--field-selector": "fields", "-f": "file",
    "--for": "for", "--timeout": "timeout", "--image": "image", "--profile": "profile", "--from-file": "from",
}  # fmt: skip
_SWITCHES = {"-A", "--overwrite", "--ignore-daemonsets", "--delete-emptydir-data", "--force"}
_KINDS = {
    "node": "nodes", "nodes": "nodes", "pod": "pods", "pods": "pods", "po": "pods", "events": "events",
    "event": "events", "namespace": "namespaces", "ns": "namespaces", "configmap": "configmaps",
    "cm": "configmaps", "ds": "daemonsets", "daemonset": "daemonsets",
}  # fmt: skip
_ONE = {"nodes": "node", "pods": "pod", "events": "event", "namespaces": "namespace"}


def run(cluster: Cluster, argv: list[str], cwd: Path, stdin: str) -> str:
    """What it prints; raises RefusedError or the API server's ApiError."""
    words = parse(argv, _FLAGS, _SWITCHES)
    verb = words.plain.pop(0)
    handler = _VERBS.get(verb)
    assert handler is not None, f"kubectl {verb}: not in this stand-in"
    return handler(cluster, words, cwd, stdin)


def _namespace(words: Words) -> str:
    return words.one("namespace", "default")


def _target(words: Words) -> tuple[str, list[str]]:
    """Resource and names, of ``node NAME``, ``ds/NAME`` and the like."""
    first, *names = words.plain
    kind, slash, name = first.partition("/")
    return _KINDS.get(kind, kind), [name, *names] if slash else names


def _found(cluster: Cluster, words: Words, resource: str, names: list[str]) -> list[Object]:
    everywhere = words.has("-A")
    if resource == "configmaps":
        return [_config_map(cluster, _namespace(words), name) for name in names]
    if names:
        return [cluster.store.get(resource, name, _namespace(words)) for name in names]
    return cluster.store.list(
        resource,
        None if everywhere or resource in ("nodes", "namespaces") else _namespace(words),
        fields=words.one("fields"),
        labels=words.one("labels"),
    )


def _config_map(cluster: Cluster, namespace: str, name: str) -> Object:
    data = cluster.config_maps.get((namespace, name))
    if data is None:
        raise RefusedError(f'from server (NotFound): configmaps "{name}" not found')
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _get(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    resource, names = _target(words)
    found = _found(cluster, words, resource, names)
    how = words.one("output")
    if how.startswith("jsonpath="):
        top = found[0] if names else {"items": found}
        return "".join(filled(how.removeprefix("jsonpath="), top))
    if how == "name":
        return "".join(f"{_ONE[resource]}/{one['metadata']['name']}\n" for one in found)
    if how in ("json", "yaml"):
        top = found[0] if names else {"kind": "List", "items": found}
        return json.dumps(top, indent=2) + "\n" if how == "json" else yaml.safe_dump(top)
    assert how in ("", "wide"), how
    return table(resource, found, everywhere=words.has("-A"))


def _mark(cluster: Cluster, words: Words, cwd: Path, stdin: str, field: str) -> str:
    resource, rest = _target(words)
    names = [word for word in rest if "=" not in word and not word.endswith("-")]
    changes: dict[str, str | None] = {}
    for word in rest[len(names) :]:
        key, equals, value = word.partition("=")
        changes[key if equals else word.removesuffix("-")] = value if equals else None
    printed = ""
    for name in names:
        have = cluster.store.get(resource, name, _namespace(words))["metadata"].get(field) or {}
        clash = [key for key, value in changes.items() if value and have.get(key, value) != value]
        if clash and not words.has("--overwrite"):
            raise RefusedError(f"{clash[0]} already has a value, and --overwrite is false")
        cluster.store.patch(resource, name, {"metadata": {field: changes}}, _namespace(words))
        said = "annotated" if field == "annotations" else "labeled"
        printed += f"{_ONE[resource]}/{name} {said}\n"
    if field == "labels" and resource == "nodes":
        cluster.relabelled()
    return printed


def _cordon(cluster: Cluster, words: Words, cwd: Path, stdin: str, on: bool) -> str:
    (name,) = words.plain
    cluster.store.patch("nodes", name, {"spec": {"unschedulable": True if on else None}})
    return f"node/{name} {'cordoned' if on else 'uncordoned'}\n"


def _drain(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    (name,) = words.plain
    printed = _cordon(cluster, words, cwd, stdin, True)
    for one in cluster.store.list("pods", fields=f"spec.nodeName={name}"):
        meta = one["metadata"]
        if any(owner["kind"] == "DaemonSet" for owner in meta.get("ownerReferences", ())):
            if not words.has("--ignore-daemonsets"):
                raise RefusedError(f"cannot delete DaemonSet-managed Pods: {meta['name']}")
            continue
        if not meta.get("ownerReferences") and not words.has("--force"):
            raise RefusedError(f"cannot delete Pods that declare no controller (use --force): {meta['name']}")
        _gone(cluster, meta["name"], meta["namespace"])
        printed += f"pod/{meta['name']} evicted\n"
    return f"{printed}node/{name} drained\n"


def _gone(cluster: Cluster, name: str, namespace: str) -> None:
    cluster.store.delete("pods", name, namespace, grace_seconds=None)
    until(lambda: all(p["metadata"]["name"] != name for p in cluster.store.list("pods", namespace)), 20)


def _delete(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    if words.one("file"):
        found = list(yaml.safe_load_all(_text(words.one("file"), cwd, stdin)))
        for one in found:
            if one["kind"] == "Pod":
                _gone(cluster, one["metadata"]["name"], one["metadata"].get("namespace", "default"))
            else:
                cluster.remove(one)
        return "".join(f'{one["kind"].lower()} "{one["metadata"]["name"]}" deleted\n' for one in found)
    resource, names = _target(words)
    if resource == "daemonsets":
        for name in names:
            cluster.remove({"kind": "DaemonSet", "metadata": {"name": name, "namespace": _namespace(words)}})
        return "".join(f'daemonset.apps "{name}" deleted\n' for name in names)
    assert resource == "pods", resource
    printed = ""
    for one in _found(cluster, words, resource, names):
        name, namespace = one["metadata"]["name"], one["metadata"]["namespace"]
        mine = next((d for d in cluster.daemons if d.name == name), None)
        if mine is not None:
            cluster._leave(mine)
            cluster._start(mine.owner, mine.node)
        else:
            _gone(cluster, name, namespace)
        printed += f'pod "{name}" deleted\n'
    return printed


def _create(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    resource, (name,) = _target(words)
    if resource == "configmaps":
        data = {}
        for given in words.all("from"):
            key, equals, file = given.partition("=")
            data[key if equals else Path(given).name] = (cwd / (file or given)).read_text()
        cluster.config_maps[_namespace(words), name] = data
        return f"configmap/{name} created\n"
    assert resource == "namespaces", resource
    cluster.store.create("namespaces", {"metadata": {"name": name}})
    return f"namespace/{name} created\n"


def _apply(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    printed = ""
    for one in yaml.safe_load_all(_text(words.one("file"), cwd, stdin)):
        cluster.apply(one)
        printed += f"{one['kind'].lower()}/{one['metadata']['name']} created\n"
    return printed


def _text(name: str, cwd: Path, stdin: str) -> str:
    return stdin if name == "-" else (cwd / name).read_text()


def _daemon(cluster: Cluster, words: Words) -> list[Daemon]:
    """Of ``ds/NAME``, ``pod/NAME`` or a pod's bare name."""
    kind, slash, name = words.plain[0].partition("/")
    if slash and _KINDS.get(kind) == "daemonsets":
        found = cluster.daemons_of(_namespace(words), name)
    else:
        found = [one for one in cluster.daemons if one.name == (name if slash else kind)]
    if not found:
        raise RefusedError(f"from server (NotFound): {words.plain[0]} not found")
    return found


def _logs(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    process = _daemon(cluster, words)[0].process
    return process.log.read_text() if process is not None else ""


def _rollout(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    what = words.plain.pop(0)
    kind, _, name = words.plain[0].partition("/")
    assert _KINDS[kind] == "daemonsets", kind
    key = (_namespace(words), name)
    if key not in cluster.daemon_sets:
        raise RefusedError(f'from server (NotFound): daemonsets.apps "{name}" not found')
    if what == "restart":
        cluster.roll(key)
        return f"daemonset.apps/{name} restarted\n"
    assert what == "status", what
    until(lambda: all(cluster.ready(one) for one in cluster.daemons_of(*key)), 120)
    return f'daemon set "{name}" successfully rolled out\n'


def _exec(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    kind, slash, name = words.plain[0].partition("/")
    pod = name if slash else kind
    if pod.startswith(debugpod.NAME):
        return debugpod.run(cluster, pod, words.after)
    one = _daemon(cluster, words)[0]
    inner = one.owner["spec"]["template"]["spec"]["containers"][0]
    env = {each["name"]: each.get("value", one.node.name) for each in inner.get("env", ())}
    argv = list(words.after)
    assert argv[0] in DAEMONS, argv
    given = {**debugpod.environment(cluster), **env}
    done = subprocess.run(
        [*launch(argv[0]), *argv[1:], *one.node.flags], env=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RefusedError(f"{done.stdout}{done.stderr}command terminated with exit code {done.returncode}")
    return done.stdout


def _debug(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    kind, _, node = words.plain[0].partition("/")
    assert _KINDS[kind] == "nodes", kind
    return debugpod.create(cluster, node, words.one("image"))


def _wait(cluster: Cluster, words: Words, cwd: Path, stdin: str) -> str:
    resource, (name,) = _target(words)
    wanted = words.one("for")
    seconds = 60.0 if not words.one("timeout") else float(words.one("timeout").rstrip("s"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one = cluster.store.get(resource, name, _namespace(words))
        if wanted == "condition=Ready" and one["status"].get("phase") == "Running":
            return f"{_ONE[resource]}/{name} condition met\n"
        time.sleep(0.05)
    raise RefusedError(f"timed out waiting for the condition on {resource}/{name}")


_VERBS: dict[str, Callable[[Cluster, Words, Path, str], str]] = {
    "get": _get,
    "annotate": lambda c, w, d, s: _mark(c, w, d, s, "annotations"),
    "label": lambda c, w, d, s: _mark(c, w, d, s, "labels"),
    "cordon": lambda c, w, d, s: _cordon(c, w, d, s, True),
    "uncordon": lambda c, w, d, s: _cordon(c, w, d, s, False),
    "drain": _drain,
    "delete": _delete,
    "create": _create,
    "apply": _apply,
    "logs": _logs,
    "rollout": _rollout,
    "exec": _exec,
    "debug": _debug,
    "cp": lambda c, w, d, s: debugpod.copy(c, w.plain, d),
    "wait": _wait,
}
