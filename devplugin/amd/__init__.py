"""AMD GPUs: the questions of `devplugin.vendor`, one file each."""
