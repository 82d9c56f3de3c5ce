"""The agent: an author that asks a language model, over any OpenAI-compatible endpoint.

`author` is the author itself and its work on each problem; `strategy` decides what to ask for,
`brief` and `prompt` how; `ask` and `client` talk to the endpoint, or answer from the ledger.
"""

from ratchet.write.agent.ask import AgentBudget
from ratchet.write.agent.author import AgentAuthor, agent_author

__all__ = ["AgentAuthor", "AgentBudget", "agent_author"]
