"""Puts this folder on the path, so that the folders below find `made_traces`."""
