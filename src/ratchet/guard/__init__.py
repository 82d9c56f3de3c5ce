"""Guard: no regression gets through, and no false alarm gets out."""
