"""Checks on whose work it is: threads, call order, late writes, outputs, libraries, devices."""
