"""Render results for people: terminal tables, and pages that open offline."""
