"""Paired timing: launches, rounds, looks and intervals; samples in, answers out."""
