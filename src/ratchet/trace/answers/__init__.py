"""Columns to tables: each file answers one question about a trace, and `report` asks them all."""
