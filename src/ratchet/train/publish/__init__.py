"""Take proven kernels and programs out of Ratchet: packages, patches, exported programs."""
