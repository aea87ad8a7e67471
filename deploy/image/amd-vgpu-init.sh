#!/bin/sh
# Copies the AMD memory hook to the node: what the chart's postStart runs, under the name and with the words that the
# vendor's chart uses (amd.md 1.2 and 1.3).
set -eu
exec amd-device-plugin -install_hook "${AMD_VGPU_HOOK_SOURCE:-/opt/hami/lib/amd/libamvgpu.so}:${1:?usage: $0 DIRECTORY}/"
