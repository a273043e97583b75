"""What runs on a device to check it: model repeats, units, patterns, digests, sensors."""
