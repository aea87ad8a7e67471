"""PPUs: their nodes and `ppu-smi`, and what PPU-HAMi-core keeps in a container's state file."""
