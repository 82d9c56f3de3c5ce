"""Documents that authors may cite: read, cut into passages, indexed, searched."""

from ratchet.authors.knowledge.index import KnowledgeIndex, open_index
from ratchet.authors.knowledge.passages import Passage

__all__ = ["KnowledgeIndex", "Passage", "open_index"]
