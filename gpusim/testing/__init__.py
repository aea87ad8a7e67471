"""What tests of the simulator and of plugins share."""
