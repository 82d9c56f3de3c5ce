"""One module for each language that a kernel can be written in."""
