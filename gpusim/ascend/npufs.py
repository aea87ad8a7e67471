"""What the Ascend driver leaves in a node's file tree: device nodes, libraries, version files, npu-smi.

Device nodes: ascend_ppu_hami.md A.4. Files: the mount table of A.7, the places of npu-smi of A.5. Their
contents are short texts in the vendor's format; the libraries are there to be mounted and hold no code.
Majors are dynamic on real nodes; ours follow the seed and are never KFD's.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusim.ascend.npu import Npus
from gpusim.nodes import CharDev

DRIVERS = ("davinci", "davinci_manager", "devmm_svm", "hisi_hdc", "vdavinci")
"""Names in /proc/devices, one major each (ours)."""
MODE = 0o660
GROUP = 1000
"""HwHiAiUser, the group the driver's installer makes first."""
LIBRARIES = "/usr/local/Ascend/driver/lib64/driver"


def majors(kfd: int, dynamic: Sequence[int]) -> dict[str, int]:
    """Driver → its character major: the dynamic ones after KFD's."""
    at = dynamic.index(kfd)
    return {name: dynamic[(at + 1 + i) % len(dynamic)] for i, name in enumerate(DRIVERS)}


def nodes(npus: Npus, numbers: dict[str, int]) -> dict[str, CharDev]:
    """Name in /dev → node, for the state the NPUs are in."""
    found = {name: (numbers[name], 0) for name in ("davinci_manager", "devmm_svm", "hisi_hdc")}
    for npu in npus:
        found[f"davinci{npu.phy}"] = numbers["davinci"], npu.phy
        found |= {f"vdavinci{i}": (numbers["vdavinci"], i) for i in npu.vnpus}
    return {name: CharDev(*number, MODE, gid=GROUP) for name, number in found.items()}


def files(version: str, places: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Path → (content, mode) of what the driver's installer writes."""
    texts = {
        "/usr/local/Ascend/driver/version.info": f"Version={version}\npackage_version={version}\n",
        "/etc/ascend_install.info": (
            "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\n"
            "Driver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_For_All=no\n"
        ),
        f"{LIBRARIES}/libascend_hal.so": "simulated\n",
        f"{LIBRARIES}/libc_sec.so": "simulated\n",
        f"{LIBRARIES}/libdcmi.so": "simulated\n",
    }
    programs = dict.fromkeys(places, ("simulated\n", 0o755))
    return {**{path: (text, 0o644) for path, text in texts.items()}, **programs}
