"""VRAM accounting through random histories, compared at every step with a naive recount in ints."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gpusim.dmem import Css
from gpusim.machine import Machine
from gpusim.process import DeviceRules, Process
from gpusim.testing.machines import BUSES, node

MIB = 1 << 20
VRAM, BASE, GTT = 64 * MIB, MIB, 32 * MIB
GPUS = tuple(f"0000:{bus}:00.0" for bus in BUSES[:2])
SMALL = node(
    count=2,
    kernel="7.2",
    driver="in-tree",
    gpu={"vram_bytes": VRAM, "vram_used": BASE, "gtt_bytes": GTT, "mode": "DPX"},
)
BOOTED = Machine(SMALL)
STEPS = 50


@dataclass(slots=True)
class Charge:
    """A buffer as the oracle sees it."""

    pid: int
    bdf: str
    plug: int
    bytes: int
    lineage: tuple[int, ...]
    """Css tokens from the charged one up to the root's; empty: nothing is charged."""
    in_vram: bool
    gpu_id: int
    asked: bool


@dataclass
class History:
    """A machine, an oracle beside it, and random steps on both."""

    seed: int
    machine: Machine = field(default_factory=BOOTED.fork)
    plugs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GPUS, 0))
    charges: dict[int, Charge] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.tokens: dict[str, int | None] = {"/": 0, "/kubepods.slice": 1}
        self.next_token = 2
        self.steps: list[Callable[[], None]] = [
            *[self.allocate] * 9,
            *[self.free] * 4,
            *[self.evict] * 2,
            *[self.restore] * 2,
            *[self.spawn] * 4,
            self.move,
            self.exit,
            *[self.mkdir] * 3,
            self.rmdir,
            *[self.control] * 2,
            *[self.limit] * 4,
            self.replug,
            self.fork,
            self.close,
        ]

    # Choosing

    def group(self) -> str:
        return self.random.choice(list(self.tokens))

    def process(self) -> Process | None:
        alive = list(self.machine.processes)
        return self.random.choice(alive) if alive else None

    def number(self) -> int | None:
        return self.random.choice(list(self.charges)) if self.charges else None

    def lineage(self, path: str) -> tuple[int, ...]:
        parts = [p for p in path.split("/") if p]
        ways = ["/" + "/".join(parts[:end]) for end in range(len(parts), -1, -1)]
        found = [self.tokens[way] for way in ways]
        return tuple(token for token in found if token is not None)

    # Steps: each does it on the machine and tells the oracle

    def attempt(self, what: str, act: Callable[[], object], *allowed: int) -> bool:
        try:
            act()
        except OSError as error:
            assert error.errno in allowed, f"{what}: {error!r}"
            self.done[f"{what} {errno.errorcode[error.errno]}"] += 1
            return False
        self.done[what] += 1
        return True

    def spawn(self) -> None:
        path, machine = self.group(), self.machine
        made: list[Process] = []
        if self.attempt("spawn", lambda: made.append(machine.process(cgroup=path)), errno.EBUSY):
            process = made[0]
            machine.open("/dev/kfd" if self.random.random() < 0.6 else "/dev/dri/renderD128", process)
            if self.random.random() < 0.5:
                machine.view().probe("/dev/dri/renderD128")

    def move(self) -> None:
        process, path = self.process(), self.group()
        if process is not None:
            self.attempt("move", lambda: self.machine.move(process, path), errno.EBUSY)

    def exit(self) -> None:
        process = self.process()
        if process is not None:
            self.machine.exit(process)
            self.charges = {n: c for n, c in self.charges.items() if c.pid != process.pid}

    def close(self) -> None:
        process = self.process()
        if process is not None and process.files:
            for handle in list(process.files.values()):
                self.machine.close(handle)
            self.charges = {n: c for n, c in self.charges.items() if c.pid != process.pid}

    def mkdir(self) -> None:
        parent = self.group()
        path = f"{parent.rstrip('/')}/g{self.next_token}"
        if len(self.tokens) < 9:
            self.machine.mkdir(f"/sys/fs/cgroup{path}")
            enabled = b"dmem" in self.machine.read(f"/sys/fs/cgroup{parent}/cgroup.subtree_control")
            self.tokens[path] = self.fresh() if enabled else None

    def fresh(self) -> int:
        self.next_token += 1
        return self.next_token

    def rmdir(self) -> None:
        path = self.group()
        if self.attempt("rmdir", lambda: self.machine.rmdir(f"/sys/fs/cgroup{path}"), errno.EBUSY):
            del self.tokens[path]

    def control(self) -> None:
        path, word = self.group(), self.random.choice(["+dmem", "+dmem", "-dmem"])
        file = f"/sys/fs/cgroup{path}/cgroup.subtree_control"
        before = b"dmem" in self.machine.read(file)
        changes = before != (word == "+dmem")
        if (
            self.attempt(word, lambda: self.machine.write(file, word.encode()), errno.ENOENT, errno.EBUSY)
            and changes
        ):
            for child in self.tokens:
                if child != "/" and (child.rpartition("/")[0] or "/") == path:
                    self.tokens[child] = self.fresh() if word == "+dmem" else None

    def limit(self) -> None:
        path = self.random.choice([p for p, token in self.tokens.items() if token and p != "/"] or [""])
        if path:
            which = self.random.choice(["max", "max", "max", "min", "low"])
            short = self.random.randrange(4096, VRAM, 4096) - 1  # of a page by one byte
            value = self.random.choice(["max", "0", str(self.random.randrange(VRAM)), "16M", str(short)])
            bdf = self.random.choice(GPUS)
            line = f"drm/{bdf}/vram {value}\n".encode()
            file = f"/sys/fs/cgroup{path}/dmem.{which}"
            if self.attempt("limit", lambda: self.machine.write(file, line), errno.EINVAL):
                assert self.machine.gpu(bdf).present or self.held(bdf), "an unregistered region was written"

    def held(self, bdf: str) -> bool:
        dmem = self.machine.cgroups.dmem
        return dmem is not None and dmem.find(f"drm/{bdf}/vram") is not None

    def allocate(self) -> None:
        process = self.process()
        if process is None:
            return
        machine, size = self.machine, self.random.randrange(1, 12 * MIB)
        minor = self.random.choice([128, 128, 129, 136])
        gtt_ok = self.random.random() < 0.3
        before = {bdf: machine.gpu(bdf).vram_used for bdf in GPUS}
        try:
            made = machine.allocate_vram(process, minor, size, gtt_ok)
        except OSError as error:
            assert error.errno in (errno.ENOMEM, errno.EBADF, errno.EINVAL, errno.ENODEV)
            self.done[f"allocate {errno.errorcode[error.errno]}"] += 1
            assert before == {bdf: machine.gpu(bdf).vram_used for bdf in GPUS}
            return
        self.done[f"allocate {made.place}"] += 1
        whole = -(-size // 4096) * 4096
        in_vram = made.place == "vram"
        asked = in_vram and made.handle is None
        lineage = self.lineage(process.cgroup) if in_vram else ()
        plug = self.plugs[made.bdf]
        self.charges[made.number] = Charge(
            process.pid, made.bdf, plug, whole, lineage, in_vram, made.gpu_id, asked
        )
        if self.random.random() < 0.2:  # free restores
            del self.charges[made.number]
            machine.free(made)
            assert before == {bdf: machine.gpu(bdf).vram_used for bdf in GPUS}

    def free(self) -> None:
        number = self.number()
        if number is not None:
            self.machine.free(self.machine.vram.get(number))
            del self.charges[number]

    def evict(self) -> None:
        number = self.number()
        if number is not None:
            found = self.machine.vram.get(number)
            allowed = (errno.EINVAL, errno.ENODEV, errno.ENOMEM)
            if self.attempt("evict", lambda: self.machine.evict(found), *allowed):
                self.charges[number].in_vram, self.charges[number].lineage = False, ()

    def restore(self) -> None:
        number, process = self.number(), self.process()
        if number is not None and process is not None:
            found = self.machine.vram.get(number)
            allowed = (errno.EINVAL, errno.ENODEV, errno.ENOMEM)
            if self.attempt("restore", lambda: self.machine.restore(found, process), *allowed):
                charge = self.charges[number]
                charge.in_vram, charge.lineage = True, self.lineage(process.cgroup)

    def replug(self) -> None:
        bdf = GPUS[1]
        if self.machine.gpu(bdf).present:
            self.machine.remove(bdf)
            self.plugs[bdf] += 1
        else:
            self.machine.add(bdf)

    def fork(self) -> None:
        """Go on with a copy; what is done to it must not show in the original."""
        original, before = self.machine, self.snapshot(self.machine)
        self.machine = original.fork()
        assert self.snapshot(self.machine) == before
        for allocation in list(self.machine.vram.allocations.values())[:3]:
            self.machine.free(allocation)
            self.charges.pop(allocation.number)
        assert self.snapshot(original) == before

    # Looking

    def css(self, machine: Machine, path: str) -> Css | None:
        return machine.cgroups.find(path).css

    def snapshot(self, machine: Machine) -> list[str]:
        dmem = machine.cgroups.dmem
        assert dmem is not None
        found = (self.css(machine, path) for path in self.tokens)
        return [dmem.current(css) + dmem.limits(css, "max") for css in found if css is not None]

    def check(self) -> None:
        machine, dmem = self.machine, self.machine.cgroups.dmem
        assert dmem is not None
        for path, token in self.tokens.items():
            css = self.css(machine, path)
            assert (css is None) == (token is None), path
            if css is None:
                continue
            for region in dmem.regions:
                pool = css.pools.get(region)
                if pool is None:
                    continue
                assert 0 <= pool.usage <= pool.max
                assert pool.peak >= pool.usage
                assert pool.parent is None or pool.parent.usage >= pool.usage
        for bdf in GPUS:
            self.check_gpu(bdf)
        asked: Counter[tuple[int, int]] = Counter()
        for charge in self.charges.values():
            if charge.asked and charge.plug == self.plugs[charge.bdf]:
                asked[charge.pid, charge.gpu_id] += charge.bytes
        assert machine.vram.asked == dict(asked)
        assert machine.vram.allocations.keys() == self.charges.keys()

    def check_gpu(self, bdf: str) -> None:
        gpu, plug = self.machine.gpu(bdf), self.plugs[bdf]
        mine = [c for c in self.charges.values() if c.bdf == bdf and c.plug == plug]
        assert gpu.vram_used == BASE + sum(c.bytes for c in mine if c.in_vram)
        assert gpu.gtt_used == sum(c.bytes for c in mine if not c.in_vram)
        assert gpu.vram_used <= VRAM
        assert gpu.gtt_used <= GTT
        region = self.machine.vram.region(bdf)
        assert (region is not None) == gpu.present
        if region is None:
            return
        for path, token in self.tokens.items():
            css = self.css(self.machine, path)
            if css is not None:
                pool = css.pools.get(region)
                usage = 0 if pool is None else pool.usage
                assert usage == sum(c.bytes for c in mine if token in c.lineage), path

    def check_files(self) -> None:
        """What is printed is what was counted."""
        for path, token in self.tokens.items():
            css = self.css(self.machine, path)
            if css is None or token is None:
                continue
            lines = self.machine.read(f"/sys/fs/cgroup{path}/dmem.current").decode().splitlines()
            expected = Counter({bdf: 0 for bdf in GPUS if self.machine.gpu(bdf).present})
            for charge in self.charges.values():
                if token in charge.lineage and charge.plug == self.plugs[charge.bdf]:
                    expected[charge.bdf] += charge.bytes
            printed = {line.split("/")[1]: int(line.split()[1]) for line in lines[-len(expected) :]}
            assert printed == dict(expected), path

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.steps)()
            self.check()
        self.check_files()


