"""What only PPUs have: their tool, their configuration, and the runtime library PPU-HAMi-core."""
