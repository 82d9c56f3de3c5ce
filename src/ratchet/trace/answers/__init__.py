"""Columns to tables: each file answers one question about one trace, `report` asks them all."""