@pytest.mark.parametrize("block", range(10))
def test_every_counter_is_what_a_recount_says_at_every_step_of_100_histories(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        history = History(seed)
        try:
            history.run()
        except Exception as error:
            error.add_note(f"history of seed {seed}, after {dict(history.done)}")
            raise


def test_the_histories_reach_what_they_are_meant_to_reach() -> None:
    done: Counter[str] = Counter()
    for seed in range(60):
        history = History(seed)
        history.run()
        done += history.done
    for what in (
        "allocate vram",
        "allocate gtt",
        "allocate ENOMEM",
        "allocate EBADF",
        "allocate ENODEV",
        "rmdir",
        "rmdir EBUSY",
        "+dmem ENOENT",
        "+dmem EBUSY",
        "-dmem",
        "-dmem EBUSY",
        "evict",
        "restore",
        "move",
        "move EBUSY",
        "spawn EBUSY",
        "limit",
    ):
        assert done[what], (what, done)


def test_a_process_is_served_only_where_its_device_cgroup_lets_it() -> None:
    machine = BOOTED.fork()
    process = machine.process(devices=DeviceRules.parse(f"c {machine.driver.kfd_major}:0 rw", "c 226:129 rw"))
    machine.open("/dev/kfd", process)
    machine.allocate_vram(process, 129, MIB)
    with pytest.raises(OSError, match="Invalid argument"):
        machine.allocate_vram(process, 128, MIB)
