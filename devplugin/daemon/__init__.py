"""The thin daemon: timers, sockets and one worker thread around a vendor's decisions."""
