"""The node labeller: keeps the ``amd.com/gpu.*`` labels of its own node true.

A DaemonSet of its own beside the plugin's (guide-amd.md, optional components). Which labels there are is
`devplugin.amd.labels`; here is the program around it. It looks at the node every 30 s; when what it sees
has changed (a partition switch, a GPU gone, a driver that came late), at start, and from time to time, it
reads the node's labels and patches what differs, nothing else. Restarting it changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TextIO

from devplugin.amd.labelfacts import LabelFacts, read_label_facts
from devplugin.amd.labels import GENERATORS, changes, labels
from devplugin.host import Host
from devplugin.settings import (
    GoParser,
    SettingsError,
    add_flag,
    add_log_flags,
    add_node_flags,
    go_bool,
    go_int,
)
from devplugin.stdout import printed, told

log = logging.getLogger(__name__)

POLL = 30
"""Seconds between looks at the node, as often as the plugin rediscovers (decision 27)."""

RECONCILE_EVERY = 10
"""Looks after which the labels are read again although nothing changed: others may have edited them."""

FIRST_RETRY = 0.5


class LabelApi(Protocol):
    """What of the API server is needed; every verb may raise `devplugin.kube.KubeError`."""

    async def node_labels(self, name: str) -> Mapping[str, str]:
        """A node's labels."""
        ...

    async def patch_node_labels(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels; None removes one."""
        ...


class Labeller:
    """One node's labels.

    Args:
        api: the API server.
        node: whose labels.
        generators: which properties are told.
        look: what the node has now; blocking, runs in a thread.
    """

    def __init__(
        self, api: LabelApi, node: str, generators: Collection[str], look: Callable[[], LabelFacts]
    ) -> None:
        self._api = api
        self._node = node
        self._generators = generators
        self._look = look
        self._held: dict[str, str] | None = None
        self._since = 0
        self._noted: tuple[str, ...] = ()

    async def pass_once(self) -> bool:
        """Look, and bring the node's labels in line where needed; whether anything was patched.

        Raises:
            KubeError: not done; the next pass begins anew.
        """
        facts = await asyncio.to_thread(self._look)
        for note in facts.notes:
            if note not in self._noted:
                log.warning("%s", note)
        self._noted = facts.notes
        want = labels(facts, self._generators)
        self._since += 1
        if want == self._held and self._since < RECONCILE_EVERY:
            return False
        self._held = None  # a pass that fails below must be made again
        patch = changes(await self._api.node_labels(self._node), want)
        if patch:
            await self._api.patch_node_labels(self._node, patch)
            log.info(
                "node %s: %s",
                self._node,
                ", ".join(f"{k}={v}" if v else f"{k} removed" for k, v in patch.items()),
            )
        self._held, self._since = want, 0
        return bool(patch)

    async def run(self, poll: float = POLL) -> None:
        """For ever; what fails is tried again, more slowly each time up to `poll`."""
        from devplugin.kube import KubeError

        first = min(FIRST_RETRY, poll)
        delay, said = first, ""
        while True:
            try:
                await self.pass_once()
            except KubeError as error:
                log.log(logging.DEBUG if str(error) == said else logging.WARNING, "%s; trying again", error)
                said = str(error)
            except Exception:
                log.exception("looking at the node failed; trying again")
            else:
                delay, said = first, ""
                await asyncio.sleep(poll)
                continue
            await asyncio.sleep(delay)
            delay = min(delay * 2, poll)


def main(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    find: Callable[[argparse.Namespace], Host],
    out: TextIO | None = None,
) -> int:
    """Run the labeller; the exit status. A wrong flag leaves by SystemExit(2).

    Args:
        argv: the words after the program's name.
        env: DS_NODE_NAME and KUBECONFIG.
        find: the node that `-root` or `-simulate` names; may raise SettingsError.
        out: where `-dry_run` prints; None is standard output.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    chosen = [name for name in GENERATORS if getattr(args, name)]
    node = env.get("DS_NODE_NAME", "")
    try:
        if args.poll < 1:
            raise SettingsError(f"-poll={args.poll}: must be 1 or more seconds")
        if not node and not args.dry_run:
            raise SettingsError(
                "DS_NODE_NAME is not set: which node is to be labelled? (-dry_run needs none)"
            )
        host = find(args)
    except SettingsError as error:
        told(f"{parser.prog}: {error}")
        return error.exit_code
    if not args.dry_run:
        return _serve(host, node, chosen, args, env)
    facts = read_label_facts(host)
    for note in facts.notes:
        told(f"{parser.prog}: warning: {note}")
    return printed(json.dumps(labels(facts, chosen), indent=2), parser.prog, out)


def _parser() -> GoParser:
    parser = GoParser(
        "node-labeller",
        "Keeps labels of AMD GPUs on one Kubernetes node: amd.com/gpu.<property>.",
        "environment: DS_NODE_NAME (the node to label; needed except with -dry_run), KUBECONFIG (else\n"
        "~/.kube/config, else in-cluster).\n"
        "A partition of a GPU counts like a GPU. Firmware versions need ioctls on the device nodes and are\n"
        "not told; old labels of them are removed, like all of ours that do not hold.",
    )
    group = parser.add_argument_group("labels to keep; without any, all of ours are removed")
    for name, meaning in GENERATORS.items():
        add_flag(group, name, go_bool, False, meaning)
    where = add_node_flags(parser)
    add_flag(where, "poll", go_int, POLL, "seconds between looks at the node")
    add_flag(where, "dry_run", go_bool, False, "print the labels as one JSON object, and exit")
    add_log_flags(parser)
    return parser


def _serve(
    host: Host, node: str, chosen: Sequence[str], args: argparse.Namespace, env: Mapping[str, str]
) -> int:
    from devplugin.daemon.logs import Logs

    async def work(api: LabelApi) -> None:
        await Labeller(api, node, chosen, lambda: read_label_facts(host)).run(args.poll)

    with Logs(args.v) as logs:
        if args.firmware:
            log.warning("-firmware: firmware versions are not told (they need ioctls); everything else is")
        if not chosen:
            log.warning("no label is asked for: every label of ours will be removed; see -help")
        try:
            asyncio.run(_live(work, env.get("KUBECONFIG") or None, logs.release))
        except SettingsError as error:
            log.error("%s", error)
            return error.exit_code
    return 0


async def _live(
    work: Callable[[LabelApi], Coroutine[Any, Any, None]], kubeconfig: str | None, ready: Callable[[], None]
) -> None:
    """Until a signal comes."""
    from devplugin.kube import NoCluster, connect

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, stop.set)
    try:
        api = await asyncio.to_thread(connect, kubeconfig, component="amd-node-labeller")
    except NoCluster as error:
        raise SettingsError(str(error)) from error
    ready()
    working = asyncio.create_task(work(api))
    ending = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)
