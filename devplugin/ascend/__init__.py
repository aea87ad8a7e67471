"""Ascend NPUs: the questions of `devplugin.vendor`, one file each, and the files of libvnpu."""
