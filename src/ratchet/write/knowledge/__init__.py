"""Documents that authors may cite: read, cut into passages, indexed, searched."""

from ratchet.write.knowledge.index import KnowledgeIndex, open_index
from ratchet.write.knowledge.read import Passage

__all__ = ["KnowledgeIndex", "Passage", "open_index"]
