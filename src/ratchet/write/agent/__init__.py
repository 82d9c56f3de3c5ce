"""The agent: an author that asks a language model, over any OpenAI-compatible endpoint.

`author` is the author itself; `strategy` decides what to ask for, `prompt` how, `client` and `ask`
talk to the endpoint, `answer` reads what comes back, `replayed` answers from the ledger.
"""

from ratchet.write.agent.author import AgentAuthor, agent_author
from ratchet.write.agent.budget import AgentBudget

__all__ = ["AgentAuthor", "AgentBudget", "agent_author"]
