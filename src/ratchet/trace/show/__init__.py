"""Traces in words, tables and figures."""
