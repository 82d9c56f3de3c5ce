"""The modules that an exported package has beside Ratchet's own: they run without Ratchet."""
