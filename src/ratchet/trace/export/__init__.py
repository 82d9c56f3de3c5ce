"""Answers for other programs: JSON documents, flat tables, Parquet, one merged Chrome trace."""
