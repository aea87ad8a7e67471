"""Rows of the behaviour table about small files of a GPU's PCI directory.

They come after those of `gpusim.kernel_rows`, whose words they use. No capture here says which kernel it was
recorded on, so every boundary is inferred from the set of files of a capture.
"""

from __future__ import annotations

from gpusim.kernel_rows import Row, Step

PCI_ROWS: tuple[Row, ...] = (
    Row(
        "fru_without_eeprom",
        (
            Step(True, "inf", "rdna2-rx6900xt: product_name and product_number are there and read empty"),
            Step(
                False,
                "inf",
                "kernel.md 3: absent on many consumer cards; first release not known (6.7 taken)",
                in_tree=(6, 7),
                dkms=(6, 7),
            ),
        ),
    ),
    Row(
        "hwmon_board_voltage",
        (
            Step(False, "src", "kernel.md 3: in0 and in1 are hidden on GC 9.4.3 and later"),
            Step(
                True,
                "inf",
                "kernel.md 3: 7.0 adds in2 (C350VF); DKMS of that age taken from 6.18",
                in_tree=(7, 0),
                dkms=(6, 18),
            ),
        ),
    ),
    Row(
        "enforce_isolation",
        (
            Step(False, "inf", "rdna2-rx6900xt has none"),
            Step(
                True,
                "inf",
                "kernel.md 3; apu-strixpoint-890m; first release not known (6.12 taken)",
                in_tree=(6, 12),
                dkms=(6, 12),
            ),
        ),
    ),
    Row(
        "reset_masks",
        (
            Step(False, "inf", "rdna2-rx6900xt has none"),
            Step(
                True,
                "inf",
                "apu-strixpoint-890m; first release not known (6.13 taken)",
                in_tree=(6, 13),
                dkms=(6, 12, 12),
            ),
        ),
    ),
)
"""The table's second part. Order is that of `gpusim.kernel.Behaviour`."""
