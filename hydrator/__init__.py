"""Memory hydration for LLM agents, inside Postgres."""
