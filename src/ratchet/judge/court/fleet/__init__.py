"""The machines that judge: this one or a Ray cluster's, one candidate a device at a time."""
